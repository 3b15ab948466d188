//! Small allocations in paged memory.
//!
//! All small allocations share one mapping, the heap. Its bookkeeping is in local memory, so
//! neither `malloc` nor `free` touches a page of the heap.
//!
//! Allocations that libc and the loader make for themselves stay with libc, because threads of the
//! pager read them. Examples are lists of loaded libraries, and thread-local storage. The address
//! of the caller tells them from those of the program (module `callers`).
//!
//! # Concurrency
//! One lock guards the bookkeeping. It is taken after that of `state`, and its holder waits for no
//! thread. `fork` holds it, so a child finds it free.

pub(crate) mod callers;
mod classes;
mod slabs;

use std::{
    cell::Cell,
    io,
    mem::ManuallyDrop,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

pub(crate) use self::classes::MAX as MAX_SMALL;
use self::{callers::Caller, classes::Class, slabs::Slabs};
use crate::{state, sys, threads};

/// Length of the heap to make; zero if small allocations are not paged.
static CAPACITY: AtomicUsize = AtomicUsize::new(0);
/// The addresses of the heap; zero if there is none. A child of `fork` keeps those of its parent,
/// where it has a mapping without access.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new());

thread_local! {
    /// The lock while this thread is in `fork`.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, Slabs>>>> = const { Cell::new(None) };
}

/// Memory of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: usize,
    /// The block was never used, so its bytes are zero.
    pub(crate) is_new: bool,
}

fn slabs() -> MutexGuard<'static, Slabs> {
    // A panic leaves no half of a change behind.
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pages small allocations, in a heap of `capacity` bytes.
pub(crate) fn configure(capacity: usize) {
    callers::find_libraries();
    CAPACITY.store(capacity, Ordering::Relaxed);
}

/// Allocates memory for a caller. `None` if it has to come from elsewhere.
pub(crate) fn allocate(size: usize, alignment: usize, caller: Caller) -> Option<Block> {
    let capacity = CAPACITY.load(Ordering::Relaxed);
    if capacity == 0 || !caller.is_program() {
        return None;
    }
    let class = Class::of(size, alignment)?;
    if START.load(Ordering::Acquire) == 0 {
        make_heap(capacity)?;
    }
    let _inside = threads::enter()?;
    let Some((offset, is_new)) = slabs().allocate(class) else {
        state::count_unsupported();
        return None;
    };
    Some(Block { address: START.load(Ordering::Acquire) + offset, is_new })
}

/// Maps the heap, unless another thread has.
fn make_heap(capacity: usize) -> Option<()> {
    let mut locked = state::lock()?;
    if START.load(Ordering::Acquire) != 0 {
        return Some(());
    }
    let Some(start) = locked.map(capacity) else {
        // The pager has said why.
        CAPACITY.store(0, Ordering::Relaxed);
        state::count_unsupported();
        return None;
    };
    slabs().begin(capacity);
    END.store(start + capacity, Ordering::Relaxed);
    START.store(start, Ordering::Release);
    Some(())
}

/// Returns the offset of an address in the heap.
fn offset(address: usize) -> Option<usize> {
    let start = START.load(Ordering::Acquire);
    (start != 0 && (start..END.load(Ordering::Relaxed)).contains(&address)).then(|| address - start)
}

/// Frees memory. Returns false if it is not in the heap.
pub(crate) fn free(address: usize) -> bool {
    offset(address).is_some_and(|offset| {
        slabs().free(offset);
        true
    })
}

/// Returns the length of an allocation in the heap.
pub(crate) fn len_at(address: usize) -> Option<usize> {
    offset(address).map(|offset| slabs().len_at(offset))
}

/// Takes the lock before `fork`, after that of `state`.
pub(crate) extern "C" fn before_fork() {
    FORKING.set(Some(ManuallyDrop::new(slabs())));
}

/// Releases the lock in the parent.
pub(crate) extern "C" fn after_fork_in_parent() {
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}

/// Releases the lock in the child, which cannot use the heap. It may still free blocks there.
pub(crate) extern "C" fn after_fork_in_child() {
    CAPACITY.store(0, Ordering::Relaxed);
    let start = START.load(Ordering::Acquire);
    if start != 0 {
        reserve(start..END.load(Ordering::Relaxed));
    }
    after_fork_in_parent();
}

/// Takes the addresses of the heap in a child of `fork`, where they are free. Otherwise another
/// mapping could come to lie there, and `free` would take its memory for small blocks.
fn reserve(range: Range<usize>) {
    let protection = libc::PROT_NONE as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let arguments = [range.start, range.len(), protection, flags as usize, usize::MAX, 0];
    // SAFETY: The mapping replaces no other one, and no access to it is possible.
    let found = unsafe { sys::address_call(libc::SYS_mmap, arguments) };
    // A child of a child has the mapping already.
    if found == libc::MAP_FAILED && sys::errno() != libc::EEXIST {
        eprintln!("rfs-paging: a child of fork cannot reserve addresses: {}", io::Error::last_os_error());
        std::process::abort();
    }
}
