//! Names and inodes, with the rules of POSIX as Linux file systems read them. No I/O, no locks, no
//! clock.
//!
//! Each operation either fails without a change, or returns its [`Effects`]. These are the inodes
//! whose records must be published, and an inode that lost its last name. Clients' kernels check
//! permissions, including the sticky bit.
//!
//! # Concurrency
//! None; an operation has exclusive access to its inodes ([`Inodes`]).

pub mod directory;
pub mod inode;
pub mod inodes;
pub mod names;
mod rename;
#[cfg(test)]
mod tests;
pub mod xattr;

use rfs_proto::{Errno, FileKind, mode::SGID};
use seeded_faults::seeded;

pub use directory::Directory;
pub use inode::{Body, Inode, New};
pub use inodes::{Inodes, InodesMut};
pub use names::{Effects, Place, check_name};
pub use xattr::{XattrName, Xattrs};

/// Maximum number of links of an inode.
pub const MAX_LINKS: u32 = i32::MAX as u32;

/// The names and inodes of an export.
#[derive(Debug)]
pub struct Namespace<I> {
    inodes: I,
    max_links: u32,
}

impl<I: Inodes> Namespace<I> {
    /// Returns the namespace of these inodes.
    pub fn new(inodes: I) -> Namespace<I> {
        Namespace { inodes, max_links: MAX_LINKS }
    }

    /// Returns the inodes.
    pub fn inodes(&self) -> &I {
        &self.inodes
    }

    /// Returns the inodes for changes.
    pub fn inodes_mut(&mut self) -> &mut I {
        &mut self.inodes
    }

    /// Requests an inode, which need not exist.
    pub fn need(&mut self, ino: u64) -> Result<(), I::Stop> {
        self.inodes.need(ino)
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    pub fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.inodes.get(ino)
    }

    /// Returns a directory.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist, ENOTDIR if it is no directory.
    pub fn directory(&self, ino: u64) -> Result<&Directory, Errno> {
        self.get(ino)?.directory().ok_or(Errno::ENOTDIR)
    }

    /// Returns the inode of a name.
    ///
    /// # Errors
    /// ESTALE if the directory is removed: it has no names and gets none.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        check_name(name)?;
        let directory = self.directory(parent)?;
        match name {
            b"." => Ok(parent),
            b".." => Ok(directory.parent),
            _ if self.get(parent)?.nlink == 0 => Err(Errno::ESTALE),
            _ => directory.get(name).ok_or(Errno::ENOENT),
        }
    }

    /// Returns the inode that has a name already; `None` if the name is free and valid.
    pub fn probe(&self, parent: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        match self.lookup(parent, name) {
            Ok(ino) => Ok(Some(ino)),
            Err(Errno::ENOENT) if !name.is_empty() => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl<I: InodesMut> Namespace<I> {
    /// Returns an inode for changes.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    pub fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(ino)
    }

    /// Removes an inode without names.
    pub fn remove_inode(&mut self, ino: u64) -> Option<Inode> {
        self.inodes.remove(ino)
    }

    /// Checks that [`Namespace::make`] will succeed.
    pub fn may_make(&mut self, parent: u64, name: &[u8], kind: FileKind) -> Result<(), I::Stop> {
        if self.probe(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if kind == FileKind::Directory && self.get(parent)?.nlink >= self.max_links {
            return Err(Errno::EMLINK.into());
        }
        self.inodes.fresh().map(drop)
    }

    /// Makes an inode with a name. The effects do not list the new inode, whose record does not
    /// exist yet.
    pub fn make(
        &mut self,
        parent: u64,
        name: &[u8],
        new: New<'_>,
        now: i64,
    ) -> Result<(u64, Effects), I::Stop> {
        self.may_make(parent, name, new.kind)?;
        let ino = self.make_inode(parent, new, now)?;
        self.change_entries(Place { parent, name }, now, |directory, nlink| {
            directory.set(name, ino);
            *nlink += u32::from(new.kind == FileKind::Directory);
        });
        Ok((ino, Effects { touched: vec![parent], ..Effects::default() }))
    }

    /// Checks that [`Namespace::make_nameable`] will succeed.
    pub fn may_make_nameable(&mut self, parent: u64) -> Result<(), I::Stop> {
        self.directory(parent)?;
        if self.get(parent)?.nlink == 0 {
            return Err(Errno::ESTALE.into());
        }
        self.inodes.fresh().map(drop)
    }

    /// Makes a file that may get a name in any directory. It counts as linked until
    /// [`Namespace::unname`]. A directory is not changed.
    ///
    /// # Errors
    /// ESTALE if the directory is removed, ENOTDIR if it is no directory.
    pub fn make_nameable(&mut self, parent: u64, new: New<'_>, now: i64) -> Result<u64, I::Stop> {
        self.may_make_nameable(parent)?;
        let ino = self.make_inode(parent, new, now)?;
        self.get_mut(ino)?.is_nameable = true;
        Ok(ino)
    }

    /// Takes the link of a file that [`Namespace::make_nameable`] has made.
    pub fn unname(&mut self, ino: u64, now: i64) -> Result<Effects, Errno> {
        let orphaned = self.lose_name(ino, now)?;
        Ok(Effects { touched: vec![ino], orphaned, ..Effects::default() })
    }

    /// Makes an inode for a name in a directory. The directory and the new number were requested.
    fn make_inode(&mut self, parent: u64, new: New<'_>, now: i64) -> Result<u64, I::Stop> {
        let ino = self.inodes.fresh()?;
        let directory = self.get(parent)?;
        let mut child = Inode::new(new, parent, now);
        if directory.perm & SGID != 0 {
            child.gid = directory.gid;
            if child.is_directory() {
                child.perm |= SGID;
            }
        }
        let default = directory.xattrs.as_ref().and_then(|xattrs| xattrs.default.as_ref());
        child.begin_acls(default, new.umask);
        self.inodes.insert(ino, child);
        Ok(ino)
    }

    /// Adds a name to an inode. The inode and the directory were requested.
    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], now: i64) -> Result<Effects, Errno> {
        let inode = self.get(ino)?;
        let (is_directory, nlink, is_nameable) = (inode.is_directory(), inode.nlink, inode.is_nameable);
        if self.probe(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if is_directory {
            return Err(Errno::EPERM);
        }
        if nlink == 0 && !is_nameable {
            return Err(Errno::ENOENT);
        }
        if nlink >= self.max_links {
            return Err(Errno::EMLINK);
        }
        let inode = self.get_mut(ino)?;
        inode.nlink += u32::from(!seeded!(LinkUncounted));
        inode.is_nameable = false;
        inode.ctime = now;
        self.change_entries(Place { parent, name }, now, |directory, _| directory.set(name, ino));
        Ok(Effects { touched: vec![parent, ino], ..Effects::default() })
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&mut self, parent: u64, name: &[u8], now: i64) -> Result<Effects, I::Stop> {
        let ino = self.lookup(parent, name)?;
        self.need(ino)?;
        if self.get(ino)?.is_directory() {
            return Err(Errno::EISDIR.into());
        }
        self.change_entries(Place { parent, name }, now, |directory, _| directory.remove(name));
        let orphaned = self.lose_name(ino, now)?;
        Ok(Effects { touched: vec![parent, ino], orphaned, ..Effects::default() })
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, parent: u64, name: &[u8], now: i64) -> Result<Effects, I::Stop> {
        let ino = self.lookup(parent, name)?;
        self.need(ino)?;
        match name {
            b"." => return Err(Errno::EINVAL.into()),
            b".." => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        if !self.directory(ino)?.is_empty() && !seeded!(FullDirectoryRemoved) {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.change_entries(Place { parent, name }, now, |directory, nlink| {
            directory.remove(name);
            *nlink -= 1;
        });
        let orphaned = self.lose_name(ino, now)?;
        Ok(Effects { touched: vec![parent, ino], orphaned, ..Effects::default() })
    }

    /// Changes a name of a directory and the directory's times. Does nothing if the inode is no
    /// directory.
    fn change_entries(
        &mut self,
        Place { parent: ino, name }: Place<'_>,
        now: i64,
        change: impl FnOnce(&mut Directory, &mut u32),
    ) {
        if let Ok(inode) = self.inodes.get_mut(ino)
            && let Body::Directory(directory) = &mut inode.body
        {
            change(directory, &mut inode.nlink);
            inode.mtime = now;
            inode.ctime = now;
            self.inodes.entry_changed(ino, name);
        }
    }

    /// Removes a link from the count. Returns the inode if that was its last.
    fn lose_name(&mut self, ino: u64, now: i64) -> Result<Option<u64>, Errno> {
        let inode = self.get_mut(ino)?;
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink.saturating_sub(1) };
        inode.ctime = now;
        Ok((inode.nlink == 0).then_some(ino))
    }
}
