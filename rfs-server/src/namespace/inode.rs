//! What the server keeps about an inode. Sizes of regular files and times of client writes are not here: they live
//! in the attribute table.
//!
//! Threading: none; the metadata lock protects it.

use rfs_proto::{Attr, FileKind};

use super::Directory;
use crate::files::FileMap;

/// Size shown for a directory.
const DIRECTORY_SIZE: u64 = 4096;

/// What an inode holds besides attributes.
#[derive(Clone, Debug)]
pub enum Body {
    /// A regular file's extents.
    File(FileMap),
    /// A directory's entries.
    Directory(Directory),
    /// A symbolic link's target.
    Symlink(Box<[u8]>),
    /// Nothing: fifos, sockets, device nodes.
    Special,
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Kind; it fits the body.
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
    /// Last access.
    pub atime: i64,
    /// Last change of contents that the server made.
    pub mtime: i64,
    /// Last change of attributes that the server made.
    pub ctime: i64,
    /// Its record in the attribute table.
    pub slot: u32,
    /// Grows when extents are taken away.
    pub layout_generation: u64,
    /// Contents.
    pub body: Body,
}

impl Inode {
    /// The attributes as the server knows them: the size of a regular file is 0 here, and its blocks are all that is
    /// allocated.
    pub fn attr(&self, ino: u64) -> Attr {
        let (size, blocks) = match &self.body {
            Body::File(map) => (0, map.allocated() / 512),
            Body::Directory(_) => (DIRECTORY_SIZE, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
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
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            layout_generation: self.layout_generation,
            slot: self.slot,
        }
    }

    /// The directory in it.
    pub fn directory(&self) -> Option<&Directory> {
        match &self.body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// True for directories.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}
