//! Names in directories, and the effects of operations on them.
//!
//! # Concurrency
//! Plain values.

use rfs_proto::{Errno, MAX_NAME};

/// One end of a rename.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub parent: u64,
    /// The name in the directory.
    pub name: &'a [u8],
}

/// Effects of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Inodes whose attributes changed.
    pub touched: Vec<u64>,
    /// Inode that has lost its last name. It still exists.
    pub orphaned: Option<u64>,
    /// Directories that have another parent now.
    pub moved: Vec<u64>,
    /// Inode that was made at the old name of a rename.
    pub made: Option<u64>,
}

/// Checks a name from a client: 1 to [`MAX_NAME`] bytes, no `/`, no NUL.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ENOENT),
        _ if name.len() > MAX_NAME => Err(Errno::ENAMETOOLONG),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}
