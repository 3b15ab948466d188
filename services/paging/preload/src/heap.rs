//! The allocation functions of libc. Large allocations are paged, all others are libc's.
//!
//! # Concurrency
//! See the module `state`.

use std::ffi::{c_int, c_void};

use crate::{
    state::{self, PAGE},
    sys::{self, Libc},
};

/// Allocates memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    state::map(size).map_or_else(|| Libc::malloc(size), |start| start as *mut c_void)
}

/// Allocates zeroed memory.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let paged = count.checked_mul(size).and_then(state::map);
    paged.map_or_else(|| Libc::calloc(count, size), |start| start as *mut c_void)
}

/// Frees memory.
///
/// # Safety
/// As for `free` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if !state::free(memory as usize) {
        // SAFETY: The memory is not paged, so it is libc's.
        unsafe { Libc::free(memory) };
    }
}

/// Changes the length of an allocation, which may move.
///
/// # Safety
/// As for `realloc` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        return malloc(size);
    }
    let paged = state::len_at(old as usize);
    // Memory of libc that is not large stays with libc.
    if paged.is_none() && !state::is_large(size) {
        // SAFETY: as the caller promises.
        return unsafe { Libc::realloc(old, size) };
    }
    if paged.is_some() && size == 0 {
        state::free(old as usize);
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    let old_len = paged.unwrap_or_else(|| unsafe { usable_size(old) });
    let fits = paged.is_some_and(|len| size <= len && size > len / 2);
    if fits {
        return old;
    }
    let new = malloc(size);
    if !new.is_null() {
        // SAFETY: Both allocations have that length, and the new one is another one.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), old_len.min(size));
            free(old);
        }
    }
    new
}

/// Changes the length of an array.
///
/// # Safety
/// As for `reallocarray` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller promises.
        Some(size) => unsafe { realloc(old, size) },
        None => {
            sys::fail(libc::ENOMEM);
            std::ptr::null_mut()
        }
    }
}

/// Allocates memory at a multiple of `alignment`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    let paged = if alignment <= PAGE && alignment.is_power_of_two() { state::map(size) } else { None };
    paged.map_or_else(|| Libc::memalign(alignment, size), |start| start as *mut c_void)
}

/// Allocates memory at a multiple of `alignment`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    memalign(alignment, size)
}

/// Allocates memory at a multiple of `alignment`, and returns an error number.
///
/// # Safety
/// As for `posix_memalign` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let memory = memalign(alignment, size);
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(memory) };
    0
}

/// Returns the length of an allocation.
///
/// # Safety
/// As for `malloc_usable_size` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    // SAFETY: as the caller promises.
    state::len_at(memory as usize).unwrap_or_else(|| unsafe { usable_size(memory) })
}

/// Returns the length of an allocation of libc.
///
/// # Safety
/// The memory is null or libc's.
unsafe fn usable_size(memory: *mut c_void) -> usize {
    type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
    // SAFETY: The name ends with a zero. The next library that has it is libc.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
    if found.is_null() {
        return 0;
    }
    // SAFETY: The symbol is the function of libc, with that signature.
    let usable_size: UsableSize = unsafe { std::mem::transmute(found) };
    // SAFETY: as the caller promises.
    unsafe { usable_size(memory) }
}
