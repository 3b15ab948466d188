//! Attributes, length and synchronization of open files.
//!
//! # Concurrency
//! See the module `carry`.

use std::ffi::c_int;

use libc::{off_t, stat};

use super::export;
use crate::{carry::positional_io::carry_other, counts::Call, next, process};

/// `_STAT_VER` of the architectures: the only layout of `struct stat` with 64 bits.
const STAT_VERSIONS: std::ops::RangeInclusive<c_int> = 0..=1;

export! { fsync: fn(fd: c_int) -> c_int => synchronize; }
export! { fdatasync: fn(fd: c_int) -> c_int => synchronize_data; }
export! { fstat | fstat64: fn(fd: c_int, out: *mut stat) -> c_int => attributes; }
export! { __fxstat | __fxstat64: fn(version: c_int, fd: c_int, out: *mut stat) -> c_int => attributes_of; }
export! { ftruncate | ftruncate64: fn(fd: c_int, len: off_t) -> c_int => set_length; }

/// Carries `fsync` for a file that the library has open. The kernel does it for other descriptors.
///
/// # Safety
/// As for `fsync` of libc.
unsafe fn synchronize(fd: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::fsync(fd) };
    carry_other(fd, Call::Fsync, kernel, |opened| opened.file.sync().ok().map(|()| 0))
}

/// Carries `fdatasync` as `fsync` for a file that the library has open. The kernel does it for
/// other descriptors.
///
/// # Safety
/// As for `fdatasync` of libc.
unsafe fn synchronize_data(fd: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::fdatasync(fd) };
    carry_other(fd, Call::Fsync, kernel, |opened| opened.file.sync().ok().map(|()| 0))
}

/// Carries `fstat` for a file that the library has open. The kernel does it for other descriptors,
/// and if `out` is null.
///
/// # Safety
/// As for `fstat` of libc.
unsafe fn attributes(fd: c_int, out: *mut stat) -> c_int {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::fstat64(fd, out) };
    carry_other(fd, Call::Fstat, kernel, |opened| {
        let found = opened.stat().filter(|_| !out.is_null())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(found) };
        Some(0)
    })
}

/// Carries `__fxstat` as `fstat` if `version` is in [`STAT_VERSIONS`]. The kernel judges other
/// versions.
///
/// # Safety
/// As for `__fxstat` of libc.
unsafe fn attributes_of(version: c_int, fd: c_int, out: *mut stat) -> c_int {
    if STAT_VERSIONS.contains(&version) {
        // SAFETY: as the caller promises.
        return unsafe { attributes(fd, out) };
    }
    // SAFETY: as the caller promises.
    unsafe { next::__fxstat64(version, fd, out) }
}

/// Carries `ftruncate` for a file that the library has open. The kernel judges lengths that are
/// negative or beyond RLIMIT_FSIZE.
///
/// # Safety
/// As for `ftruncate` of libc.
unsafe fn set_length(fd: c_int, len: off_t) -> c_int {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::ftruncate64(fd, len) };
    carry_other(fd, Call::Ftruncate, kernel, |opened| {
        let len = u64::try_from(len).ok().filter(|len| process::may_write_to(*len))?;
        opened.file.set_len(len).ok().map(|()| 0)
    })
}
