//! Opens. The kernel opens each file, and checks each permission.
//!
//! # Concurrency
//! See the module `process`.

use std::{
    ffi::{c_char, c_int},
    sync::Arc,
};

use libc::mode_t;

use super::export;
use crate::{descriptor::access::Access, descriptor::description::Description, guard, next, process};

export! { open | open64 | __open | __open64: fn(path: *const c_char, flags: c_int, mode: mode_t) -> c_int => open_file; }
export! { openat | openat64: fn(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int => open_file_at; }
export! { creat | creat64: fn(path: *const c_char, mode: mode_t) -> c_int => create_file; }
export! { __open_2 | __open64_2: fn(path: *const c_char, flags: c_int) -> c_int => open_existing; }
export! { __openat_2 | __openat64_2: fn(dir: c_int, path: *const c_char, flags: c_int) -> c_int => open_existing_at; }
export! { mkstemp | mkstemp64: fn(template: *mut c_char) -> c_int => make_temporary; }
export! { mkostemp | mkostemp64: fn(template: *mut c_char, flags: c_int) -> c_int => make_temporary_with; }
export! { mkstemps | mkstemps64: fn(template: *mut c_char, suffix: c_int) -> c_int => make_temporary_before; }
export! {
    mkostemps | mkostemps64:
    fn(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int => make_temporary_of;
}

/// Returns a new descriptor, which the library knows from now on if it is of a mount.
fn adopt(fd: c_int, flags: c_int) -> c_int {
    // The streams of libc use 0 to 2, and know nothing of the library's offset.
    if fd <= 2 {
        return fd;
    }
    let errno = next::errno();
    if let (Some(access), Some(_inside)) = (Access::of(flags), guard::enter())
        && let Some((site, ino)) = process::site_of(fd)
        && site.may_have_session()
        && !site.has_mapped(ino)
        && let Some(state) = process::own_state()
    {
        state.table.set(fd, Arc::new(Description::new(site, ino, access)));
    }
    next::fail::<()>(errno);
    fd
}

/// Opens a file by the kernel. The library knows the descriptor if it is of a mount.
///
/// # Safety
/// As for `open` of libc.
unsafe fn open_file(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises. The kernel ignores a mode that the flags do not need.
    adopt(unsafe { next::open64(path, flags, mode) }, flags)
}

/// Opens a file relative to `dir` by the kernel. The library knows the descriptor if it is of a
/// mount.
///
/// # Safety
/// As for `openat` of libc.
unsafe fn open_file_at(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    adopt(unsafe { next::openat64(dir, path, flags, mode) }, flags)
}

/// Creates or truncates a file, and opens it to write.
///
/// # Safety
/// As for `creat` of libc.
unsafe fn create_file(path: *const c_char, mode: mode_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { open_file(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

/// Opens a file without a mode, for programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `open` of libc without a mode.
unsafe fn open_existing(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { open_file(path, flags, 0) }
}

/// Opens a file relative to `dir` without a mode, for programs built with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As for `openat` of libc without a mode.
unsafe fn open_existing_at(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { open_file_at(dir, path, flags, 0) }
}

/// Creates a temporary file, whose name ends where the template ends.
///
/// # Safety
/// As for `mkstemp` of libc.
unsafe fn make_temporary(template: *mut c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { make_temporary_of(template, 0, 0) }
}

/// Creates a temporary file with further open `flags`.
///
/// # Safety
/// As for `mkostemp` of libc.
unsafe fn make_temporary_with(template: *mut c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { make_temporary_of(template, 0, flags) }
}

/// Creates a temporary file. The last `suffix` bytes of the template stay as they are.
///
/// # Safety
/// As for `mkstemps` of libc.
unsafe fn make_temporary_before(template: *mut c_char, suffix: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { make_temporary_of(template, suffix, 0) }
}

/// Creates a temporary file by libc, with a suffix of `suffix` bytes and further open `flags`. The
/// library knows the descriptor if it is of a mount.
///
/// # Safety
/// As for `mkostemps` of libc.
unsafe fn make_temporary_of(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let fd = unsafe { next::mkostemps64(template, suffix, flags) };
    adopt(fd, flags & !libc::O_ACCMODE | libc::O_RDWR)
}
