//! Where operations on names find the inodes that they work on.
//!
//! An operation asks for every inode before it changes the first one: asking may end it, and it begins again then, as if nothing
//! had been. What it has asked for stays as it is until the operation is over, but for its own changes.
//!
//! Threading: an implementation belongs to one operation of one thread.

use rfs_proto::Errno;

use super::Inode;

/// Inodes to read.
pub trait Inodes {
    /// Why an operation ends: an error number, or that it has to begin again.
    type Stop: From<Errno>;

    /// Asks for an inode. It need not exist.
    fn need(&mut self, ino: u64) -> Result<(), Self::Stop>;

    /// An inode that was asked for. ESTALE if it is gone.
    fn get(&self, ino: u64) -> Result<&Inode, Errno>;
}

/// Inodes to change.
pub trait InodesMut: Inodes {
    /// An inode that was asked for, to change. ESTALE if it is gone.
    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno>;

    /// Asks for an inode that there is none of yet, with a number that there never was. The same until it is inserted.
    fn fresh(&mut self) -> Result<u64, Self::Stop>;

    /// Puts an inode in.
    fn insert(&mut self, ino: u64, inode: Inode);

    /// Takes an inode out for good.
    fn remove(&mut self, ino: u64) -> Option<Inode>;

    /// A name of a directory has come, gone, or stands for something else. Whoever has to know of it looks when the operation is over.
    fn entry_changed(&mut self, _directory: u64, _name: &[u8]) {}

    /// True if a directory is `ancestor` or lies below it, which stays so until the operation is over. `ancestor` is a directory.
    fn is_within(&mut self, directory: u64, ancestor: u64) -> Result<bool, Self::Stop>;
}
