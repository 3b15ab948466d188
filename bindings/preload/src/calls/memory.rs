//! Mappings. The kernel has a file from its first mapping on.
//!
//! # Concurrency
//! Any thread.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use libc::{off_t, size_t};

use super::export;
use crate::{guard, next, process};

export! {
    mmap | mmap64:
    fn(address: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
    -> *mut c_void => map;
}

/// Maps a file by the kernel, which has all its descriptors from then on. Mappings without a file
/// change nothing.
///
/// # Safety
/// As for `mmap` of libc.
unsafe fn map(
    address: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && process::state().is_some() {
        leave_to_kernel(fd);
    }
    // SAFETY: as the caller promises.
    unsafe { next::mmap64(address, len, protection, flags, fd, offset) }
}

/// Leaves the file of a descriptor to the kernel. The descriptor may be unknown here.
#[cold]
fn leave_to_kernel(fd: c_int) {
    let Some(_inside) = guard::enter() else { return };
    let known = process::get(fd).map(|description| (Arc::clone(&description.site), description.ino));
    if let Some((site, ino)) = known.or_else(|| process::site_of(fd)) {
        process::hand_back_mapped(&site, ino);
        // Accesses behind the size that the kernel knows are SIGBUS.
        process::refresh_size(fd);
    }
}
