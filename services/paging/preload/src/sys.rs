//! The kernel's and libc's own functions behind the ones that this library takes over.
//!
//! # Concurrency
//! As the functions of the kernel and of libc.

use std::{
    alloc::{GlobalAlloc, Layout},
    ffi::{c_int, c_long, c_void},
};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_free(memory: *mut c_void);
}

/// The allocator of libc, which allocates for this library as well: its memory is never paged.
#[derive(Debug)]
pub(crate) struct Libc;

impl Libc {
    pub(crate) fn malloc(size: usize) -> *mut c_void {
        // SAFETY: Any size is valid.
        unsafe { __libc_malloc(size) }
    }

    pub(crate) fn calloc(count: usize, size: usize) -> *mut c_void {
        // SAFETY: Any size is valid.
        unsafe { __libc_calloc(count, size) }
    }

    /// Changes the length of an allocation of libc.
    ///
    /// # Safety
    /// As for `realloc`: `old` is null or memory of libc, which the caller gives up.
    pub(crate) unsafe fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: as the caller promises.
        unsafe { __libc_realloc(old, size) }
    }

    pub(crate) fn memalign(alignment: usize, size: usize) -> *mut c_void {
        // SAFETY: libc checks the alignment.
        unsafe { __libc_memalign(alignment, size) }
    }

    /// Frees an allocation of libc.
    ///
    /// # Safety
    /// As for `free`: `memory` is null or memory of libc, which the caller gives up.
    pub(crate) unsafe fn free(memory: *mut c_void) {
        // SAFETY: as the caller promises.
        unsafe { __libc_free(memory) }
    }
}

// SAFETY: The functions of libc keep the promises of an allocator. `memalign` is used for
// alignments beyond the 16 bytes of `malloc`.
unsafe impl GlobalAlloc for Libc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 16 {
            return Libc::memalign(layout.align(), layout.size()).cast();
        }
        Libc::malloc(layout.size()).cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 16 {
            let memory = Libc::memalign(layout.align(), layout.size());
            if !memory.is_null() {
                // SAFETY: The memory has that size.
                unsafe { memory.cast::<u8>().write_bytes(0, layout.size()) };
            }
            return memory.cast();
        }
        Libc::calloc(1, layout.size()).cast()
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: The memory is of `alloc`.
        unsafe { Libc::free(memory.cast()) }
    }
}

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: Libc = Libc;

/// Issues a system call whose result is an address or an error, as the function of libc does.
///
/// # Safety
/// The call is about memory that its issuer may map, unmap or change.
pub(crate) unsafe fn address_call(number: c_long, arguments: [usize; 6]) -> *mut c_void {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(number, a, b, c, d, e, f) as *mut c_void }
}

/// Issues a system call whose result is zero or an error.
///
/// # Safety
/// As for [`address_call`].
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 4]) -> c_int {
    let [a, b, c, d] = arguments;
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(number, a, b, c, d) as c_int }
}

/// Sets `errno`, and returns -1.
pub(crate) fn fail(error: c_int) -> c_int {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// Returns `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() }
}
