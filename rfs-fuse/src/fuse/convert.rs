//! Converts between values of rfs and of FUSE.
//!
//! No I/O, no locks, no clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use rfs_proto::{Attr, FileKind, LockKind, LockRange, SetTime, XattrSet};

use super::settings::IO_BLOCK;

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(crate) fn errno(errno: rfs_proto::Errno) -> Errno {
    Errno::from_i32(i32::from(errno.0))
}

/// Converts nanoseconds since 1970.
pub(crate) fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Converts a time to set.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(nanoseconds(time)),
    }
}

/// Converts a time of the kernel to nanoseconds since 1970. Saturates at the limits of 64 bits.
///
/// For a time before 1970, the kernel sends whole seconds and nanoseconds after that second.
/// fuser subtracts the nanoseconds instead of adding them. This corrects the error.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => {
            let distance = before.duration();
            i64::try_from(distance.as_secs())
                .ok()
                .and_then(|secs| secs.checked_mul(-1_000_000_000))
                .and_then(|ns| ns.checked_add(i64::from(distance.subsec_nanos())))
                .unwrap_or(i64::MIN)
        }
    }
}

/// Offset by which the kernel means the end of a file.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

/// Converts a byte range of a lock.
pub(crate) fn lock_range(start: u64, end: u64) -> LockRange {
    LockRange { first: start, last: if end >= OFFSET_MAX { u64::MAX } else { end } }
}

/// Kinds of locks, by their numbers in fcntl(2).
pub(crate) const F_RDLCK: i32 = 0;
pub(crate) const F_WRLCK: i32 = 1;
pub(crate) const F_UNLCK: i32 = 2;

pub(crate) fn lock_kind(typ: i32) -> Option<LockKind> {
    match typ {
        F_RDLCK => Some(LockKind::Shared),
        F_WRLCK => Some(LockKind::Exclusive),
        F_UNLCK => Some(LockKind::Unlock),
        _ => None,
    }
}

/// Converts flags of setxattr(2): XATTR_CREATE and XATTR_REPLACE.
pub(crate) fn xattr_set(flags: i32) -> Option<XattrSet> {
    match flags {
        0 => Some(XattrSet::Any),
        1 => Some(XattrSet::Create),
        2 => Some(XattrSet::Replace),
        _ => None,
    }
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        // Twelve bits remain.
        perm: (attr.perm & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: IO_BLOCK,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_reach_to_the_end() {
        assert_eq!(lock_range(5, 9), LockRange { first: 5, last: 9 });
        assert_eq!(lock_range(5, OFFSET_MAX), LockRange { first: 5, last: u64::MAX });
    }

    #[test]
    fn times_before_1970_are_corrected() {
        // The kernel sends -2 s and 250 ms. fuser makes it 2.25 s before 1970.
        let handed_over = UNIX_EPOCH - Duration::new(2, 250_000_000);
        assert_eq!(set_time(TimeOrNow::SpecificTime(handed_over)), SetTime::At(-1_750_000_000));
        let back = time(-1_750_000_000);
        assert_eq!(UNIX_EPOCH.duration_since(back).expect("before"), Duration::from_millis(1750));
    }

    #[test]
    fn times_out_of_reach_saturate() {
        let far = UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(set_time(TimeOrNow::SpecificTime(far)), SetTime::At(i64::MAX));
        let long_ago = UNIX_EPOCH - Duration::from_secs(1 << 40);
        assert_eq!(set_time(TimeOrNow::SpecificTime(long_ago)), SetTime::At(i64::MIN));
        assert_eq!(set_time(TimeOrNow::Now), SetTime::Now);
        // Both limits convert back.
        assert!(time(i64::MIN) < UNIX_EPOCH);
        assert!(time(i64::MAX) > UNIX_EPOCH);
    }
}
