//! What the lock-free hand-overs are made of, so that a model checker can take its place.
//!
//! Modules whose correctness depends on the order of atomics, locks and parking take them from here. Built with
//! `--cfg loom` these are loom's, which runs every interleaving of a small program (`ci/test models`); otherwise they are
//! the ordinary ones.

#[cfg(not(loom))]
mod real {
    pub(crate) use std::{
        sync::atomic,
        thread::{Thread, current, park_timeout},
    };

    pub(crate) use parking_lot::{Mutex, MutexGuard};
}

#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(loom)]
mod model {
    use std::{fmt, time::Duration};

    pub(crate) use loom::{
        sync::{MutexGuard, atomic},
        thread::{Thread, current, park},
    };

    /// With the interface of `parking_lot`. A model does not unwind, so that nothing is poisoned.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|e| e.into_inner())
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }

        pub(crate) fn is_locked(&self) -> bool {
            self.try_lock().is_none()
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Mutex::new(T::default())
        }
    }

    impl<T> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Mutex").finish_non_exhaustive()
        }
    }

    /// Time does not pass in a model: a wait that only its timeout could end is a bug that the model reports.
    pub(crate) fn park_timeout(_: Duration) {
        park();
    }
}

#[cfg(loom)]
pub(crate) use model::*;

/// Says which thread this is, more cheaply than a handle to it. Never zero.
#[cfg(not(loom))]
pub(crate) fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A model's threads share one thread of the system.
#[cfg(loom)]
pub(crate) fn thread_number() -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    current().id().hash(&mut hasher);
    hasher.finish() | 1
}
