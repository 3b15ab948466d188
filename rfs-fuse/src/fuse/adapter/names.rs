//! Looks names up, creates and renames.
//!
//! # Concurrency
//! Session threads. Takes the lock of `Retries`.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use fuser::{Errno, INodeNo, RenameFlags};
use rfs_proto::Owner;
use rustix::fs::OFlags;

use super::{
    Adapter, creator,
    open_file::{MAX_CREATES, MAX_CREATES_AFTER_WALK, create_new},
};
use crate::fuse::session::{ReplyCreate, ReplyEmpty, ReplyEntry, Request};
use rfs_client::{CachedName, ClientError, is_repeated_request};

impl Adapter {
    /// Looks a name up.
    pub(super) fn lookup_name(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _arrival = self.client.caching.arrival();
        let query = self.name_query(request, parent, name);
        // open_by_handle_at(2) and NFS look these two names up.
        let found = match name.as_bytes() {
            b"." => self.client.lookups.lookup_number(parent.0),
            b".." => self.client.lookups.lookup_parent(parent.0),
            name => match self.client.lookups.lookup(parent.0, name) {
                Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => self.create_after_walk(&query),
                // The directory was removed. For a caller that is about to create a file, the
                // kernel would not walk the path again.
                Err(ClientError::Errno(rfs_proto::Errno::ESTALE)) => {
                    self.recalls.drop_name_later(parent.0, name);
                    return reply.error(Errno::ENOENT);
                }
                found => found,
            },
        };
        match found {
            Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => {
                if let Some(reply) = self.lifetimes.absent(&self.client, &query, reply) {
                    reply.error(Errno::ENOENT);
                }
            }
            found => self.answer_entry("lookup", &query, found, reply),
        }
    }

    /// Returns the inodes that the kernel has under the two names of a rename, if that is certain.
    /// The server refuses the rename if another mount has changed a name: the kernel moves the
    /// entries that it has. `None` if the kernel has to walk the path again: an entry was recalled,
    /// and the kernel cannot drop it during the rename.
    fn cached_names(
        &self,
        thread: u32,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        exchange: bool,
    ) -> Option<(Option<u64>, Option<u64>)> {
        // The second walk must not fail, and a thread without a number has none.
        // A rename of a previous process may have been done, and it has used other names' inodes.
        if thread == 0 || is_repeated_request() || self.retries.is_sent_back(thread) {
            return Some((None, None));
        }
        let [moved, replaced] =
            [from, to].map(|(parent, name)| self.client.caching.cached_name(parent, name));
        // The kernel looks the new name up during a rename, but not during an exchange.
        let is_recalled = moved == CachedName::Nothing || exchange && replaced == CachedName::Nothing;
        if is_recalled && self.retries.send_back(thread, None) {
            return None;
        }
        let certain = |cached| match cached {
            CachedName::Inode(ino) => Some(ino),
            CachedName::Nothing | CachedName::Uncertain => None,
        };
        Some((certain(moved), certain(replaced)))
    }

    /// Renames a file.
    pub(super) fn rename_name(
        &self,
        request: &Request,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let whiteout = flags.contains(RenameFlags::RENAME_WHITEOUT);
        let others = flags.difference(RenameFlags::RENAME_WHITEOUT);
        let Some(others) = rfs_proto::RenameFlags::from_bits(others.bits()) else {
            return reply.error(Errno::EINVAL);
        };
        let whiteout = whiteout.then(|| Owner { uid: request.uid(), gid: request.gid() });
        let (parent, newparent) = (from.0.0, to.0.0);
        let (from, to) = ((parent, from.1.as_bytes()), (newparent, to.1.as_bytes()));
        let exchange = others.contains(rfs_proto::RenameFlags::EXCHANGE);
        let Some(cached) = self.cached_names(request.pid(), from, to, exchange) else {
            return reply.error(Errno::ESTALE);
        };
        // An exchange removes no name.
        let removal = (!exchange).then(|| self.client.names.removal(to.0, to.1));
        let renamed = self.client.names.rename(from, to, others, whiteout, cached);
        if renamed.is_ok() && !self.settings.entry_timeout.is_zero() {
            // The kernel is about to move entries that may be of other inodes.
            if cached.0.is_none() {
                self.recalls.revalidate_name_later(to.0, to.1);
            }
            if exchange && cached.1.is_none() {
                self.recalls.revalidate_name_later(from.0, from.1);
            }
        }
        self.refresh_after_change(parent, request.pid());
        self.refresh_after_change(newparent, request.pid());
        if let Some(removal) = removal {
            removal.answer(renamed.is_ok());
        }
        self.answer_removal("rename", request.pid(), renamed, reply);
    }

    /// Creates a file and opens it.
    pub(super) fn create_file(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _arrival = self.client.caching.arrival();
        let query = self.name_query(request, parent, name);
        // Always exclusive: the kernel takes a created file for new. It neither truncates the file
        // nor checks permissions. If another thread has created the file, ESTALE sends this thread
        // back to look the name up and to open the file. That works once per call, so a name that
        // may disappear again is tried several times before. In the second walk, the lookup creates
        // the file if it has disappeared (`create_after_walk`).
        let exclusive = OFlags::from_bits_retain(flags as u32).contains(OFlags::EXCL);
        let by = creator(request, umask);
        let create = || self.client.files.create(parent.0, name.as_bytes(), mode & 0o7777, by, true);
        let tries = match exclusive {
            true => 1,
            false if self.retries.is_sent_back(query.thread) => MAX_CREATES_AFTER_WALK,
            false => MAX_CREATES,
        };
        match create_new(tries, create) {
            Ok(Some(attr)) => {
                self.retries.finish_walk(query.thread);
                self.refresh_after_change(parent.0, request.pid());
                let guard = self.client.caching.hold_recalls();
                let opened = self.new_handle(&guard, query.since, &attr, flags);
                self.lifetimes.created(&guard, &query, &attr, opened, reply);
            }
            Ok(None) if exclusive => reply.error(Errno::EEXIST),
            Ok(None) => {
                self.send_back_to_create(&query, mode & 0o7777, by);
                reply.error(Errno::ESTALE);
            }
            Err(e) => reply.error(self.name_errno("create", query.thread, &e)),
        }
    }
    /// Creates a file without a name and opens it.
    pub(super) fn create_unnamed_file(
        &self,
        request: &Request,
        parent: INodeNo,
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _arrival = self.client.caching.arrival();
        let since = self.client.caching.since();
        match self.client.files.create_unnamed(parent.0, mode & 0o7777, creator(request, umask)) {
            Ok(attr) => {
                let guard = self.client.caching.hold_recalls();
                let opened = self.new_handle(&guard, since, &attr, flags);
                let query = (since, request.pid());
                self.lifetimes.created_unnamed(&guard, query, &attr, opened, reply);
            }
            // The directory was removed.
            Err(ClientError::Errno(rfs_proto::Errno::ESTALE)) => reply.error(Errno::ENOENT),
            Err(e) => reply.error(self.errno("tmpfile", &e)),
        }
    }
}
