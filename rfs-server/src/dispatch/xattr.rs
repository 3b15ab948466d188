//! Requests about extended attributes and ACLs.
//!
//! Threading: as the dispatcher. Rules are in `namespace::xattr` and `namespace::acl`; here they meet records and limits.

use rfs_proto::{BLOCK, Errno, Reply, Request, Value, XATTR_PART, XattrSet};

use super::{call::Call, meta::Meta};
use crate::namespace::{Acl, XattrName};

/// All extended attributes together take at most this part of the memory lent, but for the least.
const SHARE: u64 = 16;
const LEAST: u64 = 1 << 20;

const SETGID: u32 = 0o2000;

impl Call<'_> {
    pub(super) fn answer_xattr(&self, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        let now = self.clock.now();
        self.locked(|meta| match request {
            Request::GetXattr { ino, name, offset } => meta.get_xattr(ino, XattrName::parse(name)?, offset),
            Request::ListXattr { ino, offset } => {
                let xattrs = meta.namespace.get(ino)?.xattrs.as_ref();
                let names = xattrs.map_or_else(Vec::new, |xattrs| xattrs.names());
                Ok(part(xattrs.map_or(0, |xattrs| xattrs.version()), &names, offset))
            }
            Request::XattrPart { value } => {
                if value.len() > XATTR_PART {
                    return Err(Errno::E2BIG);
                }
                meta.sessions.set_part(session, value);
                Ok(Reply::Done)
            }
            Request::SetXattr { ino, name, value, how, continued, drop_sgid } => {
                let mut whole = if continued { meta.sessions.take_part(session) } else { Vec::new() };
                whole.extend_from_slice(value);
                let reply = meta.set_xattr(ino, XattrName::parse(name)?, whole, (how, drop_sgid), now)?;
                meta.attr_changed(session, ino);
                Ok(reply)
            }
            Request::RemoveXattr { ino, name } => {
                let reply = meta.remove_xattr(ino, XattrName::parse(name)?, now)?;
                meta.attr_changed(session, ino);
                Ok(reply)
            }
            // The others are handled elsewhere.
            _ => Err(Errno::ENOSYS),
        })
    }
}

/// The bytes of a value from `offset` on.
fn part(version: u64, value: &[u8], offset: u32) -> Reply {
    let from = value.len().min(offset as usize);
    let to = value.len().min(from + XATTR_PART);
    // Values are far shorter than 4 GiB.
    Reply::Value(Value { version, len: value.len() as u32, bytes: value[from..to].to_vec() })
}

impl Meta {
    fn get_xattr(&mut self, ino: u64, name: XattrName<'_>, offset: u32) -> Result<Reply, Errno> {
        let inode = self.namespace.get(ino)?;
        let xattrs = inode.xattrs.as_ref().ok_or(Errno::ENODATA)?;
        Ok(part(xattrs.version(), &xattrs.get(name)?, offset))
    }

    fn set_xattr(
        &mut self,
        ino: u64,
        name: XattrName<'_>,
        value: Vec<u8>,
        (how, drop_sgid): (XattrSet, bool),
        now: i64,
    ) -> Result<Reply, Errno> {
        let limit = (self.space.totals().len.max(BLOCK) / SHARE).max(LEAST);
        let total = self.xattr_bytes;
        let inode = self.namespace.get_mut(ino)?;
        name.check_kind(inode.kind)?;
        let before = inode.xattr_bytes();
        inode.xattrs_mut().may_set(name, value.len(), how)?;
        // What is there already counts, also where it is replaced: a full server does not go into fine points.
        if total + value.len() as u64 > limit {
            return Err(Errno::ENOSPC);
        }
        match name {
            XattrName::Plain(plain) => inode.xattrs_mut().set(plain, value),
            XattrName::Access | XattrName::Default => {
                let acl = Acl::decode(&value)?;
                inode.set_acl(name, acl);
                if drop_sgid && name == XattrName::Access {
                    inode.perm &= !SETGID;
                }
            }
        }
        self.xattrs_changed(ino, before, now)
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
        self.xattr_bytes = self.xattr_bytes - before + inode.xattr_bytes();
        self.publish(ino);
        Ok(Reply::Done)
    }
}
