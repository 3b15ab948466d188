//! The numbers that identify an open file and its mount.
//!
//! # Concurrency
//! Any thread. One system call.

use std::{ffi::c_int, mem::MaybeUninit};

/// `STATX_MNT_ID_UNIQUE` of `linux/stat.h`.
const MOUNT_ID_UNIQUE: u32 = 0x4000;

/// A mount: its device, and the number of the mount, which no later mount gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// 0 if the kernel does not tell it.
    pub(crate) number: u64,
}

impl MountId {
    /// Returns the device as `major:minor`.
    pub(crate) fn device(self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

/// An open file: its mount, and the number of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) mount: MountId,
    pub(crate) ino: u64,
}

impl FileId {
    /// Returns the file of a descriptor if it is a regular file on a FUSE file system. All others
    /// are on devices with a driver, or have another type.
    pub(crate) fn of(fd: c_int) -> Option<FileId> {
        let mut found = MaybeUninit::<libc::statx>::uninit();
        let wanted = libc::STATX_TYPE | libc::STATX_INO | MOUNT_ID_UNIQUE;
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: the path is a C string, and the result has room.
        let outcome = unsafe { libc::statx(fd, c"".as_ptr(), flags, wanted, found.as_mut_ptr()) };
        if outcome != 0 {
            return None;
        }
        // SAFETY: the call has filled the result.
        let found = unsafe { found.assume_init() };
        let is_file = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        // FUSE has no device, so its number is an anonymous one.
        if !is_file || found.stx_dev_major != 0 {
            return None;
        }
        let number = if found.stx_mask & MOUNT_ID_UNIQUE != 0 { found.stx_mnt_id } else { 0 };
        let mount = MountId { major: 0, minor: found.stx_dev_minor, number };
        Some(FileId { mount, ino: found.stx_ino })
    }
}
