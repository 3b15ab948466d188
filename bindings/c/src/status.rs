//! Results of calls, and the text of the last error.
//!
//! # Concurrency
//! The text belongs to the calling thread.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, OsStr, c_char},
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    ptr,
};

use rfs_native::{ConnectError, Error};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// A failed call: a positive error number, and a text.
pub(crate) struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

/// Runs a call. Returns its number, or the negative error number of its failure.
pub(crate) fn answer(call: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(number)) => return number,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(libc::ENOTRECOVERABLE, "a call of librfs has panicked"),
    };
    let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
    MESSAGE.with_borrow_mut(|message| *message = text);
    -i64::from(failure.errno)
}

/// Runs a call that returns 0.
pub(crate) fn answer_done(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // An error number fits into 32 bits.
    answer(|| call().map(|()| 0)) as i32
}

/// Returns the object of a handle.
///
/// # Safety
/// `handle` is null, or points to a live value.
pub(crate) unsafe fn handle<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::new(libc::EFAULT, "a handle is NULL"))
}

/// Returns a text.
///
/// # Safety
/// `text` is null, or points to a string that ends with a NUL.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::new(libc::EFAULT, "a string is NULL"));
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Returns a path.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { text(path) }?.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// Returns bytes that a call reads.
///
/// # Safety
/// `len` bytes at `data` are readable, and no other thread writes them meanwhile.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    check(data, len)?;
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Returns bytes that a call fills.
///
/// # Safety
/// `len` bytes at `out` are writable, and no other thread uses them meanwhile.
pub(crate) unsafe fn room<'a>(out: *mut u8, len: usize) -> Result<&'a mut [u8], Failure> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(out, len)?;
    // SAFETY: the caller vouches for it.
    Ok(unsafe { std::slice::from_raw_parts_mut(out, len) })
}

fn check(data: *const u8, len: usize) -> Result<(), Failure> {
    if data.is_null() {
        return Err(Failure::new(libc::EFAULT, "a buffer is NULL"));
    }
    if len > isize::MAX as usize {
        return Err(Failure::new(libc::EINVAL, "a buffer is longer than any memory"));
    }
    Ok(())
}

/// Copies bytes to a buffer, cut to its length. Returns their number.
pub(crate) fn fill(out: &mut [u8], bytes: &[u8]) -> i64 {
    let len = bytes.len().min(out.len());
    out[..len].copy_from_slice(&bytes[..len]);
    len as i64
}

/// Stores the result of a call.
///
/// # Safety
/// `out` is null, or points to memory for a `T`.
pub(crate) unsafe fn store<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(libc::EFAULT, "the pointer to the result is NULL"));
    }
    // SAFETY: the caller vouches for it. The memory may be uninitialized, so nothing is dropped.
    unsafe { ptr::write(out, value) };
    Ok(())
}

/// Stores a new handle of a value.
///
/// # Safety
/// `out` is null, or points to memory for a pointer.
pub(crate) unsafe fn store_handle<T>(out: *mut *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::new(libc::EFAULT, "the pointer to the result is NULL"));
    }
    // SAFETY: the caller vouches for it.
    unsafe { ptr::write(out, Box::into_raw(Box::new(value))) };
    Ok(())
}

/// Takes a value back from its handle. Returns `None` for NULL.
///
/// # Safety
/// `handle` is null, or came from [`store_handle`] and is not used any more.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller vouches for it.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Returns the text of the last error of the calling thread. It is valid until the thread's next
/// call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn rfs_error() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}
