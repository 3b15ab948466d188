//! An inode. The table of records has the sizes of regular files and the times of client writes.
//!
//! # Concurrency
//! None; the caller holds the inode's shard lock.

use std::num::NonZeroI64;

use rfs_proto::{
    Attr, Errno, ExpectedOwner, FileKind, Marks, Owner,
    acl::Acl,
    mode::{GROUP_EXEC, SGID, SUID},
    record::Space,
};
use seeded_faults::seeded;

use super::{
    directory::Directory,
    xattr::{XattrName, Xattrs},
};
use crate::space::file_extents::FileMap;

/// Size that a directory shows.
const DIRECTORY_SIZE: u64 = 4096;

/// Description of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits; others are ignored.
    pub perm: u32,
    /// Removed from the permission bits if the directory has no default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group; a set-group-ID directory overrides it.
    pub gid: u32,
    /// Device number; ignored unless the kind is a device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Index of its record in the table.
    pub slot: u32,
}

impl New<'_> {
    /// Returns a regular file of a user and a group.
    pub fn file(perm: u32, umask: u32, (uid, gid): (u32, u32)) -> New<'static> {
        New { kind: FileKind::Regular, perm, umask, uid, gid, rdev: 0, target: b"", slot: 0 }
    }

    /// Returns a whiteout: overlayfs shows it as an absent name, and it hides the name in lower
    /// layers.
    pub fn whiteout(Owner { uid, gid }: Owner, slot: u32) -> New<'static> {
        New { kind: FileKind::CharDevice, perm: 0, umask: 0, uid, gid, rdev: 0, target: b"", slot }
    }
}

/// Content of an inode, by kind.
#[derive(Clone, Debug)]
pub enum Body {
    /// Extents of a regular file.
    File(FileMap),
    /// Entries of a directory.
    Directory(Directory),
    /// Target of a symbolic link.
    Symlink(Box<[u8]>),
    /// FIFO, socket or device node.
    Special,
}

/// An inode: its attributes, its content and its extended attributes.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Kind; matches `body`.
    pub kind: FileKind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Last access time.
    pub atime: i64,
    /// Last change of contents by the server.
    pub mtime: i64,
    /// Last change of attributes by the server.
    pub ctime: i64,
    /// Creation; `None` if the log of an older server did not have it.
    pub birth: Option<NonZeroI64>,
    /// Index of its record in the table.
    pub slot: u32,
    /// Raised whenever the file loses extents. It is odd while data of the file moves
    /// ([`rfs_proto::moves`]).
    pub layout_generation: u64,
    /// The file has never had a name, and may get one.
    pub is_nameable: bool,
    /// The inode has been locked at least once.
    pub was_locked: bool,
    /// Sessions may cache pages of the file, while any session has it open for writing.
    pub pages_held: bool,
    /// Session that last opened, resized or locked the inode.
    pub visitor: u64,
    /// Number of changes of `visitor`.
    pub visits: u64,
    /// Extended attributes; `None` before the first.
    pub xattrs: Option<Box<Xattrs>>,
    /// Content, by kind.
    pub body: Body,
}

impl Inode {
    /// Returns a new inode; `parent` counts if it is a directory.
    pub fn new(new: New<'_>, parent: u64, now: i64) -> Inode {
        let is_device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Inode {
            kind: new.kind,
            perm: new.perm & 0o7777,
            nlink: if new.kind == FileKind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            rdev: if is_device { new.rdev } else { 0 },
            atime: now,
            mtime: now,
            ctime: now,
            birth: NonZeroI64::new(now),
            slot: new.slot,
            layout_generation: 0,
            is_nameable: false,
            was_locked: false,
            pages_held: false,
            visitor: 0,
            visits: 0,
            xattrs: None,
            body: match new.kind {
                FileKind::Regular => Body::File(FileMap::default()),
                FileKind::Directory => Body::Directory(Directory::new(parent)),
                FileKind::Symlink => Body::Symlink(new.target.into()),
                _ => Body::Special,
            },
        }
    }

    /// Returns the next generation of the layout, which is the current one from now on. Data of the
    /// file goes on to move, or does not.
    pub fn raise_generation(&mut self) -> u64 {
        self.layout_generation += 2;
        self.layout_generation
    }

    /// Begins a new generation in which data of the file moves.
    pub fn begin_move(&mut self) {
        self.layout_generation += if rfs_proto::moves(self.layout_generation) { 2 } else { 1 };
    }

    /// Begins a new generation in which no data of the file moves. Returns false, without a change,
    /// if none did.
    pub fn end_move(&mut self) -> bool {
        let moved = rfs_proto::moves(self.layout_generation);
        self.layout_generation += u64::from(moved);
        moved
    }

    /// Returns the group of a new entry of this directory for a caller of group `gid`.
    pub fn group_of_new(&self, gid: u32) -> u32 {
        if self.perm & SGID != 0 { self.gid } else { gid }
    }

    /// Returns the server's attributes. Size and blocks of a regular file are 0 here.
    pub fn attr(&self, ino: u64) -> Attr {
        let size = match &self.body {
            Body::File(_) | Body::Special => 0,
            Body::Directory(_) => DIRECTORY_SIZE,
            Body::Symlink(target) => target.len() as u64,
        };
        Attr {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: 0,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            layout_generation: self.layout_generation,
            slot: self.slot,
            marks: self.xattrs.as_ref().map_or_else(Marks::empty, |xattrs| xattrs.marks()),
        }
    }

    /// Returns the attributes of the inode's record.
    pub fn record_attr(&self, ino: u64) -> Attr {
        let mut attr = self.attr(ino);
        attr.marks.set(Marks::PAGES, self.pages_held);
        attr
    }

    /// Returns the space of a regular file.
    pub fn space(&self) -> Space {
        match &self.body {
            Body::File(map) => map.space(),
            _ => Space::default(),
        }
    }

    /// Returns the extents of a regular file.
    pub fn file(&self) -> Option<&FileMap> {
        match &self.body {
            Body::File(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the entries of a directory.
    pub fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Returns the extended attributes for changes.
    pub fn xattrs_mut(&mut self) -> &mut Xattrs {
        self.xattrs.get_or_insert_default()
    }

    /// Returns the bytes of memory that the extended attributes take.
    pub fn xattr_bytes(&self) -> u64 {
        self.xattrs.as_ref().map_or(0, |xattrs| xattrs.bytes())
    }

    /// Gives a new inode the ACLs and permission bits that it inherits from its directory's default
    /// ACL, or without one by the umask.
    pub(super) fn begin_acls(&mut self, default: Option<&Acl>, umask: u32) {
        let Some(default) = default.filter(|_| self.kind != FileKind::Symlink) else {
            if self.kind != FileKind::Symlink {
                self.perm &= !(umask & 0o777);
            }
            return;
        };
        let access = default.inherit(self.perm);
        self.perm = self.perm & !0o777 | access.permissions();
        if !access.is_minimal() {
            self.xattrs_mut().set_acl(XattrName::Access, Some(access));
        }
        if self.is_directory() {
            self.xattrs_mut().set_acl(XattrName::Default, Some(default.clone()));
        }
    }

    /// Sets the access ACL or the default ACL. Also sets the permission bits from the access ACL,
    /// and drops an access ACL that says no more than they do.
    pub fn set_acl(&mut self, name: XattrName<'_>, acl: Option<Acl>) {
        let kept = match (name, acl) {
            (XattrName::Access, Some(acl)) => {
                self.perm = self.perm & !0o777 | acl.permissions();
                Some(acl).filter(|acl| !acl.is_minimal())
            }
            (_, acl) => acl,
        };
        self.xattrs_mut().set_acl(name, kept);
    }

    /// Sets an extended attribute, or an ACL from its encoding.
    pub fn set_xattr(&mut self, name: XattrName<'_>, value: Vec<u8>) -> Result<(), Errno> {
        match name {
            XattrName::Plain(plain) => self.xattrs_mut().set(plain, value),
            XattrName::Access | XattrName::Default => self.set_acl(name, Acl::decode(&value)?),
        }
        Ok(())
    }

    /// Sets the permission bits, and adjusts the access ACL.
    pub fn set_perm(&mut self, perm: u32) {
        self.perm = perm & 0o7777;
        if let Some(xattrs) = &mut self.xattrs {
            xattrs.change_mode(perm);
        }
    }

    /// Checks the expected owner.
    ///
    /// # Errors
    /// EPERM if the inode has another owner.
    pub fn belongs(&self, to: Option<ExpectedOwner>) -> Result<(), Errno> {
        let so = to.is_none_or(|to| self.uid == to.uid && to.gid.is_none_or(|gid| self.gid == gid));
        if so || seeded!(OwnerIgnored) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Removes privileges that a change of contents or owner ends: set-user-ID, set-group-ID if the
    /// group may execute, and capabilities.
    pub fn drop_privileges(&mut self) {
        if self.is_directory() {
            return;
        }
        self.perm &= !SUID;
        if self.perm & GROUP_EXEC != 0 && !seeded!(SetgidKept) {
            self.perm &= !SGID;
        }
        if let Some(xattrs) = &mut self.xattrs {
            xattrs.drop_capabilities();
        }
    }

    /// Returns true for directories.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
