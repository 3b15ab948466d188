//! Attributes as tuples.

use rfs_native::Stat;

/// A stat: mode, inode, links, owner, group, size, and three times in nanoseconds.
pub(crate) type StatTuple = (u32, u64, u32, u32, u32, u64, i64, i64, i64);

/// Returns the attributes as a tuple, of which Python makes its own type.
pub(crate) fn tuple(stat: Stat) -> StatTuple {
    let mode = stat.mode();
    (mode, stat.ino, stat.nlink, stat.uid, stat.gid, stat.size, stat.atime, stat.mtime, stat.ctime)
}
