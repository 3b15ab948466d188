//! Access to the inodes of an operation on names.
//!
//! An operation requests each inode before it changes the first one. A request may stop the
//! operation, which then starts again without effects. A requested inode changes only by the
//! operation itself until the operation ends.
//!
//! # Concurrency
//! An implementation belongs to one operation of one thread.

use rfs_proto::Errno;

use super::inode::Inode;

/// Inodes to read.
pub trait Inodes {
    /// Reason why an operation stops: an error number, or a restart.
    type Stop: From<Errno>;

    /// Requests an inode, which need not exist.
    fn need(&mut self, ino: u64) -> Result<(), Self::Stop>;

    /// Returns a requested inode.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    fn get(&self, ino: u64) -> Result<&Inode, Errno>;
}

/// Inodes to change.
pub trait InodesMut: Inodes {
    /// Returns a requested inode for changes.
    ///
    /// # Errors
    /// ESTALE if the inode does not exist.
    fn get_mut(&mut self, ino: u64) -> Result<&mut Inode, Errno>;

    /// Requests a new inode, with a number that was never in use. Returns the same number until it
    /// is inserted.
    fn fresh(&mut self) -> Result<u64, Self::Stop>;

    /// Inserts an inode, in place of an earlier one with this number.
    fn insert(&mut self, ino: u64, inode: Inode);

    /// Removes an inode and returns it, if there is one.
    fn remove(&mut self, ino: u64) -> Option<Inode>;

    /// Records that a name of a directory was added, removed or changed. Cache holders are recalled
    /// after the operation.
    fn entry_changed(&mut self, _directory: u64, _name: &[u8]) {}

    /// Returns true if a directory is `ancestor` or below it. The answer holds until the operation
    /// ends. `ancestor` is a directory.
    fn is_within(&mut self, directory: u64, ancestor: u64) -> Result<bool, Self::Stop>;
}
