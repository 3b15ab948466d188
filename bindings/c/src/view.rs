//! Bytes that are read in place.

use std::ffi::c_void;

use rfs_native::View;

use crate::{
    file::rfs_file,
    status::{answer_done, handle, store_handle, take},
};

/// Bytes of a file, in the server's memory if that is mapped here.
#[allow(non_camel_case_types)]
pub struct rfs_view(View);

/// Returns a view of up to `len` bytes at an offset in `out`. rfs_view_free() frees it.
///
/// A truncation by any mount waits until the view is freed. This mount loses its session if that
/// takes longer than the server's recall timeout. A thread that has a view of a file must not
/// truncate the file.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_view_open(
    file: *const rfs_file,
    offset: u64,
    len: usize,
    out: *mut *mut rfs_view,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointer.
        let view = unsafe { handle(file) }?.0.view(offset, len)?;
        // SAFETY: the caller vouches for the pointer.
        unsafe { store_handle(out, rfs_view(view)) }
    })
}

/// Returns the first byte. Other mounts may change bytes in place at any time.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_view_data(view: *const rfs_view) -> *const c_void {
    // SAFETY: the caller vouches for the pointer.
    unsafe { view.as_ref() }.map_or(std::ptr::null(), |view| view.0.as_ptr().cast())
}

/// Returns the number of bytes.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_view_len(view: *const rfs_view) -> usize {
    // SAFETY: the caller vouches for the pointer.
    unsafe { view.as_ref() }.map_or(0, |view| view.0.len())
}

/// Returns 1 if the bytes are in the server's memory, and 0 if the view has a copy.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_view_is_in_place(view: *const rfs_view) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    unsafe { view.as_ref() }.is_some_and(|view| view.0.is_in_place()).into()
}

/// Frees a view. NULL is permitted.
///
/// # Safety
/// The view and its bytes are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_view_free(view: *mut rfs_view) {
    // SAFETY: the caller vouches for the pointer.
    drop(unsafe { take(view) });
}
