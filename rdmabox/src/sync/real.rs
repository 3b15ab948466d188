//! The normal primitives.

pub(crate) use std::{
    hint::spin_loop,
    sync::{OnceLock, atomic},
    thread::{JoinHandle, Thread, current, park, park_timeout, sleep, yield_now},
    thread_local,
};
use std::{io, time::Instant};

/// A mutex that some threads only try to lock.
pub(crate) use parking_lot::Mutex as TryMutex;
pub(crate) use parking_lot::{Mutex, MutexGuard as TryMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use super::reader_lock::{ReaderGuard, ReaderLock};

/// Returns the current time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Starts a thread.
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(run)
}

/// Returns the calling thread's number, at lower cost than a handle. It is never zero.
pub(crate) fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}
