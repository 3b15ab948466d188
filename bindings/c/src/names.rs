//! Calls that change names and attributes of paths.

use std::{ffi::c_char, os::unix::ffi::OsStrExt, path::Path};

use rfs_native::{Mount, RenameMode, SetTime, Times};

use crate::{
    mount::rfs_mount,
    status::{Failure, answer, answer_done, fill, handle, path, room},
};

/// rfs_rename() fails with -EEXIST if the new name exists.
pub const RFS_NOREPLACE: u32 = 1;
/// rfs_rename() exchanges the two names.
pub const RFS_EXCHANGE: u32 = 2;
/// The present, for rfs_utimens().
pub const RFS_NOW: i64 = i64::MAX;
/// No change of a time, for rfs_utimens().
pub const RFS_KEEP: i64 = i64::MAX - 1;

/// Runs a call with one path.
///
/// # Safety
/// The pointers are valid.
unsafe fn on_path(
    mount: *const rfs_mount,
    name: *const c_char,
    call: impl FnOnce(&Mount, &Path) -> rfs_native::Result<()>,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name) = unsafe { (handle(mount)?, path(name)?) };
        Ok(call(&mount.0, name)?)
    })
}

/// Runs a call with two paths.
///
/// # Safety
/// The pointers are valid.
unsafe fn on_paths(
    mount: *const rfs_mount,
    (from, to): (*const c_char, *const c_char),
    call: impl FnOnce(&Mount, &Path, &Path) -> rfs_native::Result<()>,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, from, to) = unsafe { (handle(mount)?, path(from)?, path(to)?) };
        Ok(call(&mount.0, from, to)?)
    })
}

/// Creates a directory with these permission bits, less the umask.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_mkdir(mount: *const rfs_mount, name: *const c_char, mode: u32) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.make_dir(name, mode)) }
}

/// Removes an empty directory.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_rmdir(mount: *const rfs_mount, name: *const c_char) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.remove_dir(name)) }
}

/// Removes a name that is not of a directory.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_unlink(mount: *const rfs_mount, name: *const c_char) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.remove_file(name)) }
}

/// Sets the permission bits.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_chmod(mount: *const rfs_mount, name: *const c_char, mode: u32) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.set_mode(name, mode)) }
}

/// Sets owner and group. UINT32_MAX keeps one.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_chown(mount: *const rfs_mount, name: *const c_char, uid: u32, gid: u32) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.set_owner(name, id(uid), id(gid))) }
}

/// Sets the times of the last access and of the last change of contents, in nanoseconds since
/// 1970. RFS_NOW sets the present, and RFS_KEEP keeps a time.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_utimens(
    mount: *const rfs_mount,
    name: *const c_char,
    atime_ns: i64,
    mtime_ns: i64,
) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        on_path(mount, name, |mount, name| {
            mount.set_times(name, Times { accessed: time(atime_ns), modified: time(mtime_ns) })
        })
    }
}

/// Sets the length of a file.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_truncate(mount: *const rfs_mount, name: *const c_char, length: u64) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_path(mount, name, |mount, name| mount.set_len(name, length)) }
}

/// Checks permissions: a sum of R_OK, W_OK and X_OK, or F_OK.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_access(mount: *const rfs_mount, name: *const c_char, wanted: i32) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        on_path(mount, name, |mount, name| {
            let has = |bit: i32| wanted & bit != 0;
            mount.access(name, has(libc::R_OK), has(libc::W_OK), has(libc::X_OK))
        })
    }
}

/// Creates the hard link `to`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_link(mount: *const rfs_mount, from: *const c_char, to: *const c_char) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_paths(mount, (from, to), |mount, from, to| mount.link(from, to)) }
}

/// Creates the symbolic link `to` with the target `from`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_symlink(mount: *const rfs_mount, from: *const c_char, to: *const c_char) -> i32 {
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_paths(mount, (from, to), |mount, from, to| mount.symlink(from, to)) }
}

/// Renames, with flags of renameat2(2): 0, RFS_NOREPLACE or RFS_EXCHANGE.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_rename(
    mount: *const rfs_mount,
    from: *const c_char,
    to: *const c_char,
    flags: u32,
) -> i32 {
    let mode = match flags {
        0 => RenameMode::Replace,
        RFS_NOREPLACE => RenameMode::NoReplace,
        RFS_EXCHANGE => RenameMode::Exchange,
        _ => return answer_done(|| Err(Failure::new(libc::EINVAL, "rename: an unknown flag"))),
    };
    // SAFETY: the caller vouches for the pointers.
    unsafe { on_paths(mount, (from, to), |mount, from, to| mount.rename_with(from, to, mode)) }
}

/// Returns the target of a symbolic link in `out`, without a NUL, cut to `len` bytes.
///
/// Returns the number of bytes or a negative error number.
///
/// # Safety
/// The pointers are valid, and `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_readlink(
    mount: *const rfs_mount,
    name: *const c_char,
    out: *mut c_char,
    len: usize,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name, out) = unsafe { (handle(mount)?, path(name)?, room(out.cast(), len)?) };
        let target = mount.0.read_link(name)?;
        Ok(fill(out, target.as_os_str().as_bytes()))
    }) as isize
}

/// Returns a user or group, or `None` to keep it.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

fn time(time: i64) -> SetTime {
    match time {
        RFS_NOW => SetTime::Now,
        RFS_KEEP => SetTime::Keep,
        time => SetTime::At(time),
    }
}
