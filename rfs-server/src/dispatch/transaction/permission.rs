//! Permission checks for sessions whose key has a squash: the server checks each of their
//! requests.
//!
//! A check reads inodes that the transaction has locked, before it changes any. For a session
//! without a squash a check costs one load.
//!
//! # Concurrency
//! Belongs to a transaction, as `view`.

use rfs_proto::{
    Errno, FileKind, Owner, Request, SetAttr, SetTime,
    mode::{READ, SEARCH, SGID, STICKY, SUID, WRITE},
};

use super::{
    locked_inodes::Stop,
    view::{View, WriteView},
};
use crate::{
    dispatch::state::shards::Mode,
    metadata::namespace::{
        inode::{Inode, New},
        names::Place,
        xattr::XattrName,
    },
    session::squash::Squash,
};

fn denied(allowed: bool) -> Result<(), Errno> {
    if allowed { Ok(()) } else { Err(Errno::EACCES) }
}

fn forbidden(allowed: bool) -> Result<(), Errno> {
    if allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// Refuses requests that only root may send, for any inode. Each request is listed, so that a new
/// request needs a decision.
///
/// # Errors
/// EPERM.
pub(in crate::dispatch) fn may_ask(squash: Squash, request: &Request<'_>) -> Result<(), Errno> {
    if squash.is_none() {
        return Ok(());
    }
    let is_device =
        |mode| matches!(FileKind::from_mode(mode), Some(FileKind::CharDevice | FileKind::BlockDevice));
    match request {
        // A whiteout is no device.
        Request::Mknod { mode, rdev, .. } => forbidden(
            !is_device(*mode) || (*rdev == 0 && FileKind::from_mode(*mode) == Some(FileKind::CharDevice)),
        ),
        // The reply names files of all users.
        Request::Verify { .. } => Err(Errno::EPERM),
        Request::SetXattr { name, .. } | Request::RemoveXattr { name, .. } => {
            forbidden(!name.starts_with(b"trusted.") && !name.starts_with(b"security."))
        }
        Request::GetXattr { name, .. } if name.starts_with(b"trusted.") => Err(Errno::ENODATA),
        // The dispatcher checks the inner request.
        Request::Once { .. } => Ok(()),
        // These concern the session, and no file.
        Request::Attach { .. }
        | Request::Detach
        | Request::StatFs
        | Request::Stats
        | Request::Recalls { .. }
        | Request::ReturnNames { .. }
        | Request::ConfirmLocks { .. }
        | Request::Grants
        | Request::StopWaiting { .. }
        | Request::Insist { .. }
        | Request::Close { .. }
        | Request::Forget { .. }
        | Request::ReachStore { .. }
        | Request::FenceStore { .. } => Ok(()),
        // Their transactions check them.
        Request::Lookup { .. }
        | Request::LookupAhead { .. }
        | Request::GetAttr { .. }
        | Request::Birth { .. }
        | Request::SetAttr { .. }
        | Request::Readlink { .. }
        | Request::Create { .. }
        | Request::Tmpfile { .. }
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::Open { .. }
        | Request::Layout { .. }
        | Request::Allocate { .. }
        | Request::Fallocate { .. }
        | Request::Write { .. }
        | Request::Copy { .. }
        | Request::Accessed { .. }
        | Request::ReadDir { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::XattrPart { .. }
        | Request::Lock { .. }
        | Request::TestLock { .. }
        | Request::HoldPages { .. }
        | Request::DropPages { .. } => Ok(()),
    }
}

/// Removes names that only root may see from a list of names. Each name ends with a zero byte.
pub(in crate::dispatch) fn visible_names(squash: Squash, names: Vec<u8>) -> Vec<u8> {
    if squash.is_none() {
        return names;
    }
    let shown = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(b"trusted."));
    shown.flatten().copied().collect()
}

impl<M: Mode> View<'_, M> {
    /// Returns whether the server checks the session's requests.
    pub(in crate::dispatch) fn is_squashed(&self) -> bool {
        !self.squash().is_none()
    }

    fn squash(&self) -> Squash {
        self.asker.map_or(Squash::None, |asker| asker.squash())
    }

    fn may(&self, ino: u64, check: impl FnOnce(Squash, &Inode) -> Result<(), Errno>) -> Result<(), Errno> {
        match self.squash() {
            Squash::None => Ok(()),
            squash => check(squash, self.namespace.get(ino)?),
        }
    }

    /// Checks a lookup of a name.
    pub(in crate::dispatch) fn may_search(&self, directory: u64) -> Result<(), Errno> {
        self.may(directory, |squash, inode| denied(squash.permits(inode, SEARCH)))
    }

    /// Checks a listing of names.
    pub(in crate::dispatch) fn may_list(&self, directory: u64) -> Result<(), Errno> {
        self.may(directory, |squash, inode| denied(squash.permits(inode, READ)))
    }

    /// Checks a change of names.
    pub(in crate::dispatch) fn may_change(&self, directory: u64) -> Result<(), Errno> {
        self.may(directory, |squash, inode| denied(squash.permits(inode, WRITE | SEARCH)))
    }

    /// Checks a read of bytes or extended attributes. Execute permission suffices: a kernel reads
    /// the files that it executes.
    pub(in crate::dispatch) fn may_read(&self, ino: u64) -> Result<(), Errno> {
        self.may(ino, |squash, inode| {
            let executes = inode.kind == FileKind::Regular && squash.permits(inode, SEARCH);
            denied(squash.permits(inode, READ) || executes)
        })
    }

    /// Checks a change of bytes: the session has the file open to write, or may open it so.
    pub(in crate::dispatch) fn may_write(&self, ino: u64) -> Result<(), Errno> {
        self.may(ino, |squash, inode| denied(self.has_to_write(ino) || squash.permits(inode, WRITE)))
    }

    fn has_to_write(&self, ino: u64) -> bool {
        self.asker.is_some_and(|asker| self.open_files(ino).of(asker.id(), ino).1)
    }

    /// Checks an open.
    pub(in crate::dispatch) fn may_open(&self, ino: u64, write: bool) -> Result<(), Errno> {
        if write { self.may_write(ino) } else { self.may_read(ino) }
    }

    /// Checks a change of attributes.
    pub(in crate::dispatch) fn may_set(&self, ino: u64, changes: &SetAttr) -> Result<(), Errno> {
        self.may(ino, |squash, inode| {
            let owns = squash.owns(inode);
            squash_gives(squash, inode, changes)?;
            forbidden(owns || changes.perm.is_none())?;
            if changes.size.is_some() {
                self.may_write(ino)?;
            }
            let at = |time| matches!(time, Some(SetTime::At(_)));
            // A mount with write-back sets the time of the write later.
            let sets = at(changes.atime) || at(changes.mtime) || changes.ctime.is_some();
            forbidden(owns || !sets || self.has_to_write(ino))?;
            let touches = changes.atime.is_some() || changes.mtime.is_some() || changes.drop_privileges;
            if owns || !touches { Ok(()) } else { self.may_write(ino) }
        })
    }

    /// Checks a change of an extended attribute or of an ACL.
    pub(in crate::dispatch) fn may_set_xattr(&self, ino: u64, name: XattrName<'_>) -> Result<(), Errno> {
        match name {
            XattrName::Plain(_) => self.may_write(ino),
            XattrName::Access | XattrName::Default => {
                self.may(ino, |squash, inode| forbidden(squash.owns(inode)))
            }
        }
    }

    /// Checks a new name for an inode, as a kernel does with `protected_hardlinks`.
    pub(in crate::dispatch) fn may_link(&self, ino: u64) -> Result<(), Errno> {
        self.may(ino, |squash, inode| {
            let plain = inode.kind == FileKind::Regular && inode.perm & (SUID | SGID) == 0;
            forbidden(squash.owns(inode) || (plain && squash.permits(inode, READ | WRITE)))
        })
    }

    /// Returns whether an ACL that the session sets removes set-group-ID, regardless of the
    /// client's request.
    pub(in crate::dispatch) fn drops_setgid(&self, ino: u64) -> bool {
        self.namespace.get(ino).is_ok_and(|inode| !self.squash().is_in(inode.gid))
    }

    /// Returns the permission bits that the session may give to an inode of this group.
    pub(in crate::dispatch) fn permissions(&self, perm: u32, gid: u32, kind: FileKind) -> u32 {
        self.squash().permissions(perm, gid, kind == FileKind::Directory)
    }

    /// Returns the owner of an inode that the session makes for `owner`.
    pub(in crate::dispatch) fn owner(&self, owner: Owner) -> Owner {
        self.squash().owner(owner)
    }

    /// Returns the new inode with an owner and permission bits that the session may give it.
    pub(in crate::dispatch) fn new_inode<'n>(&self, directory: u64, new: New<'n>) -> Result<New<'n>, Errno> {
        if self.squash().is_none() {
            return Ok(new);
        }
        let Owner { uid, gid } = self.owner(Owner { uid: new.uid, gid: new.gid });
        let gid_of_new = self.namespace.get(directory)?.group_of_new(gid);
        Ok(New { uid, gid, perm: self.permissions(new.perm, gid_of_new, new.kind), ..new })
    }
}

fn squash_gives(squash: Squash, inode: &Inode, changes: &SetAttr) -> Result<(), Errno> {
    match (changes.uid, changes.gid) {
        (None, None) => Ok(()),
        (uid, gid) => squash.may_give(inode, uid, gid),
    }
}

impl WriteView<'_> {
    /// Checks the removal of a name: in a sticky directory, only the owner may remove it. Locks the
    /// inode.
    pub(in crate::dispatch) fn may_remove(&mut self, Place { parent, name }: Place<'_>) -> Result<(), Stop> {
        if self.squash().is_none() {
            return Ok(());
        }
        self.may_change(parent)?;
        let Some(ino) = self.namespace.probe(parent, name)? else { return Ok(()) };
        self.need(ino)?;
        let squash = self.squash();
        let (directory, inode) = (self.namespace.get(parent)?, self.namespace.get(ino)?);
        let free = directory.perm & STICKY == 0 || squash.owns(inode) || squash.owns(directory);
        Ok(forbidden(free)?)
    }

    /// Checks a rename. A directory that gets another parent is changed itself.
    pub(in crate::dispatch) fn may_rename(&mut self, from: Place<'_>, to: Place<'_>) -> Result<(), Stop> {
        if self.squash().is_none() {
            return Ok(());
        }
        self.may_remove(from)?;
        self.may_remove(to)?;
        if from.parent == to.parent {
            return Ok(());
        }
        for place in [from, to] {
            let Some(ino) = self.namespace.probe(place.parent, place.name)? else { continue };
            if self.namespace.get(ino)?.kind == FileKind::Directory {
                self.may(ino, |squash, inode| denied(squash.permits(inode, WRITE)))?;
            }
        }
        Ok(())
    }
}
