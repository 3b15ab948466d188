//! The allocation functions of libc. Large allocations are paged, and small ones of the program if
//! the settings say so. All others are libc's.
//!
//! Each function hands the address of its caller on, because allocations of libc itself stay local
//! (module `small`).
//!
//! # Concurrency
//! See the modules `state` and `small`.

use std::ffi::{c_int, c_void};

use crate::{
    small::{self, callers::Caller},
    state::{self, PAGE},
    sys::{self, Libc},
};

/// Alignment of allocations for which none is asked.
const ALIGNMENT: usize = 16;

/// Exports a function of libc that calls another function with the caller's address as a further
/// argument, in the given register of each architecture.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! export {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $out:ty,
     $target:ident, $x86_64:literal, $aarch64:literal) => {
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("mov ", $x86_64, ", [rsp]"), "jmp {target}", target = sym $target);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {target}", target = sym $target);
        }
    };
}

/// Exports a function of libc. The caller is not known here, so small allocations stay local.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
macro_rules! export {
    ($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $out:ty,
     $target:ident, $x86_64:literal, $aarch64:literal) => {
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $out {
            // SAFETY: as the caller promises.
            unsafe { $target($($argument,)* Caller(0)) }
        }
    };
}

export! {
    /// Allocates memory.
    ///
    /// # Safety
    /// As for `malloc` of libc.
    malloc(size: usize) -> *mut c_void, malloc_for, "rsi", "x1"
}

export! {
    /// Allocates zeroed memory.
    ///
    /// # Safety
    /// As for `calloc` of libc.
    calloc(count: usize, size: usize) -> *mut c_void, calloc_for, "rdx", "x2"
}

export! {
    /// Changes the length of an allocation, which may move.
    ///
    /// # Safety
    /// As for `realloc` of libc.
    realloc(old: *mut c_void, size: usize) -> *mut c_void, realloc_for, "rdx", "x2"
}

export! {
    /// Changes the length of an array.
    ///
    /// # Safety
    /// As for `reallocarray` of libc.
    reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void,
    reallocarray_for, "rcx", "x3"
}

export! {
    /// Allocates memory at a multiple of `alignment`.
    ///
    /// # Safety
    /// As for `memalign` of libc.
    memalign(alignment: usize, size: usize) -> *mut c_void, memalign_for, "rdx", "x2"
}

export! {
    /// Allocates memory at a multiple of `alignment`.
    ///
    /// # Safety
    /// As for `aligned_alloc` of libc.
    aligned_alloc(alignment: usize, size: usize) -> *mut c_void, memalign_for, "rdx", "x2"
}

export! {
    /// Allocates memory at a multiple of `alignment`, and returns an error number.
    ///
    /// # Safety
    /// As for `posix_memalign` of libc.
    posix_memalign(out: *mut *mut c_void, alignment: usize, size: usize) -> c_int,
    posix_memalign_for, "rcx", "x3"
}

extern "C" fn malloc_for(size: usize, caller: Caller) -> *mut c_void {
    if let Some(block) = small::allocate(size, ALIGNMENT, caller) {
        return block.address as *mut c_void;
    }
    state::map(size).map_or_else(|| Libc::malloc(size), |start| start as *mut c_void)
}

extern "C" fn calloc_for(count: usize, size: usize, caller: Caller) -> *mut c_void {
    let Some(len) = count.checked_mul(size) else { return Libc::calloc(count, size) };
    if let Some(block) = small::allocate(len, ALIGNMENT, caller) {
        let memory = block.address as *mut c_void;
        if !block.is_new {
            // SAFETY: The block has at least that length, and no other user.
            unsafe { memory.cast::<u8>().write_bytes(0, len) };
        }
        return memory;
    }
    state::map(len).map_or_else(|| Libc::calloc(count, size), |start| start as *mut c_void)
}

/// Changes the length of an allocation for the given caller. Moves it if it enters or leaves paged
/// memory, or does not fit any more.
///
/// # Safety
/// As for `realloc` of libc.
unsafe extern "C" fn realloc_for(old: *mut c_void, size: usize, caller: Caller) -> *mut c_void {
    if old.is_null() {
        return malloc_for(size, caller);
    }
    let paged = small::len_at(old as usize).or_else(|| state::len_at(old as usize));
    // Memory of libc that is not large stays with libc.
    if paged.is_none() && !state::is_large(size) {
        // SAFETY: as the caller promises.
        return unsafe { Libc::realloc(old, size) };
    }
    if paged.is_some() && size == 0 {
        // SAFETY: as the caller promises.
        unsafe { free(old) };
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    let old_len = paged.unwrap_or_else(|| unsafe { usable_size(old) });
    let fits = paged.is_some_and(|len| size <= len && size > len / 2);
    if fits {
        return old;
    }
    let new = malloc_for(size, caller);
    if !new.is_null() {
        // SAFETY: Both allocations have that length, and the new one is another one.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), old_len.min(size));
            free(old);
        }
    }
    new
}

/// Changes the length of an allocation to `count` times `size` bytes for the given caller. Fails
/// with ENOMEM if the product overflows.
///
/// # Safety
/// As for `reallocarray` of libc.
unsafe extern "C" fn reallocarray_for(
    old: *mut c_void,
    count: usize,
    size: usize,
    caller: Caller,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller promises.
        Some(size) => unsafe { realloc_for(old, size, caller) },
        None => {
            sys::fail(libc::ENOMEM);
            std::ptr::null_mut()
        }
    }
}

extern "C" fn memalign_for(alignment: usize, size: usize, caller: Caller) -> *mut c_void {
    if let Some(block) = small::allocate(size, alignment, caller) {
        return block.address as *mut c_void;
    }
    let fits = alignment <= PAGE && alignment.is_power_of_two();
    if !fits {
        state::count_local(size);
    }
    let paged = if fits { state::map(size) } else { None };
    paged.map_or_else(|| Libc::memalign(alignment, size), |start| start as *mut c_void)
}

/// Allocates aligned memory for the given caller, and stores its address at `out`. Returns 0,
/// EINVAL or ENOMEM.
///
/// # Safety
/// As for `posix_memalign` of libc.
unsafe extern "C" fn posix_memalign_for(
    out: *mut *mut c_void,
    alignment: usize,
    size: usize,
    caller: Caller,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let memory = memalign_for(alignment, size, caller);
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(memory) };
    0
}

/// Frees memory.
///
/// # Safety
/// As for `free` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if !small::free(memory as usize) && !state::free(memory as usize) {
        // SAFETY: The memory is not paged, so it is libc's.
        unsafe { Libc::free(memory) };
    }
}

/// Returns the length of an allocation.
///
/// # Safety
/// As for `malloc_usable_size` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    let paged = small::len_at(memory as usize).or_else(|| state::len_at(memory as usize));
    // SAFETY: as the caller promises.
    paged.unwrap_or_else(|| unsafe { usable_size(memory) })
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
