//! Buffers of the program, for reads and writes of any length.
//!
//! # Concurrency
//! The calling thread.

use std::{
    ffi::{c_int, c_void},
    io::{IoSlice, IoSliceMut},
    slice,
};

use libc::iovec;
use rfs_native::{Error, File};

use crate::{descriptor::access::Access, process};

/// Maximum bytes of one call, as in the kernel.
const MAX_LEN: usize = 0x7fff_f000;
/// Maximum number of buffers of one call, as IOV_MAX.
const MAX_BUFFERS: usize = 1024;
/// Length up to which several buffers are one operation of the native API.
const MAX_GATHERED: usize = 16 << 20;

/// Why the native API did not do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The kernel does the call instead.
    AskKernel,
    /// The call fails with this error number.
    Errno(c_int),
}

impl From<Error> for Failed {
    fn from(_: Error) -> Failed {
        Failed::AskKernel
    }
}

/// Result of a call: the number of bytes.
pub(crate) type Outcome = Result<usize, Failed>;

/// Returns a buffer that a call fills, at most as long as the kernel would fill.
///
/// # Safety
/// `len` bytes at `out` are writable.
pub(crate) unsafe fn room<'a>(out: *mut c_void, len: usize) -> Option<&'a mut [u8]> {
    let is_valid = !out.is_null() && len <= isize::MAX as usize;
    // SAFETY: as the caller promises.
    is_valid.then(|| unsafe { slice::from_raw_parts_mut(out.cast(), len.min(MAX_LEN)) })
}

/// Returns the bytes of a call, at most as many as the kernel would write.
///
/// # Safety
/// `len` bytes at `data` are readable.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Option<&'a [u8]> {
    let is_valid = !data.is_null() && len <= isize::MAX as usize;
    // SAFETY: as the caller promises.
    is_valid.then(|| unsafe { slice::from_raw_parts(data.cast(), len.min(MAX_LEN)) })
}

/// Returns the buffers of a vectored call. `None` if the kernel has to judge them.
///
/// # Safety
/// `count` buffers at `parts` are valid.
pub(crate) unsafe fn parts<'a>(parts: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_BUFFERS)?;
    if parts.is_null() || count == 0 {
        return None;
    }
    // SAFETY: as the caller promises.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
    let is_valid = parts.iter().all(|part| part.iov_len == 0 || !part.iov_base.is_null());
    (is_valid && total <= MAX_GATHERED).then_some(parts)
}

/// Reads at an offset.
pub(crate) fn read(file: &File, out: &mut [u8], offset: u64) -> Outcome {
    Ok(file.read_at(out, offset)?)
}

/// Reads into several buffers.
///
/// # Safety
/// The buffers are writable.
pub(crate) unsafe fn read_parts(file: &File, parts: &[iovec], offset: u64) -> Outcome {
    let part = |part: &iovec| {
        // SAFETY: as the caller promises.
        let out = unsafe { room(part.iov_base, part.iov_len) };
        IoSliceMut::new(out.unwrap_or_default())
    };
    if let [one] = parts {
        return Ok(file.read_at(&mut part(one), offset)?);
    }
    let mut buffers: Vec<IoSliceMut<'_>> = parts.iter().map(part).collect();
    Ok(file.read_vectored_at(&mut buffers, offset)?)
}

/// Writes at an offset, all bytes if there is space.
pub(crate) fn write(file: &File, access: Access, data: &[u8], offset: u64) -> Outcome {
    may_write(offset, data.len())?;
    let mut written = 0;
    while written < data.len() {
        match file.write_at(&data[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(len) => written += len,
            Err(_) if written > 0 => break,
            Err(e) => return Err(e.into()),
        }
    }
    sync(file, access)?;
    Ok(written)
}

/// Writes several buffers.
///
/// # Safety
/// The buffers are readable.
pub(crate) unsafe fn write_parts(file: &File, access: Access, parts: &[iovec], offset: u64) -> Outcome {
    may_write(offset, parts.iter().map(|part| part.iov_len).sum())?;
    // SAFETY: as the caller promises.
    let written = file.write_vectored_at(&unsafe { slices(parts) }, offset)?;
    sync(file, access)?;
    Ok(written)
}

/// Appends bytes in one piece. Returns their number, and the offset behind them.
pub(crate) fn append(file: &File, access: Access, data: &[u8]) -> Result<(usize, u64), Failed> {
    let offset = appended(file, data.len(), || file.append(data))?;
    sync(file, access)?;
    Ok((data.len(), offset + data.len() as u64))
}

/// Appends the bytes of several buffers in one piece.
///
/// # Safety
/// The buffers are readable.
pub(crate) unsafe fn append_parts(
    file: &File,
    access: Access,
    parts: &[iovec],
) -> Result<(usize, u64), Failed> {
    let len = parts.iter().map(|part| part.iov_len).sum();
    // SAFETY: as the caller promises.
    let offset = appended(file, len, || file.append_vectored(&unsafe { slices(parts) }))?;
    sync(file, access)?;
    Ok((len, offset + len as u64))
}

fn appended(file: &File, len: usize, append: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Failed> {
    // The kernel appends longer data in pieces, and short if the server is full.
    if len == 0 || len > MAX_GATHERED {
        return Err(Failed::AskKernel);
    }
    may_write(file.stat()?.size, len)?;
    append().map_err(|e| match e.may_have_happened() {
        true => Failed::Errno(e.errno()),
        false => Failed::AskKernel,
    })
}

/// Returns the buffers as slices, each at most as long as the kernel would write.
///
/// # Safety
/// The buffers are readable.
unsafe fn slices(parts: &[iovec]) -> Vec<IoSlice<'_>> {
    let part = |part: &iovec| {
        // SAFETY: as the caller promises.
        IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) }.unwrap_or_default())
    };
    parts.iter().map(part).collect()
}

fn may_write(offset: u64, len: usize) -> Result<(), Failed> {
    let end = offset.checked_add(len as u64).filter(|end| process::may_write_to(*end));
    end.map(drop).ok_or(Failed::AskKernel)
}

/// Synchronizes after a write to a file that was opened with O_SYNC or O_DSYNC.
fn sync(file: &File, access: Access) -> Result<(), Failed> {
    if access.syncs {
        // The bytes are there. Only their exact time may be missing.
        file.sync().ok();
    }
    Ok(())
}
