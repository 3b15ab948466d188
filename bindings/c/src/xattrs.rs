//! Extended attributes of paths.

use std::{
    ffi::{c_char, c_void},
    os::unix::ffi::OsStrExt,
};

use crate::{
    mount::rfs_mount,
    status::{Failure, answer, answer_done, bytes, fill, handle, path, room},
};

/// Returns the value of an extended attribute in `out`. With `len` 0, returns its length only.
///
/// Returns the number of bytes or a negative error number: -ERANGE if `out` is too short.
///
/// # Safety
/// The pointers are valid, and `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_getxattr(
    mount: *const rfs_mount,
    name: *const c_char,
    attribute: *const c_char,
    out: *mut c_void,
    len: usize,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name, out) = unsafe { (handle(mount)?, path(name)?, room(out.cast(), len)?) };
        // SAFETY: the caller vouches for the pointer.
        let value = mount.0.xattr(name, unsafe { path(attribute)? })?;
        whole(out, &value)
    }) as isize
}

/// Returns the names of the extended attributes in `out`, each followed by a NUL. With `len` 0,
/// returns their length only.
///
/// Returns the number of bytes or a negative error number: -ERANGE if `out` is too short.
///
/// # Safety
/// The pointers are valid, and `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_listxattr(
    mount: *const rfs_mount,
    name: *const c_char,
    out: *mut c_char,
    len: usize,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name, out) = unsafe { (handle(mount)?, path(name)?, room(out.cast(), len)?) };
        let mut names = Vec::new();
        for attribute in mount.0.xattrs(name)? {
            names.extend(attribute.as_bytes());
            names.push(0);
        }
        whole(out, &names)
    }) as isize
}

/// Sets an extended attribute.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid, and `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_setxattr(
    mount: *const rfs_mount,
    name: *const c_char,
    attribute: *const c_char,
    value: *const c_void,
    len: usize,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name, value) = unsafe { (handle(mount)?, path(name)?, bytes(value.cast(), len)?) };
        // SAFETY: the caller vouches for the pointer.
        Ok(mount.0.set_xattr(name, unsafe { path(attribute)? }, value)?)
    })
}

/// Removes an extended attribute.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_removexattr(
    mount: *const rfs_mount,
    name: *const c_char,
    attribute: *const c_char,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (mount, name, attribute) = unsafe { (handle(mount)?, path(name)?, path(attribute)?) };
        Ok(mount.0.remove_xattr(name, attribute)?)
    })
}

/// Copies all bytes to a buffer. Returns their number; only that if the buffer has no bytes.
fn whole(out: &mut [u8], bytes: &[u8]) -> Result<i64, Failure> {
    match out.len() {
        0 => Ok(bytes.len() as i64),
        len if len < bytes.len() => Err(Failure::new(libc::ERANGE, "the buffer is too short")),
        _ => Ok(fill(out, bytes)),
    }
}
