//! The order in which a thread may block for locks: by rank, the lowest first.
//!
//! A thread that blocks for a lock holds no lock of the same or a higher rank, so there is no
//! deadlock. A thread may take a free lock in any order. Debug builds check the order; release
//! builds contain no check.
//!
//! # Concurrency
//! Each thread records its own locks in a thread-local variable.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// A lock, by its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::dispatch) enum Rank {
    /// The directory tree: which directory lies in which.
    Tree,
    /// A shard, by its index.
    Shard(usize),
    /// The file locks.
    Locks,
    /// The lock grants that sessions have not received yet.
    Grants,
    /// The recalls, and the replies that wait for them.
    Recalls,
}

/// Evidence that the thread holds a lock of a rank.
#[derive(Debug)]
pub(in crate::dispatch) struct HeldRank(#[cfg(debug_assertions)] Rank);

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::{HeldRank, Rank};

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    impl HeldRank {
        /// Records that the thread is about to block for a lock.
        pub(in crate::dispatch) fn lock(rank: Rank) -> HeldRank {
            HELD.with_borrow_mut(|held| {
                assert!(held.iter().all(|&one| one < rank), "waits for {rank:?} while it holds {held:?}");
                held.push(rank);
            });
            HeldRank(rank)
        }

        /// Records that the thread has taken a lock without blocking.
        pub(in crate::dispatch) fn try_lock(rank: Rank) -> HeldRank {
            HELD.with_borrow_mut(|held| {
                assert!(!held.contains(&rank), "has {rank:?} twice");
                held.push(rank);
            });
            HeldRank(rank)
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| held.retain(|&rank| rank != self.0));
        }
    }

    /// Panics if the thread holds a lock. Called before slow work and before calls out of the
    /// dispatcher.
    pub(in crate::dispatch) fn assert_nothing_held() {
        HELD.with_borrow(|held| assert!(held.is_empty(), "holds {held:?}"));
    }
}

#[cfg(not(debug_assertions))]
mod held {
    use super::{HeldRank, Rank};

    impl HeldRank {
        pub(in crate::dispatch) fn lock(_: Rank) -> HeldRank {
            HeldRank()
        }

        pub(in crate::dispatch) fn try_lock(_: Rank) -> HeldRank {
            HeldRank()
        }
    }

    pub(in crate::dispatch) fn assert_nothing_held() {}
}

pub(in crate::dispatch) use held::assert_nothing_held;

/// A mutex with a rank.
#[derive(Debug)]
pub(in crate::dispatch) struct Ordered<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

/// The guard of an [`Ordered`].
#[derive(Debug)]
pub(in crate::dispatch) struct Guard<'a, T> {
    guard: MutexGuard<'a, T>,
    _held: HeldRank,
}

impl<T> Ordered<T> {
    pub(in crate::dispatch) fn new(rank: Rank, value: T) -> Ordered<T> {
        Ordered { rank, mutex: Mutex::new(value) }
    }

    pub(in crate::dispatch) fn lock(&self) -> Guard<'_, T> {
        let held = HeldRank::lock(self.rank);
        Guard { guard: self.mutex.lock(), _held: held }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_thread_that_blocks_holds_no_lock_of_a_higher_rank() {
        let broken = |order: [Rank; 2]| catch_unwind(|| order.map(HeldRank::lock)).is_err();
        let up = [Rank::Tree, Rank::Shard(0), Rank::Shard(1), Rank::Locks, Rank::Recalls];
        for pair in up.windows(2) {
            assert!(!broken([pair[0], pair[1]]), "{pair:?}");
            assert!(broken([pair[1], pair[0]]), "{pair:?}");
            assert!(broken([pair[0], pair[0]]), "{pair:?}");
        }
        assert_nothing_held();
    }

    #[test]
    fn a_thread_that_does_not_block_may_take_any_lock() {
        let high = HeldRank::lock(Rank::Shard(5));
        let low = HeldRank::try_lock(Rank::Shard(3));
        assert!(catch_unwind(|| HeldRank::lock(Rank::Shard(4))).is_err(), "the highest counts");
        assert!(catch_unwind(|| HeldRank::try_lock(Rank::Shard(3))).is_err());
        assert!(catch_unwind(assert_nothing_held).is_err());
        drop(high);
        drop(HeldRank::lock(Rank::Shard(4)));
        drop(low);
        assert_nothing_held();
    }
}
