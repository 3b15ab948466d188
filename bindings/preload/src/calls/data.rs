//! Reads and writes of one buffer.
//!
//! # Concurrency
//! See the module `carry`.

use std::ffi::{c_int, c_void};

use libc::{off_t, size_t, ssize_t};

use super::export;
use crate::{
    carry::{
        buffers::{self, Failed, bytes, room},
        positional_io, sequential,
    },
    counts::Call,
    next,
};

export! { read | __read: fn(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t => read_next; }
export! { write | __write: fn(fd: c_int, data: *const c_void, len: size_t) -> ssize_t => write_next; }
export! { pread | pread64 | __pread64: fn(fd: c_int, out: *mut c_void, len: size_t, offset: off_t) -> ssize_t => read_at; }
export! { pwrite | pwrite64 | __pwrite64: fn(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t => write_at; }
export! { __read_chk: fn(fd: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t => read_checked; }
export! {
    __pread_chk | __pread64_chk:
    fn(fd: c_int, out: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t => read_checked_at;
}
export! { lseek | lseek64 | __lseek: fn(fd: c_int, offset: off_t, whence: c_int) -> off_t => seek; }

/// Carries `read` at the offset of the description.
///
/// # Safety
/// As for `read` of libc.
unsafe fn read_next(fd: c_int, out: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::read(fd, out, len) };
    sequential::carry(
        fd,
        Call::Read,
        kernel,
        |file, _, at| {
            // SAFETY: as the caller promises.
            let len = buffers::read(file, unsafe { room(out, len) }.ok_or(Failed::AskKernel)?, at)?;
            Ok((len, at + len as u64))
        },
        0,
    )
}

/// Carries `write` at the offset of the description, or at the end if the description appends.
///
/// # Safety
/// As for `write` of libc.
unsafe fn write_next(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::write(fd, data, len) };
    sequential::carry(
        fd,
        Call::Write,
        kernel,
        |file, description, at| {
            // SAFETY: as the caller promises.
            let data = unsafe { bytes(data, len) }.ok_or(Failed::AskKernel)?;
            if description.access.appends {
                return buffers::append(file, description.access, data);
            }
            let len = buffers::write(file, description.access, data, at)?;
            Ok((len, at + len as u64))
        },
        len,
    )
}

/// Carries `pread`. The kernel judges negative offsets.
///
/// # Safety
/// As for `pread` of libc.
unsafe fn read_at(fd: c_int, out: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::pread64(fd, out, len, offset) };
    positional_io::carry(fd, Call::Pread, kernel, |file, _| {
        let offset = u64::try_from(offset).map_err(|_| Failed::AskKernel)?;
        // SAFETY: as the caller promises.
        buffers::read(file, unsafe { room(out, len) }.ok_or(Failed::AskKernel)?, offset)
    })
}

/// Carries `pwrite`. Appends at any offset if the description appends, as Linux does. The kernel
/// judges negative offsets.
///
/// # Safety
/// As for `pwrite` of libc.
unsafe fn write_at(fd: c_int, data: *const c_void, len: size_t, offset: off_t) -> ssize_t {
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::pwrite64(fd, data, len, offset) };
    positional_io::carry(fd, Call::Pwrite, kernel, |file, access| {
        let offset = u64::try_from(offset).map_err(|_| Failed::AskKernel)?;
        // SAFETY: as the caller promises.
        let data = unsafe { bytes(data, len) }.ok_or(Failed::AskKernel)?;
        if access.appends {
            // Linux appends at any offset.
            return buffers::append(file, access, data).map(|(len, _)| len);
        }
        buffers::write(file, access, data, offset)
    })
}

/// Carries `__read_chk` as `read`. Ends the program if `len` exceeds the `room` of the buffer.
///
/// # Safety
/// As for `__read_chk` of libc.
unsafe fn read_checked(fd: c_int, out: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check_room(len, room);
    // SAFETY: as the caller promises.
    unsafe { read_next(fd, out, len) }
}

/// Carries `__pread_chk` as `pread`. Ends the program if `len` exceeds the `room` of the buffer.
///
/// # Safety
/// As for `__pread_chk` of libc.
unsafe fn read_checked_at(fd: c_int, out: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t {
    check_room(len, room);
    // SAFETY: as the caller promises.
    unsafe { read_at(fd, out, len, offset) }
}

/// Ends the program if it reads more than its buffer has room for, as libc does.
fn check_room(len: size_t, room: size_t) {
    if len > room {
        std::process::abort();
    }
}

/// Carries `lseek` if the library has the offset of the description. Otherwise the kernel moves its
/// own.
///
/// # Safety
/// As for `lseek` of libc.
unsafe fn seek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: as the caller promises.
    sequential::seek(fd, offset, whence, || unsafe { next::lseek64(fd, offset, whence) })
}
