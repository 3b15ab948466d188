//! Attributes of paths.

use std::ffi::c_char;

use rfs_native::Stat;

use crate::{
    mount::rfs_mount,
    status::{answer_done, handle, path, store},
};

/// Attributes of an inode. Times are nanoseconds since 1970.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rfs_stat_t {
    /// Number of the inode.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime_ns: i64,
    /// Last change of contents.
    pub mtime_ns: i64,
    /// Last change of contents or attributes.
    pub ctime_ns: i64,
    /// Kind and permission bits, as st_mode.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
}

impl From<Stat> for rfs_stat_t {
    fn from(stat: Stat) -> rfs_stat_t {
        rfs_stat_t {
            ino: stat.ino,
            size: stat.size,
            blocks: stat.blocks,
            atime_ns: stat.atime,
            mtime_ns: stat.mtime,
            ctime_ns: stat.ctime,
            mode: stat.mode(),
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
        }
    }
}

/// Returns the attributes of a path in `out`, and follows a symbolic link.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_stat(mount: *const rfs_mount, name: *const c_char, out: *mut rfs_stat_t) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name) = unsafe { (handle(mount)?, path(name)?) };
        // SAFETY: the caller vouches for the pointer.
        unsafe { store(out, mount.0.stat(name)?.into()) }
    })
}

/// Returns the attributes of a path in `out`. Those of a symbolic link are its own.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_lstat(
    mount: *const rfs_mount,
    name: *const c_char,
    out: *mut rfs_stat_t,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name) = unsafe { (handle(mount)?, path(name)?) };
        // SAFETY: the caller vouches for the pointer.
        unsafe { store(out, mount.0.stat_link(name)?.into()) }
    })
}
