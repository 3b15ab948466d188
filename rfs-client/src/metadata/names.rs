//! Calls that make, remove and rename names.
//!
//! The functions here check names, call the server, and take references to the inodes in its
//! replies.
//!
//! # Concurrency
//! Session threads. All locks are held briefly.

use std::{sync::Arc, time::Instant};

use rfs_proto::{Attr, Errno, MAX_NAME, MAX_SYMLINK, Owner, RenameFlags, Reply, Request};
use smallvec::SmallVec;

use crate::{
    cache::changes::name_removals::NameRemovals,
    error::ClientError,
    inode::{Inode, table::InodeTable},
    requests::{
        cache_rules::CacheRules,
        calls::{Calls, wrong_kind},
    },
};

/// The user that creates an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator {
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory is setgid.
    pub gid: u32,
    /// Removed from the permission bits, unless the directory has a default ACL.
    pub umask: u32,
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), ClientError> {
    match name.len() {
        0 => Err(Errno::ENOENT.into()),
        1..=MAX_NAME => Ok(()),
        _ => Err(Errno::ENAMETOOLONG.into()),
    }
}

/// The removal of a name that the caller has not heard of yet.
#[derive(Debug)]
pub struct NameRemoval<'n> {
    removals: &'n NameRemovals,
    /// Inodes that the name may stand for, and may have further names.
    inodes: SmallVec<[Arc<Inode>; 1]>,
    /// True if the name may stand for one inode only.
    is_certain: bool,
}

impl<'n> NameRemoval<'n> {
    fn begin(removals: &'n NameRemovals, known: impl Iterator<Item = Arc<Inode>>) -> NameRemoval<'n> {
        let now = Instant::now();
        let mut inodes: SmallVec<[Arc<Inode>; 1]> = known.collect();
        let is_certain = inodes.len() == 1;
        inodes.retain(|inode| {
            let has_more_names = {
                let caller = inode.caller.lock();
                // Another client may have made a link since the caller was told of one.
                caller.told_links > 1 || !caller.attr_caching.is_cacheable()
            };
            if has_more_names {
                removals.begin(inode.ino, now);
            }
            has_more_names
        });
        NameRemoval { removals, inodes, is_certain }
    }

    /// Notes that the caller is about to hear whether the name `is_removed`.
    pub fn answer(self, is_removed: bool) {
        if let [inode] = &self.inodes[..]
            && self.is_certain
            && is_removed
        {
            let told_links = &mut inode.caller.lock().told_links;
            *told_links = told_links.saturating_sub(1);
        }
    }
}

impl Drop for NameRemoval<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        self.inodes.iter().for_each(|inode| self.removals.end(inode.ino, now));
    }
}

/// Makes, removes and renames names.
#[derive(Debug)]
pub struct Names {
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
}

impl Names {
    pub(crate) fn new(calls: &Arc<Calls>) -> Names {
        let (caching, inodes) = (Arc::clone(&calls.caching), Arc::clone(&calls.caching.inodes));
        Names { calls: Arc::clone(calls), caching, inodes }
    }

    /// Creates an inode with a name.
    fn make(&self, request: &Request<'_>) -> Result<Attr, ClientError> {
        let _arrival = self.inodes.arrival();
        let since = self.caching.since();
        Ok(self.caching.referenced(since, self.calls.call_attr(request)?))
    }

    /// Creates a file, fifo, socket or device node. `mode` has kind and permission bits. Takes a
    /// reference.
    pub fn mknod(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: u32,
        by: Creator,
    ) -> Result<Attr, ClientError> {
        check_name(name)?;
        let Creator { uid, gid, umask } = by;
        self.make(&Request::Mknod { parent, name, mode, umask, rdev, uid, gid })
    }

    /// Creates a directory. Takes a reference.
    pub fn mkdir(&self, parent: u64, name: &[u8], perm: u32, by: Creator) -> Result<Attr, ClientError> {
        check_name(name)?;
        let Creator { uid, gid, umask } = by;
        let attr = self.make(&Request::Mkdir { parent, name, perm, umask, uid, gid })?;
        if self.caching.is_on() {
            self.caching.cache.dir_names.lock().made(attr.ino);
        }
        Ok(attr)
    }

    /// Creates a symbolic link. Takes a reference.
    pub fn symlink(&self, parent: u64, name: &[u8], target: &[u8], by: Creator) -> Result<Attr, ClientError> {
        check_name(name)?;
        match target.len() {
            0 => return Err(Errno::ENOENT.into()),
            1..=MAX_SYMLINK => {}
            _ => return Err(Errno::ENAMETOOLONG.into()),
        }
        let Creator { uid, gid, .. } = by;
        self.make(&Request::Symlink { parent, name, target, uid, gid })
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<Vec<u8>, ClientError> {
        match self.calls.call(&Request::Readlink { ino })? {
            Reply::Target(target) => Ok(target),
            _ => wrong_kind(),
        }
    }

    /// Creates a hard link. Takes a reference.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr, ClientError> {
        check_name(name)?;
        self.make(&Request::Link { ino, parent, name })
    }

    /// Begins the removal of a name whose reply makes the caller subtract a link from the inodes
    /// that it knows under the name. Call [`NameRemoval::answer`] just before that reply.
    pub fn removal(&self, parent: u64, name: &[u8]) -> NameRemoval<'_> {
        let known = self.inodes.named_inodes(parent, name);
        let inodes = known.into_iter().filter_map(|ino| self.inodes.get(ino));
        NameRemoval::begin(&self.caching.cache.name_removals, inodes)
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Result<(), ClientError> {
        check_name(name)?;
        self.call_removal(&Request::Unlink { parent, name }, || self.inodes.unnamed(parent, name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &[u8]) -> Result<(), ClientError> {
        check_name(name)?;
        self.call_removal(&Request::Rmdir { parent, name }, || self.inodes.unnamed(parent, name))
    }

    /// Renames. With `whiteout`, leaves a whiteout of that owner under the old name. `cached` has
    /// the inodes that the caller has cached under the old and the new name, if it has any.
    ///
    /// # Errors
    /// ESTALE, without any effect, if a name stands for another inode than the caller has cached.
    pub fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
        whiteout: Option<Owner>,
        (moved, replaced): (Option<u64>, Option<u64>),
    ) -> Result<(), ClientError> {
        check_name(name)?;
        check_name(new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let request =
            Request::Rename { parent, name, new_parent, new_name, flags, whiteout, moved, replaced };
        self.call_removal(&request, || {
            self.inodes.renamed((parent, name), (new_parent, new_name), exchange);
        })
    }

    /// Carries out a request that may remove the last name of an inode. On success, `done` notes
    /// the change of the names.
    fn call_removal(&self, request: &Request<'_>, done: impl FnOnce()) -> Result<(), ClientError> {
        let unlinked = match self.calls.call(request) {
            Ok(Reply::Done) => None,
            Ok(Reply::Unlinked(ino)) => Some(ino),
            Ok(_) => return wrong_kind(),
            Err(e) => {
                if !matches!(e, ClientError::Errno(_)) {
                    self.inodes.orphans().doubt();
                }
                return Err(e);
            }
        };
        done();
        if let Some(ino) = unlinked {
            self.caching.cache.prefetch.lock().remove_inode(ino);
            self.inodes.unlinked(ino);
        }
        Ok(())
    }
}
