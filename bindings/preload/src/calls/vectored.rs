//! Reads and writes of several buffers.
//!
//! # Concurrency
//! See the module `carry`.

use std::ffi::c_int;

use libc::{iovec, off_t, ssize_t};

use super::export;
use crate::{
    carry::{
        buffers::{self, Failed, parts as checked},
        positional_io, sequential,
    },
    counts::Call,
    next,
};

export! { readv: fn(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t => read_next; }
export! { writev: fn(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t => write_next; }
export! { preadv | preadv64: fn(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t => read_at; }
export! { pwritev | pwritev64: fn(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t => write_at; }
export! {
    preadv2 | preadv64v2:
    fn(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => read_with;
}
export! {
    pwritev2 | pwritev64v2:
    fn(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t => write_with;
}

/// Carries `readv` at the offset of the description.
///
/// # Safety
/// As for `readv` of libc.
unsafe fn read_next(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::readv(fd, parts, count) };
    sequential::carry(
        fd,
        Call::Readv,
        kernel,
        |file, _, at| {
            // SAFETY: as the caller promises.
            let parts = unsafe { checked(parts, count) }.ok_or(Failed::AskKernel)?;
            // SAFETY: as the caller promises.
            let len = unsafe { buffers::read_parts(file, parts, at) }?;
            Ok((len, at + len as u64))
        },
        0,
    )
}

/// Carries `writev` at the offset of the description, or at the end if the description appends.
///
/// # Safety
/// As for `writev` of libc.
unsafe fn write_next(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::writev(fd, parts, count) };
    // SAFETY: as the caller promises.
    let reserve =
        unsafe { checked(parts, count) }.map_or(0, |parts| parts.iter().map(|part| part.iov_len).sum());
    sequential::carry(
        fd,
        Call::Writev,
        kernel,
        |file, description, at| {
            // SAFETY: as the caller promises.
            let parts = unsafe { checked(parts, count) }.ok_or(Failed::AskKernel)?;
            if description.access.appends {
                // SAFETY: as the caller promises.
                return unsafe { buffers::append_parts(file, description.access, parts) };
            }
            // SAFETY: as the caller promises.
            let len = unsafe { buffers::write_parts(file, description.access, parts, at) }?;
            Ok((len, at + len as u64))
        },
        reserve,
    )
}

/// Carries `preadv`. The kernel judges negative offsets.
///
/// # Safety
/// As for `preadv` of libc.
unsafe fn read_at(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::preadv64(fd, parts, count, offset) };
    positional_io::carry(fd, Call::Preadv, kernel, |file, _| {
        let offset = u64::try_from(offset).map_err(|_| Failed::AskKernel)?;
        // SAFETY: as the caller promises.
        let parts = unsafe { checked(parts, count) }.ok_or(Failed::AskKernel)?;
        // SAFETY: as the caller promises.
        unsafe { buffers::read_parts(file, parts, offset) }
    })
}

/// Carries `pwritev`. Appends at any offset if the description appends. The kernel judges negative
/// offsets.
///
/// # Safety
/// As for `pwritev` of libc.
unsafe fn write_at(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::pwritev64(fd, parts, count, offset) };
    positional_io::carry(fd, Call::Pwritev, kernel, |file, access| {
        let offset = u64::try_from(offset).map_err(|_| Failed::AskKernel)?;
        // SAFETY: as the caller promises.
        let parts = unsafe { checked(parts, count) }.ok_or(Failed::AskKernel)?;
        if access.appends {
            // SAFETY: as the caller promises.
            return unsafe { buffers::append_parts(file, access, parts) }.map(|(len, _)| len);
        }
        // SAFETY: as the caller promises.
        unsafe { buffers::write_parts(file, access, parts, offset) }
    })
}

/// Carries `preadv2` without flags: at the description's offset if `offset` is -1. The kernel does
/// calls with flags.
///
/// # Safety
/// As for `preadv2` of libc.
unsafe fn read_with(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    match (flags, offset) {
        // SAFETY: as the caller promises.
        (0, -1) => unsafe { read_next(fd, parts, count) },
        // SAFETY: as the caller promises.
        (0, _) => unsafe { read_at(fd, parts, count, offset) },
        _ => sequential::synchronized(fd, || {
            // SAFETY: as the caller promises.
            unsafe { next::preadv64v2(fd, parts, count, offset, flags) }
        }),
    }
}

/// Carries `pwritev2` without flags: at the description's offset if `offset` is -1. The kernel does
/// calls with flags.
///
/// # Safety
/// As for `pwritev2` of libc.
unsafe fn write_with(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    match (flags, offset) {
        // SAFETY: as the caller promises.
        (0, -1) => unsafe { write_next(fd, parts, count) },
        // SAFETY: as the caller promises.
        (0, _) => unsafe { write_at(fd, parts, count, offset) },
        _ => sequential::synchronized(fd, || {
            // SAFETY: as the caller promises.
            unsafe { next::pwritev64v2(fd, parts, count, offset, flags) }
        }),
    }
}
