//! The functions of libc that map and unmap memory.
//!
//! A range may cover paged and other memory: each piece is handled by its owner. Addresses stay as
//! the program gave them; lengths are rounded up to pages, as the kernel does.
//!
//! # Concurrency
//! See the module `state`.

use std::{
    ffi::{c_int, c_uint, c_void},
    ops::Range,
};

use crate::{
    regions::Piece,
    state::{self, Locked, PAGE},
    sys,
};

/// Flags of mappings that are not paged: at a given address, of other kinds of pages, or locked.
const OTHER_FLAGS: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

/// Advice to make huge pages of a range at once (Linux 6.1). The crate `libc` lacks the constant.
const MADV_COLLAPSE: c_int = 25;

/// Maps memory or a file.
///
/// # Safety
/// As for `mmap` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let wanted = flags & (anonymous | OTHER_FLAGS) == anonymous;
    let plain = protection == libc::PROT_READ | libc::PROT_WRITE && address.is_null();
    if wanted
        && plain
        && let Some(start) = state::map(len)
    {
        return start as *mut c_void;
    }
    if flags & libc::MAP_FIXED != 0 && touches_paged(range(address, len)) {
        return refuse();
    }
    if !(wanted && plain) && flags & libc::MAP_ANONYMOUS != 0 {
        state::count_local(len);
    }
    let arguments =
        [address as usize, len, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: as the caller promises.
    unsafe { sys::address_call(libc::SYS_mmap, arguments) }
}

/// Maps memory or a file.
///
/// # Safety
/// As for `mmap64` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { mmap(address, len, protection, flags, fd, offset) }
}

/// Unmaps memory.
///
/// # Safety
/// As for `munmap` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    let arguments = [address as usize, len, 0, 0];
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address, len, (libc::SYS_munmap, arguments), 0, Locked::unmap) }
}

/// Gives advice about memory.
///
/// # Safety
/// As for `madvise` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let arguments = [address as usize, len, advice as usize, 0];
    let paged =
        |locked: &mut Locked, region: usize, range: Range<usize>| advise(locked, region, range, advice);
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address, len, (libc::SYS_madvise, arguments), 0, paged) }
}

/// Gives advice about paged memory. Drops the bytes if the advice asks for that. Ignores advice
/// that changes no byte for the program or its children. Returns 0, or an error number. All other
/// advice ends with EINVAL, as from a kernel that does not know it.
fn advise(locked: &mut Locked, region: usize, range: Range<usize>, advice: c_int) -> c_int {
    match advice {
        // Paged memory is never locked.
        libc::MADV_DONTNEED | libc::MADV_DONTNEED_LOCKED => locked.discard(region, range),
        // The pager has its own order and its own read-ahead.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => 0,
        // The kernel may free populated pages at once, too.
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => 0,
        // The kernel may keep the bytes, too.
        libc::MADV_FREE => 0,
        libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => 0,
        // No child of `fork` has paged memory.
        libc::MADV_DONTFORK => 0,
        _ => {
            state::count_unsupported();
            libc::EINVAL
        }
    }
}

/// Changes the protection of memory. Paged memory stays readable: the pager reads it.
///
/// # Safety
/// As for `mprotect` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    let arguments = [address as usize, len, protection as usize, 0];
    let paged = |_: &mut Locked, _: usize, range: Range<usize>| protect(&range, protection);
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address, len, (libc::SYS_mprotect, arguments), libc::ENOMEM, paged) }
}

/// Changes the protection of memory, and its protection key. Paged memory gets no key, which would
/// keep the pager off, too.
///
/// # Safety
/// As for `pkey_mprotect` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let arguments = [address as usize, len, protection as usize, key as usize];
    let paged = |_: &mut Locked, _: usize, range: Range<usize>| {
        // `protect` counts a call that forbids reads.
        if key != -1 && protection & libc::PROT_READ != 0 {
            state::count_unsupported();
        }
        protect(&range, protection)
    };
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address, len, (libc::SYS_pkey_mprotect, arguments), libc::ENOMEM, paged) }
}

/// Changes the protection of paged memory, which stays readable. Returns 0, or an error number.
fn protect(range: &Range<usize>, protection: c_int) -> c_int {
    if protection & libc::PROT_READ == 0 {
        state::count_unsupported();
        return 0;
    }
    let arguments = [range.start, range.len(), protection as usize, 0];
    // SAFETY: The range is the caller's, and remains readable for the pager.
    if unsafe { sys::call(libc::SYS_mprotect, arguments) } == 0 { 0 } else { sys::errno() }
}

/// Locks memory. Paged memory is not locked.
///
/// # Safety
/// As for `mlock` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(address: *const c_void, len: usize) -> c_int {
    let call = (libc::SYS_mlock, [address as usize, len, 0, 0]);
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address.cast_mut(), len, call, libc::ENOMEM, not_locked) }
}

/// Locks memory. Paged memory is not locked.
///
/// # Safety
/// As for `mlock2` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(address: *const c_void, len: usize, flags: c_uint) -> c_int {
    let call = (libc::SYS_mlock2, [address as usize, len, flags as usize, 0]);
    // SAFETY: as the caller promises.
    unsafe { on_pieces(address.cast_mut(), len, call, libc::ENOMEM, not_locked) }
}

/// Locks all memory of a program that is not paged. In other programs it locks nothing: locked
/// pages could not leave local memory.
///
/// # Safety
/// As for `mlockall` of libc.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if state::is_active() {
        state::count_unsupported();
        return 0;
    }
    // SAFETY: The call changes no bytes.
    unsafe { sys::call(libc::SYS_mlockall, [flags as usize, 0, 0, 0]) }
}

/// Leaves paged memory as it is.
fn not_locked(_: &mut Locked, _: usize, _: Range<usize>) -> c_int {
    state::count_unsupported();
    0
}

/// Changes the length of a mapping, which may move. Growing paged memory is copied.
///
/// # Safety
/// As for `mremap` of libc: the old range is the caller's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (Some(old_range), Some(new_range)) = (range(old, old_len), range(old, new_len)) else {
        sys::fail(libc::EINVAL);
        return libc::MAP_FAILED;
    };
    let to_fixed = flags & libc::MREMAP_FIXED != 0;
    if to_fixed && touches_paged(range(new, new_len)) {
        return refuse();
    }
    if !touches_paged(Some(old_range.clone())) {
        let arguments = [old as usize, old_len, new_len, flags as usize, new as usize, 0];
        // SAFETY: as the caller promises.
        return unsafe { sys::address_call(libc::SYS_mremap, arguments) };
    }
    if state::lock().is_some_and(|locked| locked.has_gone(old_range.clone())) {
        sys::fail(libc::EFAULT);
        return libc::MAP_FAILED;
    }
    if to_fixed || flags & !libc::MREMAP_MAYMOVE != 0 || old_len == 0 {
        return refuse();
    }
    if new_range.len() <= old_range.len() {
        // SAFETY: The caller gives the tail up.
        unsafe { munmap(new_range.end as *mut c_void, old_range.end - new_range.end) };
        return old;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        sys::fail(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: The kernel or the pager chooses the address.
    let copy = unsafe { mmap(std::ptr::null_mut(), new_len, protection, flags, -1, 0) };
    if copy != libc::MAP_FAILED {
        // SAFETY: The old range is the caller's, which gives it up. The new mapping is longer.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), copy.cast::<u8>(), old_range.len());
            munmap(old, old_len);
        }
    }
    copy
}

/// Returns the pages of a range, or `None` if the range goes beyond the last address.
fn range(address: *mut c_void, len: usize) -> Option<Range<usize>> {
    let start = address as usize;
    Some(start..start.checked_add(len)?.checked_next_multiple_of(PAGE)?)
}

fn touches_paged(range: Option<Range<usize>>) -> bool {
    range.is_some_and(|range| state::lock().is_some_and(|locked| locked.touches(range)))
}

/// Refuses a call that paged memory does not support.
fn refuse() -> *mut c_void {
    state::count_unsupported();
    sys::fail(libc::ENOMEM);
    libc::MAP_FAILED
}

/// Runs `paged` on the paged pieces of a range, and the system call on other memory. Pieces that
/// are gone end with the error number `gone`, or are passed over if it is 0. The call gets its own
/// arguments if the range has no address of a region.
///
/// # Safety
/// As for [`sys::address_call`].
unsafe fn on_pieces(
    address: *mut c_void,
    len: usize,
    (number, arguments): (i64, [usize; 4]),
    gone: c_int,
    paged: impl Fn(&mut Locked, usize, Range<usize>) -> c_int,
) -> c_int {
    let start = address as usize;
    let mut locked = if start.is_multiple_of(PAGE) { state::lock() } else { None };
    // The kernel refuses a range beyond the last address.
    let pages = range(address, len);
    let pieces = locked.as_ref().zip(pages).map(|(locked, pages)| locked.pieces(pages)).unwrap_or_default();
    let Some(locked) =
        locked.as_mut().filter(|_| pieces.iter().any(|piece| !matches!(piece, Piece::Other(_))))
    else {
        drop(locked);
        // SAFETY: as the caller promises.
        return unsafe { sys::call(number, arguments) };
    };
    for piece in pieces {
        let error = match piece {
            Piece::Paged(region, range) => paged(locked, region, range),
            Piece::Gone(_) => gone,
            Piece::Other(range) => {
                let [.., third, fourth] = arguments;
                // SAFETY: as the caller promises, for a part of the range.
                match unsafe { sys::call(number, [range.start, range.len(), third, fourth]) } {
                    0 => 0,
                    _ => sys::errno(),
                }
            }
        };
        if error != 0 {
            return sys::fail(error);
        }
    }
    0
}
