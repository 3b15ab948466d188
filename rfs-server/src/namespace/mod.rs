//! Names and inodes: pure metadata with the rules of POSIX, as Linux file systems read them.
//!
//! Every operation either changes nothing and says why, or says which inodes it touched, so that their records can
//! be published, and which lost its last name. Permission is the clients' kernels' business, the sticky bit included.
//!
//! Threading: none; an operation has its inodes to itself ([`Inodes`]). It knows nothing of memory, sessions or open files.

mod acl;
mod directory;
mod inode;
mod inodes;
mod rename;
#[cfg(test)]
mod tests;
mod xattr;

use rfs_proto::{Errno, FileKind, MAX_NAME, Owner};
use seeded_faults::{Fault, seeded};

pub use acl::Acl;
pub use directory::Directory;
pub use inode::{Body, Inode};
pub use inodes::{Inodes, InodesMut};
pub use rename::Place;
pub use xattr::{XattrName, Xattrs};

/// The set-group-ID bit: new entries of such a directory get its group.
const SETGID: u32 = 0o2000;

/// Most links of an inode, and most subdirectories of a directory but for two.
pub const MAX_LINKS: u32 = i32::MAX as u32;

/// What an operation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Inodes whose attributes changed.
    pub touched: Vec<u64>,
    /// An inode that has no name any more. It still exists.
    pub orphaned: Option<u64>,
    /// Directories that lie in another one now.
    pub moved: Vec<u64>,
    /// An inode that was made for the old place of one that was renamed.
    pub made: Option<u64>,
}

/// A new inode.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits; others are ignored.
    pub perm: u32,
    /// Taken from the permission bits where the directory has no default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory decides.
    pub gid: u32,
    /// Device number; ignored for what is no device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Its record.
    pub slot: u32,
}

impl New<'_> {
    /// What says where overlayfs has layers that there is nothing, whatever lies below.
    pub fn whiteout(Owner { uid, gid }: Owner, slot: u32) -> New<'static> {
        New { kind: FileKind::CharDevice, perm: 0, umask: 0, uid, gid, rdev: 0, target: b"", slot }
    }
}

/// Names, and the inodes that they stand for.
#[derive(Debug)]
pub struct Namespace<I> {
    inodes: I,
    max_links: u32,
}

impl<I: Inodes> Namespace<I> {
    /// The names in these.
    pub fn new(inodes: I) -> Namespace<I> {
        Namespace { inodes, max_links: MAX_LINKS }
    }

    /// What it is made of.
    pub fn inodes(&self) -> &I {
        &self.inodes
    }

    /// What it is made of, to change.
    pub fn inodes_mut(&mut self) -> &mut I {
        &mut self.inodes
    }

    /// Asks for an inode, which need not exist.
    pub fn need(&mut self, ino: u64) -> Result<(), I::Stop> {
        self.inodes.need(ino)
    }

    /// An inode. ESTALE if it is gone.
    pub fn get(&self, ino: u64) -> Result<&Inode, Errno> {
        self.inodes.get(ino)
    }

    /// A directory. ESTALE if it is gone, ENOTDIR if it is none.
    pub fn directory(&self, ino: u64) -> Result<&Directory, Errno> {
        self.get(ino)?.directory().ok_or(Errno::ENOTDIR)
    }

    /// A name's inode. ESTALE if the directory has been removed: it has no names and gets none.
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

    /// Whether a name can be made: the inode that has it already, if any.
    pub fn probe(&self, parent: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        match self.lookup(parent, name) {
            Ok(ino) => Ok(Some(ino)),
            Err(Errno::ENOENT) if !name.is_empty() => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl<I: InodesMut> Namespace<I> {
    /// An inode, to change. ESTALE if it is gone.
    pub fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(ino)
    }

    /// Takes an inode without names out for good.
    pub fn remove_inode(&mut self, ino: u64) -> Option<Inode> {
        self.inodes.remove(ino)
    }

    /// Whether [`Namespace::make`] would succeed. If so, it will.
    pub fn may_make(&mut self, parent: u64, name: &[u8], kind: FileKind) -> Result<(), I::Stop> {
        if self.probe(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if kind == FileKind::Directory && self.get(parent)?.nlink >= self.max_links {
            return Err(Errno::EMLINK.into());
        }
        self.inodes.fresh().map(drop)
    }

    /// Makes an inode with a name. The new inode is not among those touched: its record is yet to be made.
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

    /// Makes an inode for a name in a directory, which has been asked for as the number has.
    fn make_inode(&mut self, parent: u64, new: New<'_>, now: i64) -> Result<u64, I::Stop> {
        let ino = self.inodes.fresh()?;
        let directory = self.get(parent)?;
        let mut child = Inode::new(new, parent, now);
        if directory.perm & SETGID != 0 {
            child.gid = directory.gid;
            if child.is_directory() {
                child.perm |= SETGID;
            }
        }
        let default = directory.xattrs.as_ref().and_then(|xattrs| xattrs.default.as_ref());
        child.begin_acls(default, new.umask);
        self.inodes.insert(ino, child);
        Ok(ino)
    }

    /// Gives an inode one more name. Both have been asked for.
    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], now: i64) -> Result<Effects, Errno> {
        let inode = self.get(ino)?;
        let (is_directory, nlink) = (inode.is_directory(), inode.nlink);
        if self.probe(parent, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if is_directory {
            return Err(Errno::EPERM);
        }
        if nlink == 0 {
            return Err(Errno::ENOENT);
        }
        if nlink >= self.max_links {
            return Err(Errno::EMLINK);
        }
        let inode = self.get_mut(ino)?;
        inode.nlink += u32::from(!seeded(Fault::LinkUncounted));
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
        if !self.directory(ino)?.is_empty() && !seeded(Fault::FullDirectoryRemoved) {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.change_entries(Place { parent, name }, now, |directory, nlink| {
            directory.remove(name);
            *nlink -= 1;
        });
        let orphaned = self.lose_name(ino, now)?;
        Ok(Effects { touched: vec![parent, ino], orphaned, ..Effects::default() })
    }

    /// Changes a name of a directory, and with it its times. Does nothing for what is no directory.
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

    /// Counts a name off: the inode itself if that was the last.
    fn lose_name(&mut self, ino: u64, now: i64) -> Result<Option<u64>, Errno> {
        let inode = self.get_mut(ino)?;
        inode.nlink = if inode.is_directory() { 0 } else { inode.nlink.saturating_sub(1) };
        inode.ctime = now;
        Ok((inode.nlink == 0).then_some(ino))
    }
}

/// A name from outside: 1 to [`MAX_NAME`] bytes, no `/`, no NUL.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ENOENT),
        _ if name.len() > MAX_NAME => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
