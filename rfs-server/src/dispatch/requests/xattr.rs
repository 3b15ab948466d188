//! Requests about extended attributes and ACLs.
//!
//! The rules are in `namespace::xattr` and `rfs_proto::acl`. This module adds records and limits.
//!
//! # Concurrency
//! As the dispatcher.

use rfs_proto::{BLOCK, Errno, Reply, Request, Value, XATTR_PART, XattrSet, mode::SGID};
use seeded_faults::seeded;

use crate::{
    dispatch::transaction::{
        call::Call,
        permission::visible_names,
        view::{ReadView, WriteView},
    },
    metadata::namespace::xattr::{PIN, XattrName},
};

/// The total size of extended attributes is limited to 1/`SHARE` of the memory, but at least to
/// `MIN_LIMIT` bytes.
const SHARE: u64 = 16;
const MIN_LIMIT: u64 = 1 << 20;

impl Call<'_> {
    pub(in crate::dispatch) fn answer_xattr(
        &self,
        session: u64,
        request: Request<'_>,
    ) -> Result<Reply, Errno> {
        let now = self.clock.now();
        match request {
            Request::GetXattr { ino, name, offset } => {
                let name = XattrName::parse(name)?;
                self.look(&[ino], |look| {
                    if matches!(name, XattrName::Plain(name) if name.starts_with(b"user.")) {
                        look.may_read(ino)?;
                    }
                    look.get_xattr(ino, name, offset)
                })
            }
            Request::ListXattr { ino, offset } => self.look(&[ino], |look| {
                let xattrs = look.namespace.get(ino)?.xattrs.as_ref();
                let names = xattrs.map_or_else(Vec::new, |xattrs| xattrs.names());
                let names = visible_names(self.asker.squash(), names);
                Ok(part(xattrs.map_or(0, |xattrs| xattrs.version()), &names, offset))
            }),
            Request::XattrPart { value } => {
                if value.len() > XATTR_PART {
                    return Err(Errno::E2BIG);
                }
                self.store.keep_part(self.asker, value)?;
                Ok(Reply::Done)
            }
            Request::SetXattr { ino, name, value, how, continued, drop_sgid, only_if } => {
                // The stored part is dropped after the reply is logged: until then the client may
                // repeat the request at the next server.
                let mut whole = if continued { self.asker.part().clone() } else { Vec::new() };
                whole.extend_from_slice(value);
                let name = XattrName::parse(name)?;
                let reply = self.answered(&[ino], |meta| {
                    meta.namespace.get(ino)?.belongs(only_if)?;
                    meta.may_set_xattr(ino, name)?;
                    let drop_sgid = drop_sgid || meta.drops_setgid(ino);
                    let reply = meta.set_xattr(ino, name, whole, (how, drop_sgid), now)?;
                    meta.track_pin(ino, name);
                    meta.attr_changed(session, ino);
                    Ok(reply)
                });
                self.asker.part().clear();
                if let Some(eviction) = self.store.eviction.as_deref().filter(|_| is_pin(name)) {
                    eviction.settle();
                }
                reply
            }
            Request::RemoveXattr { ino, name, only_if } => {
                let name = XattrName::parse(name)?;
                self.answered(&[ino], |meta| {
                    meta.namespace.get(ino)?.belongs(only_if)?;
                    meta.may_set_xattr(ino, name)?;
                    let reply = meta.remove_xattr(ino, name, now)?;
                    meta.track_pin(ino, name);
                    meta.attr_changed(session, ino);
                    Ok(reply)
                })
            }
            // Other modules handle the other requests.
            _ => Err(Errno::ENOSYS),
        }
    }
}

/// Returns true for the attribute that pins a file or directory.
fn is_pin(name: XattrName<'_>) -> bool {
    name == XattrName::Plain(PIN)
}

/// Returns the bytes of a value from `offset` on.
fn part(version: u64, value: &[u8], offset: u32) -> Reply {
    let from = value.len().min(offset as usize);
    let to = value.len().min(from + XATTR_PART);
    // Values are far shorter than 4 GiB.
    Reply::Value(Value { version, len: value.len() as u32, bytes: value[from..to].to_vec() })
}

impl ReadView<'_> {
    fn get_xattr(&self, ino: u64, name: XattrName<'_>, offset: u32) -> Result<Reply, Errno> {
        let inode = self.namespace.get(ino)?;
        let xattrs = inode.xattrs.as_ref().ok_or(Errno::ENODATA)?;
        Ok(part(xattrs.version(), &xattrs.get(name)?, offset))
    }
}

impl WriteView<'_> {
    fn set_xattr(
        &mut self,
        ino: u64,
        name: XattrName<'_>,
        value: Vec<u8>,
        (how, drop_sgid): (XattrSet, bool),
        now: i64,
    ) -> Result<Reply, Errno> {
        let limit = (self.space.totals().len.max(BLOCK) / SHARE).max(MIN_LIMIT);
        let inode = self.namespace.get_mut(ino)?;
        name.check_kind(inode.kind)?;
        let before = inode.xattr_bytes();
        let len = value.len() as u64;
        inode.xattrs_mut().may_set(name, value.len(), how)?;
        // A replaced value counts until it is gone, so a full server may refuse a replacement.
        let limit = seeded!(XattrSpaceUnlimited, u64::MAX, limit);
        if !self.xattrs.try_add(len, limit) {
            return Err(Errno::ENOSPC);
        }
        let set = inode.set_xattr(name, value);
        if drop_sgid && set.is_ok() && name == XattrName::Access {
            inode.perm &= !SGID;
        }
        let reply = set.and_then(|()| self.xattrs_changed(ino, before, now));
        self.xattrs.give_back(len);
        reply
    }

    fn remove_xattr(&mut self, ino: u64, name: XattrName<'_>, now: i64) -> Result<Reply, Errno> {
        let inode = self.namespace.get_mut(ino)?;
        let before = inode.xattr_bytes();
        inode.xattrs.as_mut().ok_or(Errno::ENODATA)?.remove(name)?;
        self.xattrs_changed(ino, before, now)
    }

    fn xattrs_changed(&mut self, ino: u64, before: u64, now: i64) -> Result<Reply, Errno> {
        let inode = self.namespace.get_mut(ino)?;
        inode.ctime = now;
        if self.store.journal.is_none()
            && self.store.change_log.recording().is_none()
            && let Some(xattrs) = &mut inode.xattrs
        {
            // Only the journal and snapshots use the list of changed names; without them it would
            // grow.
            xattrs.take_touched();
        }
        self.xattrs.add(inode.xattr_bytes());
        self.xattrs.give_back(before);
        self.publish(ino);
        Ok(Reply::Done)
    }
}
