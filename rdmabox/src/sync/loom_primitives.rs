//! Loom's primitives with the interface of the normal primitives.
//!
//! Where they differ, they guarantee less or the same:
//! - Time does not pass. A wait that only a timeout could end is a bug and shows as a deadlock.
//! - Loom treats sequentially consistent accesses as acquire and release. Here a fence precedes
//!   each of them, which orders them among themselves. The fence also orders them behind earlier
//!   accesses of other kinds, so a bug that needs this reordering is not found.
//! - `try_lock` may see an old state of a mutex, as on a processor.
//! - Parking uses loom's `Notify`, which also wakes spuriously. `loom::thread::park` loses its
//!   token if the thread waits for a mutex before it parks.

use std::{
    cell::RefCell,
    fmt, io,
    ops::{Deref, DerefMut},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use loom::sync::MutexGuard;
pub(crate) use loom::thread::{yield_now, yield_now as spin_loop};

/// Stack size of a model's thread in words.
const STACK: usize = 32 << 10;

/// Replacement of `std::thread_local`: each thread of a model has its own value.
macro_rules! local {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = const { $value:expr };) => {
        loom::thread_local! { $(#[$attribute])* static $name: $kind = $value; }
    };
}
pub(crate) use local as thread_local;

/// Atomics whose sequentially consistent accesses have one total order.
pub(crate) mod atomic {
    pub(crate) use loom::sync::atomic::{Ordering, fence};

    fn before(order: Ordering) {
        if order == Ordering::SeqCst {
            fence(order);
        }
    }

    macro_rules! atomics {
        ($($name:ident $value:ty;)*) => {
            $(
                #[derive(Debug)]
                pub(crate) struct $name(loom::sync::atomic::$name);

                // The models do not use all of the interface.
                #[allow(dead_code)]
                impl $name {
                    pub(crate) fn new(value: $value) -> $name {
                        $name(loom::sync::atomic::$name::new(value))
                    }

                    #[track_caller]
                    pub(crate) fn load(&self, order: Ordering) -> $value {
                        before(order);
                        self.0.load(order)
                    }

                    #[track_caller]
                    pub(crate) fn store(&self, value: $value, order: Ordering) {
                        before(order);
                        self.0.store(value, order);
                    }

                    #[track_caller]
                    pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                        before(order);
                        self.0.swap(value, order)
                    }
                }

                impl Default for $name {
                    fn default() -> Self {
                        $name::new(<$value>::default())
                    }
                }
            )*
        };
    }

    macro_rules! numbers {
        ($($name:ident $value:ty;)*) => {
            $(
                #[allow(dead_code)] // As above.
                impl $name {
                    #[track_caller]
                    pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                        before(order);
                        self.0.fetch_add(value, order)
                    }

                    #[track_caller]
                    pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                        before(order);
                        self.0.fetch_sub(value, order)
                    }

                    #[track_caller]
                    pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                        before(order);
                        self.0.fetch_max(value, order)
                    }

                    #[track_caller]
                    pub(crate) fn compare_exchange(
                        &self,
                        current: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        before(success);
                        self.0.compare_exchange(current, new, success, failure)
                    }

                    #[track_caller]
                    pub(crate) fn compare_exchange_weak(
                        &self,
                        current: $value,
                        new: $value,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$value, $value> {
                        before(success);
                        self.0.compare_exchange_weak(current, new, success, failure)
                    }
                }
            )*
        };
    }

    atomics! { AtomicBool bool; AtomicU32 u32; AtomicU64 u64; AtomicUsize usize; }
    numbers! { AtomicU32 u32; AtomicU64 u64; AtomicUsize usize; }
}

/// Mutex with the interface of `parking_lot`, without poisoning.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
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

/// A mutex for `try_lock`. Like `parking_lot`'s, it reads its bit without any order before it
/// takes it.
///
/// Loom's `try_lock` blocks if another thread takes the mutex between the decision and the
/// attempt.
pub(crate) struct TryMutex<T> {
    held: loom::sync::atomic::AtomicBool,
    /// Protected value. Locking it never blocks, because only the thread that set the bit locks it.
    value: parking_lot::Mutex<T>,
}

pub(crate) struct TryMutexGuard<'a, T> {
    held: &'a loom::sync::atomic::AtomicBool,
    /// `None` only during the drop, which clears the bit last.
    value: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> TryMutex<T> {
    pub(crate) fn new(value: T) -> TryMutex<T> {
        TryMutex { held: loom::sync::atomic::AtomicBool::new(false), value: parking_lot::Mutex::new(value) }
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> TryMutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.take() {
                return guard;
            }
            yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<TryMutexGuard<'_, T>> {
        if self.is_locked() { None } else { self.take() }
    }

    #[track_caller]
    pub(crate) fn is_locked(&self) -> bool {
        self.held.load(atomic::Ordering::Relaxed)
    }

    #[track_caller]
    fn take(&self) -> Option<TryMutexGuard<'_, T>> {
        use atomic::Ordering::{Acquire, Relaxed};
        self.held.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let value = self.value.try_lock();
        assert!(value.is_some(), "locked twice");
        Some(TryMutexGuard { held: &self.held, value })
    }
}

impl<T> Drop for TryMutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        // A failed model has ended; its objects must not be accessed.
        if !std::thread::panicking() {
            self.held.store(false, atomic::Ordering::Release);
        }
    }
}

impl<T> Deref for TryMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("a guard that is dropped is not used")
    }
}

impl<T> DerefMut for TryMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("a guard that is dropped is not used")
    }
}

impl<T: Default> Default for TryMutex<T> {
    fn default() -> Self {
        TryMutex::new(T::default())
    }
}

impl<T> fmt::Debug for TryMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryMutex").finish_non_exhaustive()
    }
}

pub(crate) use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

/// RwLock with the interface of `parking_lot`.
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

/// The reader lock has its own model.
pub(crate) use RwLock as ReaderLock;
pub(crate) use RwLockReadGuard as ReaderGuard;

/// Replacement without slots: no thread has one.
pub(crate) mod thread_slot {
    pub(crate) fn current() -> Option<usize> {
        None
    }
}

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|e| e.into_inner())
    }
}

impl<T: Default> Default for RwLock<T> {
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").finish_non_exhaustive()
    }
}

/// OnceLock with the normal interface. A second `set` returns after the value is visible.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    is_set: loom::sync::atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> OnceLock<T> {
        OnceLock { is_set: loom::sync::atomic::AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }

    #[track_caller]
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let result = self.value.set(value);
        self.is_set.store(true, atomic::Ordering::Release);
        result
    }

    #[track_caller]
    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_set.load(atomic::Ordering::Acquire) { self.value.get() } else { None }
    }
}

/// Returns a constant time.
pub(crate) fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

/// A handle to a thread.
#[derive(Clone)]
pub(crate) struct Thread {
    number: u64,
    notify: Arc<loom::sync::Notify>,
}

impl Thread {
    fn new() -> Thread {
        // A std atomic outside of the model, because the number only has to be unique.
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Thread { number, notify: Arc::new(loom::sync::Notify::new()) }
    }

    #[track_caller]
    pub(crate) fn unpark(&self) {
        self.notify.notify();
    }

    pub(crate) fn id(&self) -> u64 {
        self.number
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Thread").field(&self.number).finish()
    }
}

loom::thread_local! {
    static CURRENT: RefCell<Option<Thread>> = RefCell::new(None);
}

/// Returns the calling thread's handle.
pub(crate) fn current() -> Thread {
    CURRENT.with(|current| current.borrow_mut().get_or_insert_with(Thread::new).clone())
}

/// Returns the calling thread's number, which is never zero.
pub(crate) fn thread_number() -> u64 {
    current().number
}

#[track_caller]
pub(crate) fn park() {
    current().notify.wait();
}

#[track_caller]
pub(crate) fn park_timeout(_: Duration) {
    park();
}

/// Yields between two polls of a condition that another thread changes.
pub(crate) fn sleep(_: Duration) {
    yield_now();
}

#[derive(Debug)]
pub(crate) struct JoinHandle<T> {
    handle: loom::thread::JoinHandle<T>,
    thread: Thread,
}

impl<T> JoinHandle<T> {
    pub(crate) fn thread(&self) -> &Thread {
        &self.thread
    }

    #[track_caller]
    pub(crate) fn join(self) -> std::thread::Result<T> {
        self.handle.join()
    }
}

/// Starts a thread.
#[track_caller]
pub(crate) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = Thread::new();
    let own = thread.clone();
    let handle = loom::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
        CURRENT.with(|current| *current.borrow_mut() = Some(own));
        run()
    })?;
    Ok(JoinHandle { handle, thread })
}
