//! Open files.

use std::{
    ffi::c_void,
    io::{IoSlice, IoSliceMut},
};

use libc::iovec;
use rfs_native::{File, LockMode};

use crate::{
    stat::rfs_stat_t,
    status::{Failure, answer, answer_done, bytes, handle, room, store, take},
};

/// Maximum number of buffers in one call, as IOV_MAX.
const MAX_BUFFERS: usize = 1024;

/// A shared lock, for rfs_lock().
pub const RFS_LOCK_SHARED: i32 = 0;
/// An exclusive lock, for rfs_lock().
pub const RFS_LOCK_EXCLUSIVE: i32 = 1;
/// The end of a lock, for rfs_lock().
pub const RFS_LOCK_NONE: i32 = 2;

/// An open file.
#[allow(non_camel_case_types)]
pub struct rfs_file(pub(crate) File);

/// Reads up to `len` bytes at an offset. Fewer bytes come only at the end of the file.
///
/// Returns the number of bytes or a negative error number.
///
/// # Safety
/// The pointers are valid, and `out` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_pread(
    file: *const rfs_file,
    out: *mut c_void,
    len: usize,
    offset: u64,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the pointers.
        let (file, out) = unsafe { (handle(file)?, room(out.cast(), len)?) };
        Ok(file.0.read_at(out, offset)? as i64)
    }) as isize
}

/// Writes up to `len` bytes at an offset, and all of them unless the server is full or `len` is
/// more than 16 MiB. They are visible to all mounts when the call returns.
///
/// Returns the number of bytes or a negative error number.
///
/// # Safety
/// The pointers are valid, and `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_pwrite(
    file: *const rfs_file,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the pointers.
        let (file, data) = unsafe { (handle(file)?, bytes(data.cast(), len)?) };
        Ok(file.0.write_at(data, offset)? as i64)
    }) as isize
}

/// Returns the buffers of a call, as `convert` makes them.
///
/// # Safety
/// `count` buffers at `parts` are valid.
unsafe fn buffers<B>(
    parts: *const iovec,
    count: usize,
    convert: impl Fn(&iovec) -> Result<B, Failure>,
) -> Result<Vec<B>, Failure> {
    if count > MAX_BUFFERS {
        return Err(Failure::new(libc::EINVAL, "more than 1024 buffers"));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if parts.is_null() {
        return Err(Failure::new(libc::EFAULT, "the list of buffers is NULL"));
    }
    // SAFETY: the caller vouches for the pointer.
    unsafe { std::slice::from_raw_parts(parts, count) }.iter().map(convert).collect()
}

/// Reads bytes at an offset into `count` buffers, one after the other.
///
/// Returns the number of bytes or a negative error number.
///
/// # Safety
/// The pointers are valid, and the buffers do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_preadv(
    file: *const rfs_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the buffers.
        let part = |part: &iovec| unsafe { room(part.iov_base.cast(), part.iov_len) }.map(IoSliceMut::new);
        // SAFETY: the caller vouches for the pointers.
        let (file, mut parts) = unsafe { (handle(file)?, buffers(parts, count, part)?) };
        Ok(file.0.read_vectored_at(&mut parts, offset)? as i64)
    }) as isize
}

/// Writes the bytes of `count` buffers, one after the other, at an offset.
///
/// Returns the number of bytes or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_pwritev(
    file: *const rfs_file,
    parts: *const iovec,
    count: usize,
    offset: u64,
) -> isize {
    answer(|| {
        // SAFETY: the caller vouches for the buffers.
        let part = |part: &iovec| unsafe { bytes(part.iov_base.cast(), part.iov_len) }.map(IoSlice::new);
        // SAFETY: the caller vouches for the pointers.
        let (file, parts) = unsafe { (handle(file)?, buffers(parts, count, part)?) };
        Ok(file.0.write_vectored_at(&parts, offset)? as i64)
    }) as isize
}

/// Appends all bytes in one piece. Stores their offset in `offset`, unless that is NULL.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid, and `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_append(
    file: *const rfs_file,
    data: *const c_void,
    len: usize,
    offset: *mut u64,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (file, data) = unsafe { (handle(file)?, bytes(data.cast(), len)?) };
        let at = file.0.append(data)?;
        if offset.is_null() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the pointer.
        unsafe { store(offset, at) }
    })
}

/// Publishes the exact time of the last write. Written bytes are at the server already.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_fsync(file: *const rfs_file) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    answer_done(|| Ok(unsafe { handle(file) }?.0.sync()?))
}

/// Returns the attributes of an open file in `out`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_fstat(file: *const rfs_file, out: *mut rfs_stat_t) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        unsafe { store(out, handle(file)?.0.stat()?.into()) }
    })
}

/// Sets the length of an open file.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_ftruncate(file: *const rfs_file, length: u64) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    answer_done(|| Ok(unsafe { handle(file) }?.0.set_len(length)?))
}

/// Allocates space for a range, and extends the file to its end.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_allocate(file: *const rfs_file, offset: u64, len: u64) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    answer_done(|| Ok(unsafe { handle(file) }?.0.allocate(offset, len)?))
}

/// Frees the space of a range, which then reads as zero.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_punch_hole(file: *const rfs_file, offset: u64, len: u64) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    answer_done(|| Ok(unsafe { handle(file) }?.0.punch_hole(offset, len)?))
}

/// Locks `len` bytes from `first` on, for this open file: RFS_LOCK_SHARED, RFS_LOCK_EXCLUSIVE, or
/// RFS_LOCK_NONE to unlock. `len` 0 extends the range to the end of any file. With `wait` 0 a
/// conflict is -EAGAIN; else the call waits.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_lock(file: *const rfs_file, kind: i32, first: u64, len: u64, wait: i32) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        let file = &unsafe { handle(file) }?.0;
        let last = match len {
            0 => u64::MAX,
            len => first.checked_add(len - 1).ok_or_else(|| Failure::new(libc::EINVAL, "lock: a range"))?,
        };
        let mode = match kind {
            RFS_LOCK_SHARED => LockMode::Shared,
            RFS_LOCK_EXCLUSIVE => LockMode::Exclusive,
            RFS_LOCK_NONE => return Ok(file.unlock(first..=last)?),
            _ => return Err(Failure::new(libc::EINVAL, "lock: an unknown kind")),
        };
        if wait != 0 {
            return Ok(file.lock(mode, first..=last)?);
        }
        match file.try_lock(mode, first..=last)? {
            true => Ok(()),
            false => Err(Failure::new(libc::EAGAIN, "lock: another lock conflicts")),
        }
    })
}

/// Closes a file. NULL is permitted. Started requests on it end all the same.
///
/// Returns 0 or a negative error number. The file is closed also then.
///
/// # Safety
/// The file is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_close(file: *mut rfs_file) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        let file = unsafe { take(file) };
        Ok(file.map_or(Ok(()), |file| file.0.close())?)
    })
}
