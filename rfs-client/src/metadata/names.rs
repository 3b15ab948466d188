//! Calls about names and attributes, and `getattr`, which mostly needs no call.
//!
//! The functions here check names, call the server, take references to the inodes in its replies,
//! and tell the cache about changes.
//!
//! # Concurrency
//! Session threads. A change of size takes the inode's `io` exclusively; all other locks are held
//! briefly.

use std::sync::Arc;

use rfs_proto::{
    Attr, DirPage, Errno, MAX_NAME, MAX_SYMLINK, Marks, Owner, ROOT_INO, RenameFlags, Reply, Request,
    ServerStats, SetAttr, StatFs, Verified,
};

use crate::{
    Client, ClientError,
    cache::Since,
    inode::{Inode, visible_attrs},
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

pub(crate) fn wrong_kind<T>() -> Result<T, ClientError> {
    Err(ClientError::Protocol("a reply of the wrong kind"))
}

pub(crate) fn attr_of(reply: Reply) -> Result<Attr, ClientError> {
    match reply {
        Reply::Attr(attr) => Ok(attr),
        _ => wrong_kind(),
    }
}

impl Client {
    pub(crate) fn call_attr(&self, request: &Request<'_>) -> Result<Attr, ClientError> {
        self.call(request).and_then(attr_of)
    }

    pub(crate) fn call_done(&self, request: &Request<'_>) -> Result<(), ClientError> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => wrong_kind(),
        }
    }

    /// Takes a reference to an inode whose attributes were requested at `since`.
    pub(crate) fn referenced(&self, since: Since, attr: Attr) -> Attr {
        self.telling().reference(since, &attr);
        self.inodes.get(attr.ino).map_or(attr, |inode| with_pending(&inode, attr))
    }

    /// Creates an inode with a name.
    fn make(&self, request: &Request<'_>) -> Result<Attr, ClientError> {
        let _arrival = self.arrival();
        let since = self.since();
        Ok(self.referenced(since, self.call_attr(request)?))
    }

    /// Returns `count` references.
    pub fn forget(&self, ino: u64, count: u64) {
        if ino == ROOT_INO {
            // The caller never looked the root up.
            return;
        }
        self.inodes.release(ino, count);
    }

    /// Returns an inode's attributes. Reads them one-sidedly if the inode is referenced, unless a
    /// call is due to make them cacheable.
    pub fn getattr(&self, ino: u64) -> Result<Attr, ClientError> {
        let Some(inode) = self.inodes.get(ino) else {
            return self.call_attr(&Request::GetAttr { ino });
        };
        inode.interest.used();
        let asks = self.cache.is_on() && {
            let mut attr_caching = inode.attr_caching.lock();
            !attr_caching.is_cacheable() && attr_caching.call_is_due()
        };
        self.attributes(&inode, asks)
    }

    /// Returns an inode's marks, from the cache if it has them.
    pub(crate) fn marks(&self, ino: u64) -> Result<Marks, ClientError> {
        let known = self.inodes.get(ino).and_then(|inode| inode.attr_caching.lock().marks());
        known.map_or_else(|| self.getattr(ino).map(|attr| attr.marks), Ok)
    }

    /// Returns a referenced inode's attributes, by a call or one-sidedly.
    pub(crate) fn attributes(&self, inode: &Inode, asks: bool) -> Result<Attr, ClientError> {
        let ino = inode.ino;
        let start = self.before_look();
        let since = self.since();
        let kept = inode.attr_caching.lock().is_cacheable();
        // Reading a mapped record costs less than this shortcut.
        if kept && !asks && !self.records.is_mapped() {
            self.remote.ready()?;
            if let Some(attr) = self.after_own_change(since, inode) {
                return Ok(with_pending(inode, attr));
            }
        }
        let read = match inode.slot() {
            Some(slot) if !asks => self.records.read(ino, slot)?,
            _ => None,
        };
        let attr = match read {
            // The attributes were cacheable before the read. They still are, unless something was
            // recalled meanwhile; the caller checks that.
            Some(seen) if kept => {
                self.telling().learn(since, inode, seen.attr.marks);
                Attr { marks: seen.attr.marks | Marks::KEEP, ..seen.attr }
            }
            Some(seen) => seen.attr,
            None => {
                let attr = self.call_attr(&Request::GetAttr { ino })?;
                self.answered(since, inode, &attr);
                attr
            }
        };
        inode.set_slot(attr.slot);
        inode.saw(start, attr.layout_generation, attr.size);
        Ok(with_pending(inode, attr))
    }

    /// Changes attributes. A change of size blocks until reads and writes in flight have ended.
    pub fn setattr(&self, ino: u64, changes: &SetAttr) -> Result<Attr, ClientError> {
        let request = Request::SetAttr { ino, changes: *changes };
        let Some(inode) = self.inodes.get(ino) else {
            return self.call_attr(&request);
        };
        let issued_era = self.remote.era_in_use();
        if changes.atime.is_some() && inode.access.forget() {
            // A report of an older read must not arrive after the time that is set now.
            self.remote.finish_calls()?;
        }
        let since = self.since();
        let attr = if changes.size.is_some() {
            let _exclusive = inode.exclusive();
            // A failed request may have taken effect, or may do so later.
            let start = self.before_look();
            let attr = self.call_guarded(&[&inode], issued_era, &request).and_then(attr_of);
            let attr = attr.inspect_err(|_| self.lose_layout(&inode))?;
            inode.saw(start, attr.layout_generation, attr.size);
            // Voids a layout in flight, too.
            inode.layout.write().recalled(start.era, attr.layout_generation);
            attr
        } else {
            self.call_guarded(&[&inode], issued_era, &request).and_then(attr_of)?
        };
        self.answered(since, &inode, &attr);
        if changes.size.is_some() || changes.mtime.is_some() {
            inode.times.lock().reset();
        }
        Ok(with_pending(&inode, attr))
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
        if self.cache.is_on() {
            self.cache.dir_names.lock().made(attr.ino);
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
        match self.call(&Request::Readlink { ino })? {
            Reply::Target(target) => Ok(target),
            _ => wrong_kind(),
        }
    }

    /// Creates a hard link. Takes a reference.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr, ClientError> {
        check_name(name)?;
        self.make(&Request::Link { ino, parent, name })
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

    /// Renames. With `whiteout`, leaves a whiteout of that owner under the old name.
    pub fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
        whiteout: Option<Owner>,
    ) -> Result<(), ClientError> {
        check_name(name)?;
        check_name(new_name)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.call_removal(&Request::Rename { parent, name, new_parent, new_name, flags, whiteout }, || {
            self.inodes.renamed((parent, name), (new_parent, new_name), exchange);
        })
    }

    /// Carries out a request that may remove the last name of an inode. On success, `done` notes
    /// the change of the names.
    fn call_removal(&self, request: &Request<'_>, done: impl FnOnce()) -> Result<(), ClientError> {
        let unlinked = match self.call(request) {
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
            self.cache.prefetch.lock().remove_inode(ino);
            self.inodes.unlinked(ino);
        }
        Ok(())
    }

    /// Returns up to `max_entries` entries of a directory after `cookie`. Takes no references.
    pub fn readdir(&self, ino: u64, cookie: u64, max_entries: u32) -> Result<DirPage, ClientError> {
        let listing = self.lists(ino, cookie);
        let mut page = match self.call(&Request::ReadDir { ino, cookie, max_entries })? {
            Reply::Dir(page) => page,
            _ => return wrong_kind(),
        };
        self.listed(listing, ino, cookie, &page);
        for entry in &mut page.entries {
            if let Some(inode) = self.inodes.get(entry.attr.ino) {
                entry.attr = with_pending(&inode, entry.attr);
            }
        }
        Ok(page)
    }

    /// Returns the totals of the export.
    pub fn statfs(&self) -> Result<StatFs, ClientError> {
        self.remote.finish_calls()?;
        match self.call(&Request::StatFs)? {
            Reply::StatFs(totals) => Ok(totals),
            _ => wrong_kind(),
        }
    }

    /// Has the server compare blocks with their checksums, beginning at an inode and offset.
    /// EOPNOTSUPP if the export has no checksums.
    pub fn verify(&self, (ino, offset): (u64, u64)) -> Result<Verified, ClientError> {
        match self.call(&Request::Verify { ino, offset })? {
            Reply::Verified(verified) => Ok(verified),
            _ => wrong_kind(),
        }
    }

    /// Returns the server's counters.
    pub fn server_stats(&self) -> Result<ServerStats, ClientError> {
        match self.call(&Request::Stats)? {
            Reply::Stats(stats) => Ok(stats),
            _ => wrong_kind(),
        }
    }

    /// Returns the names of an inode that the caller may have cached.
    pub fn known_names(&self, ino: u64) -> impl Iterator<Item = (u64, Arc<[u8]>)> + use<> {
        self.inodes.names(ino).into_iter()
    }

    /// Notes that the caller has cached these attributes, which its thread `thread` asked for.
    pub fn told(&self, attr: &Attr, thread: u32) {
        if let Some(inode) = self.inodes.get(attr.ino) {
            inode.attr_readers.add(thread);
            *inode.told_attrs.lock() = Some(visible_attrs(attr));
        }
    }

    /// Notes that `thread` has changed an inode. Returns true if another thread has got its
    /// attributes since the last change.
    pub fn others_were_told(&self, ino: u64, thread: u32) -> bool {
        self.inodes.get(ino).is_some_and(|inode| inode.attr_readers.take_others(thread))
    }

    /// Returns the permission bits and marks of an inode. They are current if records are mapped;
    /// else they are those that the caller was [`told`](Self::told) last.
    pub fn privileges(&self, ino: u64) -> Result<(u32, Marks), ClientError> {
        let told = self.inodes.get(ino).and_then(|inode| *inode.told_attrs.lock());
        match told {
            Some(told) if !self.records.is_mapped() => Ok((told.perm, told.marks)),
            _ => self.getattr(ino).map(|attr| (attr.perm, attr.marks)),
        }
    }

    /// Notes that the caller has dropped the attributes that it was told.
    pub(crate) fn forget_told_attrs(&self, ino: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            *inode.told_attrs.lock() = None;
        }
    }

    /// Returns true if these attributes differ from those that the caller was [`told`](Self::told)
    /// last.
    pub fn differs_from_told(&self, attr: &Attr) -> bool {
        self.inodes.get(attr.ino).is_none_or(|inode| *inode.told_attrs.lock() != Some(visible_attrs(attr)))
    }
}

/// Fills in write and access times that are not published yet.
pub(crate) fn with_pending(inode: &Inode, mut attr: Attr) -> Attr {
    if let Some(time) = inode.times.lock().pending() {
        attr.mtime = time;
        attr.ctime = attr.ctime.max(time);
    }
    attr.atime = inode.access.latest(attr.atime);
    attr
}
