//! The pager of the process, and its memory.
//!
//! The pager is made with the first paged allocation. So a program that never allocates much has no
//! pager, and a child of `fork` makes a pager of its own.
//!
//! # Concurrency
//! One lock guards the state. Its holder may wait for the fault thread, which never takes it. A
//! thread takes it only after [`threads::enter`], so no thread takes it twice. `fork` holds it, so
//! a child finds it free. The lock is one of futexes: its release hands it to no waiting thread,
//! and a child of `fork` has no waiting threads.

use std::{
    cell::Cell,
    ffi::c_int,
    mem::ManuallyDrop,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use rfs_paging::{PagedMemory, RemotePager};

use crate::{
    regions::{Piece, Regions},
    settings::Settings,
    sys,
    threads::{self, Inside},
};

/// Length of a page in bytes.
pub(crate) const PAGE: usize = 4096;

/// Length from which allocations are paged; the largest number while the library is idle.
static MIN_SIZE: AtomicUsize = AtomicUsize::new(usize::MAX);
static STATE: Mutex<State> = Mutex::new(State::new());

thread_local! {
    /// The lock while this thread is in `fork`.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, State>>>> = const { Cell::new(None) };
}

/// Calls that paged memory does not support: they failed, had no effect, or got local memory.
static UNSUPPORTED: AtomicU64 = AtomicU64::new(0);

/// The state of the process.
#[derive(Debug)]
pub(crate) struct State {
    settings: Option<Settings>,
    pager: Option<RemotePager>,
    regions: Regions<PagedMemory>,
    /// Regions that were made.
    made: u64,
}

/// The state, locked, while this thread is in a call of the pager.
pub(crate) struct Locked {
    // Unlocked before the thread leaves.
    state: MutexGuard<'static, State>,
    _inside: Inside,
}

impl State {
    const fn new() -> State {
        State { settings: None, pager: None, regions: Regions::new(), made: 0 }
    }

    /// Returns the pager, and makes it if there is none.
    fn pager(&mut self) -> Option<&RemotePager> {
        if self.pager.is_none() {
            let settings = self.settings.as_ref()?;
            let options = settings.options.clone().on_event(|event| eprintln!("rfs-paging: {event}"));
            match RemotePager::connect(&settings.servers, options) {
                Ok(pager) => self.pager = Some(pager),
                Err(error) => {
                    eprintln!("rfs-paging: memory of this program is not paged: {error}");
                    MIN_SIZE.store(usize::MAX, Ordering::Relaxed);
                }
            }
        }
        self.pager.as_ref()
    }
}

/// Takes the lock.
fn state() -> MutexGuard<'static, State> {
    // A panic leaves no half of a change behind.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Configures the library.
pub(crate) fn configure(settings: Settings) {
    MIN_SIZE.store(settings.min_size, Ordering::Relaxed);
    state().settings = Some(settings);
}

/// Returns true if an allocation of this length is paged.
pub(crate) fn is_large(len: usize) -> bool {
    len >= MIN_SIZE.load(Ordering::Relaxed)
}

/// Counts a call that paged memory does not support.
pub(crate) fn count_unsupported() {
    UNSUPPORTED.fetch_add(1, Ordering::Relaxed);
}

/// Locks the state. `None` if memory of this thread must not be paged.
pub(crate) fn lock() -> Option<Locked> {
    let inside = threads::enter()?;
    Some(Locked { state: state(), _inside: inside })
}

/// Maps paged memory. `None` if it has to come from elsewhere.
pub(crate) fn map(len: usize) -> Option<usize> {
    if !is_large(len) {
        return None;
    }
    let start = lock()?.map(len);
    if start.is_none() {
        count_unsupported();
    }
    start
}

/// Counts an allocation of the program that would be paged, and stays in local memory because of
/// its kind.
pub(crate) fn count_local(len: usize) {
    if is_large(len) && threads::is_program() {
        count_unsupported();
    }
}

/// Returns true if large allocations of the program are paged.
pub(crate) fn is_active() -> bool {
    MIN_SIZE.load(Ordering::Relaxed) != usize::MAX
}

/// Returns the length of the paged region that begins at an address.
pub(crate) fn len_at(address: usize) -> Option<usize> {
    // Regions begin at pages, and most other memory does not.
    if !address.is_multiple_of(PAGE) || address == 0 {
        return None;
    }
    lock()?.state.regions.whole(address)
}

/// Unmaps the region that begins at an address. Returns false if there is none.
pub(crate) fn free(address: usize) -> bool {
    if !address.is_multiple_of(PAGE) || address == 0 {
        return false;
    }
    lock().is_some_and(|mut locked| locked.state.regions.remove(address).is_some())
}

impl Locked {
    /// Maps paged memory; `None` if the pager cannot.
    pub(crate) fn map(&mut self, len: usize) -> Option<usize> {
        let len = len.checked_next_multiple_of(PAGE)?;
        let mut memory = self.state.pager()?.map(len).ok()?;
        let start = memory.as_mut_ptr() as usize;
        self.state.regions.insert(start..start + len, memory);
        self.state.made += 1;
        Some(start)
    }

    pub(crate) fn pieces(&self, range: Range<usize>) -> Vec<Piece> {
        self.state.regions.pieces(range)
    }

    pub(crate) fn touches(&self, range: Range<usize>) -> bool {
        self.state.regions.touches(range)
    }

    /// Returns true if the program has unmapped a part of a range in a region.
    pub(crate) fn has_gone(&self, range: Range<usize>) -> bool {
        self.pieces(range).iter().any(|piece| matches!(piece, Piece::Gone(_)))
    }

    /// Forgets the bytes of a part of a region. Returns 0, or an error number.
    pub(crate) fn discard(&mut self, region: usize, range: Range<usize>) -> c_int {
        let Some(memory) = self.state.regions.memory(region) else { return libc::EINVAL };
        match memory.discard(range.start - region..range.end - region) {
            Ok(()) => 0,
            Err(_) => libc::ENOMEM,
        }
    }

    /// Unmaps a part of a region. An access to it raises SIGSEGV; its addresses are not used again
    /// before the rest of the region is unmapped. Returns 0, or an error number.
    pub(crate) fn unmap(&mut self, region: usize, range: Range<usize>) -> c_int {
        let outcome = self.discard(region, range.clone());
        if outcome != 0 {
            return outcome;
        }
        // Dropping the memory unmaps it.
        if self.state.regions.unmap(region, range.clone()).is_none() {
            // SAFETY: The program has given up this part of a region, which remains mapped.
            unsafe { sys::call(libc::SYS_mprotect, [range.start, range.len(), 0, 0]) };
        }
        0
    }
}

/// Prints the counters, if the settings say so.
pub(crate) fn print_stats() {
    let Some(locked) = lock() else { return };
    let state = &locked.state;
    if !state.settings.as_ref().is_some_and(|settings| settings.prints_stats) {
        return;
    }
    let unsupported = UNSUPPORTED.load(Ordering::Relaxed);
    let (made, left) = (state.made, state.regions.len());
    eprintln!("rfs-paging: regions {made}, {left} left, unsupported calls {unsupported}");
    if let Some(pager) = &state.pager {
        eprintln!("rfs-paging: {:?}", pager.stats());
    }
}

/// Ends the answers of the pager to `rfs-paging status`.
pub(crate) fn end_status() {
    let Some(mut locked) = lock() else { return };
    locked.state.pager.iter_mut().for_each(RemotePager::end_status);
}

/// Takes the lock before `fork`.
pub(crate) extern "C" fn before_fork() {
    FORKING.set(Some(ManuallyDrop::new(state())));
}

/// Releases the lock in the parent.
pub(crate) extern "C" fn after_fork_in_parent() {
    drop(FORKING.take().map(ManuallyDrop::into_inner));
}

/// Releases the lock in the child, which has neither the parent's pager nor its paged memory.
pub(crate) extern "C" fn after_fork_in_child() {
    let Some(mut state) = FORKING.take().map(ManuallyDrop::into_inner) else { return };
    let mut settings = state.settings.take();
    if let Some(settings) = &mut settings {
        // The parent prints its own. A shell has many children that print nothing of interest.
        settings.prints_stats = false;
    }
    let old = std::mem::replace(&mut *state, State { settings, ..State::new() });
    // Its threads are the parent's.
    std::mem::forget(old);
}
