//! Copies between descriptors.
//!
//! The library carries `sendfile` from a given offset. The kernel does the others, and the mount
//! has the server copy between two of its files. A copy at the offset of a description leaves the
//! offset to the kernel, because a copy to a socket may take any time.
//!
//! # Concurrency
//! Any thread.

use std::{
    cell::RefCell,
    ffi::{c_int, c_uint, c_void},
};

use libc::{off_t, size_t, ssize_t};

use super::export;
use crate::{
    carry::{
        buffers::{self, Failed, Outcome},
        positional_io,
    },
    counts::Call,
    next, process,
};

/// Bytes of one step of a copy.
const STEP: usize = 128 << 10;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

export! {
    sendfile | sendfile64:
    fn(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t => send_file;
}
export! {
    copy_file_range: fn(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t => copy_range;
}
export! {
    splice: fn(
        from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t => splice_pages;
}

/// Leaves the offset of a descriptor to the kernel if a call uses it. The kernel learns the size.
fn leave_offset(fd: c_int, is_used: bool) {
    let Some(description) = process::get(fd) else { return };
    if is_used {
        process::give_offset_back(fd, &description);
    }
    if description.opened().is_some() {
        process::refresh_size(fd);
    }
}

/// Carries `sendfile` from a given offset. Without one, the kernel does the call and gets the
/// offsets of both descriptors.
///
/// # Safety
/// As for `sendfile` of libc.
unsafe fn send_file(out: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
    leave_offset(out, true);
    // SAFETY: as the caller promises.
    let kernel = || unsafe { next::sendfile64(out, from, offset, len) };
    if offset.is_null() {
        leave_offset(from, true);
        return kernel();
    }
    positional_io::carry(from, Call::Sendfile, kernel, |file, _| {
        // SAFETY: the pointer is valid, as the caller promises.
        let start = u64::try_from(unsafe { *offset }).map_err(|_| Failed::AskKernel)?;
        let read = |buffer: &mut [u8], at: u64| buffers::read(file, buffer, at);
        let sent = send(out, start, len, read)?;
        // SAFETY: as above. A file has at most 2^63-1 bytes.
        unsafe { *offset = (start + sent as u64) as off_t };
        Ok(sent)
    })
}

/// Writes the bytes that `read` reads from `start` on to a descriptor, until a write is short.
fn send(out: c_int, start: u64, len: usize, read: impl Fn(&mut [u8], u64) -> Outcome) -> Outcome {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(STEP, 0);
        let mut sent = 0;
        while sent < len {
            let part = &mut buffer[..STEP.min(len - sent)];
            let count = match read(part, start + sent as u64) {
                Ok(0) => break,
                Ok(count) => count,
                Err(_) if sent > 0 => break,
                Err(e) => return Err(e),
            };
            // SAFETY: the buffer has that many bytes.
            match unsafe { next::write(out, part.as_ptr().cast::<c_void>(), count) } {
                written if written < 0 && sent == 0 => return Err(Failed::Errno(next::errno())),
                written if written < 0 => break,
                written => {
                    sent += written as usize;
                    if (written as usize) < count {
                        break;
                    }
                }
            }
        }
        Ok(sent)
    })
}

/// Defines a copy by the kernel, which learns the offsets that it uses.
macro_rules! copy_by_kernel {
    ($name:ident, $next:ident) => {
        /// Copies between two descriptors by the kernel, after it got the offsets that the call
        /// uses.
        ///
        /// # Safety
        /// As for the function of libc.
        pub(super) unsafe fn $name(
            from: c_int,
            from_offset: *mut off_t,
            to: c_int,
            to_offset: *mut off_t,
            len: size_t,
            flags: c_uint,
        ) -> ssize_t {
            leave_offset(from, from_offset.is_null());
            leave_offset(to, to_offset.is_null());
            // SAFETY: as the caller promises.
            unsafe { next::$next(from, from_offset, to, to_offset, len, flags) }
        }
    };
}

copy_by_kernel! { copy_range, copy_file_range }
copy_by_kernel! { splice_pages, splice }
