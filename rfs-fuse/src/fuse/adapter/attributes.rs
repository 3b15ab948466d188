//! Attributes and extended attributes.
//!
//! # Concurrency
//! Session threads. Takes no locks.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use fuser::{Errno, FileHandle, INodeNo};
use rfs_proto::{SetAttr, xattr};

use super::{Adapter, in_group, is_privileged};
use crate::fuse::{
    convert,
    kernel_cache::lifetimes,
    session::{ReplyAttr, ReplyEmpty, ReplyStatx, ReplyXattr, Request},
};
use rfs_client::ClientError;

impl Adapter {
    /// Returns attributes and, if `births` is set, the time of birth.
    pub(super) fn attributes_and_birth(
        &self,
        request: &Request,
        ino: INodeNo,
        births: bool,
        reply: ReplyStatx,
    ) {
        // Before the attributes: they would be older than the answer by a round trip.
        let birth = if births { self.client.attributes.birth(ino.0) } else { Ok(None) };
        let (since, got) = self.client.attributes.getattr_to_tell(ino.0);
        match birth.and_then(|birth| Ok((got?, birth))) {
            Ok((attr, birth)) => {
                self.lifetimes.statx(&self.client, (since, request.pid()), (&attr, birth), reply);
            }
            Err(e) => reply.error(self.inode_errno("statx", &e)),
        }
    }

    pub(super) fn change_attributes(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        changes: &SetAttr,
        reply: ReplyAttr,
    ) {
        if let Some(handle) = handle
            && let Err(e) = self.client.locks.check_locks(ino.0, handle.0)
        {
            return reply.error(self.errno("setattr", &e));
        }
        let since = self.client.caching.since();
        let written = match self.settings.writeback {
            true => self.client.write_back.set_write_time(ino.0, changes).transpose(),
            false => None,
        };
        let changed = written.unwrap_or_else(|| self.set_attr(request, ino.0, changes));
        let changed = changed.and_then(|attr| match changes.drop_privileges {
            true => {
                let is_member = |group| in_group(request, group);
                Ok(self.client.privileges.drop_foreign_group(&attr, is_member)?.unwrap_or(attr))
            }
            false => Ok(attr),
        });
        let changed = match self.kernel.orders_changes() {
            true => changed,
            false => changed.map(lifetimes::uncacheable),
        };
        self.answer_attr(
            "setattr",
            (self.client.caching.since_but_changed(since), request.pid()),
            changed,
            reply,
        );
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(
        &self,
        request: &Request,
        (ino, name): (INodeNo, &OsStr),
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = convert::xattr_set(flags) else { return reply.error(Errno::EINVAL) };
        // Only the access ACL changes the mode, and needs this. The kernel has a flag for it, which
        // fuser does not pass on.
        let drop_sgid = name.as_bytes() == xattr::ACCESS_ACL
            && !is_privileged(request)
            && self.client.attributes.getattr(ino.0).is_ok_and(|attr| !in_group(request, attr.gid));
        let set =
            |only_if| self.client.xattrs.set_xattr(ino.0, name.as_bytes(), value, how, drop_sgid, only_if);
        let set = match name.as_bytes().starts_with(xattr::ANY_ACL) {
            true => self.change_acl(request, set),
            false => set(None),
        };
        self.refresh_after_change(ino.0, request.pid());
        self.answer_result("setxattr", set, reply);
    }

    /// Returns an extended attribute.
    pub(super) fn get_xattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.client.xattrs.get_xattr(ino.0, name.as_bytes()) {
            Err(ClientError::Errno(rfs_proto::Errno::ENODATA))
                if self.labels.are_unsupported(name.as_bytes()) =>
            {
                reply.error(Errno::EOPNOTSUPP);
            }
            value => self.answer_value("getxattr", value, size, reply),
        }
    }

    /// Returns the names of the extended attributes.
    pub(super) fn list_xattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.client.xattrs.list_xattr(ino.0).map(|names| {
            // As on local file systems, only root sees names of this namespace.
            let shown = |name: &&[u8]| is_privileged(request) || !name.starts_with(xattr::TRUSTED);
            names.split_inclusive(|byte| *byte == 0).filter(shown).collect::<Vec<_>>().concat()
        });
        self.answer_value("listxattr", names, size, reply);
    }

    /// Removes an extended attribute.
    pub(super) fn remove_xattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |only_if| self.client.xattrs.remove_xattr(ino.0, name.as_bytes(), only_if);
        let removed = match name.as_bytes().starts_with(xattr::ANY_ACL) {
            true => match self.change_acl(request, remove) {
                // The file has no ACL, which is the result that the caller wants.
                Err(ClientError::Errno(rfs_proto::Errno::ENODATA)) => Ok(()),
                removed => removed,
            },
            false => remove(None),
        };
        self.refresh_after_change(ino.0, request.pid());
        self.answer_result("removexattr", removed, reply);
    }
}
