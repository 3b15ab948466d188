//! Functions of libc that use the kernel's offset of a descriptor later, without a call that the
//! library could see.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_char, c_int, c_void};

use libc::off_t;

use super::export;
use crate::{carry::sequential::synchronized, counts::Reason, next, process};

export! { fdopen: fn(fd: c_int, mode: *const c_char) -> *mut c_void => open_stream; }
export! { vdprintf: fn(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int => print; }
export! { lockf | lockf64: fn(fd: c_int, command: c_int, len: off_t) -> c_int => lock; }
export! { ioctl: fn(fd: c_int, request: usize, arg: usize) -> c_int => control; }

/// Leaves a descriptor to the kernel, because libc uses it by itself.
pub(crate) fn leave_to_kernel(fd: c_int) {
    if let Some(description) = process::get(fd) {
        process::hand_back(fd, &description, Reason::Stream);
    }
}

/// Hands a descriptor back to the kernel, and opens a stream of libc on it.
///
/// # Safety
/// As for `fdopen` of libc.
unsafe fn open_stream(fd: c_int, mode: *const c_char) -> *mut c_void {
    leave_to_kernel(fd);
    // SAFETY: as the caller promises.
    unsafe { next::fdopen(fd, mode) }
}

/// Hands a descriptor back to the kernel, and prints to it by libc.
///
/// # Safety
/// As for `vdprintf` of libc.
unsafe fn print(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    leave_to_kernel(fd);
    // SAFETY: as the caller promises.
    unsafe { next::vdprintf(fd, format, args) }
}

/// Locks a range by libc. The kernel's offset is up to date during the call, because the range
/// begins there.
///
/// # Safety
/// As for `lockf` of libc.
unsafe fn lock(fd: c_int, command: c_int, len: off_t) -> c_int {
    // SAFETY: as the caller promises.
    synchronized(fd, || unsafe { next::lockf64(fd, command, len) })
}

/// Does `ioctl` by the kernel, whose offset is up to date during the call.
///
/// # Safety
/// As for `ioctl` of libc.
unsafe fn control(fd: c_int, request: usize, arg: usize) -> c_int {
    // SAFETY: as the caller promises.
    synchronized(fd, || unsafe { next::ioctl(fd, request, arg) })
}
