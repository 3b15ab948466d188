//! Small thread numbers, each owned by one living thread at a time.
//!
//! Data that is stored per slot therefore has a single writer.
//!
//! # Concurrency
//! Any thread may call [`current`]. The first call of a thread and its end take a lock; other
//! calls read a thread-local.

use std::cell::Cell;

use parking_lot::Mutex;

/// Number of slots.
pub(crate) const COUNT: usize = 64;

/// One bit per free slot.
static FREE: Mutex<u64> = Mutex::new(u64::MAX);

/// Returns the slot of a thread when the thread ends.
struct Taken(usize);

impl Taken {
    fn new() -> Taken {
        let mut free = FREE.lock();
        let lowest = free.trailing_zeros() as usize;
        *free &= free.wrapping_sub(1);
        // COUNT if no slot is free.
        Taken(lowest)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        SLOT.set(COUNT);
        if self.0 < COUNT {
            // The lock makes this thread's accesses to per-slot data visible to the next owner.
            *FREE.lock() |= 1 << self.0;
        }
    }
}

/// The thread has not requested a slot yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Slot number, or COUNT for none. Separate from `TAKEN`, so that reading it needs no
    /// destructor check.
    static SLOT: Cell<usize> = const { Cell::new(UNKNOWN) };
    static TAKEN: Taken = Taken::new();
}

#[cold]
fn take() -> usize {
    let number = TAKEN.try_with(|taken| taken.0).unwrap_or(COUNT);
    SLOT.set(number);
    number
}

/// Returns the calling thread's slot, below [`COUNT`]. Returns `None` for the life of the thread
/// if no slot was free at its first call, and while the thread ends.
#[inline]
pub(crate) fn current() -> Option<usize> {
    let mut slot = SLOT.get();
    if slot == UNKNOWN {
        slot = take();
    }
    (slot < COUNT).then_some(slot)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::Barrier, thread};

    use super::*;

    #[test]
    fn living_threads_have_distinct_slots_and_ended_threads_free_theirs() {
        // More threads than slots, twice: the second group reuses the slots of the first.
        for _ in 0..2 {
            let threads = COUNT + 10;
            let together = Barrier::new(threads);
            let slots: Vec<Option<usize>> = thread::scope(|scope| {
                let run = || {
                    let first = current();
                    together.wait();
                    assert_eq!(current(), first);
                    first
                };
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let given: Vec<usize> = slots.iter().copied().flatten().collect();
            assert!(given.iter().all(|slot| *slot < COUNT));
            assert_eq!(given.iter().collect::<HashSet<_>>().len(), given.len());
            // Other tests of this process may hold slots.
            assert!(slots.contains(&None));
            assert!(!given.is_empty());
        }
    }
}
