//! A readers-writer lock whose readers execute no locked instruction and write to no shared cache
//! line.
//!
//! A request that its caller executes holds two locks: one keeps its queue pair in entry, the
//! other keeps the peer's memory mapped. Both change once in the life of a queue pair. Ordinary
//! locks would cost four atomic changes of a shared word, which take longer than an 8-byte READ.
//!
//! # Concurrency
//! A reader stores the lock's address in its thread's slot, then reads `writing`. A writer sets
//! `writing`, then scans all slots. At least one of them sees the other, which requires a full
//! barrier between store and load on both sides. The writer issues it for all threads
//! (`membarrier(2)`); the reader needs only a compiler fence. Without `membarrier`, and for
//! threads without a slot, this is an ordinary lock.

use std::{
    cell::UnsafeCell,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr,
    time::Duration,
};

#[cfg(not(loom))]
use super::membarrier;
#[cfg(not(loom))]
use super::thread_slot;
use super::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
    sleep, yield_now,
};

/// Locks that a thread can hold for reading through its slot. Further locks are taken as if it
/// had no slot.
const DEPTH: usize = 4;

/// Number of polls of a reader's entry before the writer sleeps between polls.
const MAX_BUSY_POLLS: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

/// Addresses of the locks that a thread holds for reading; zero for a free entry. Aligned to two
/// cache lines, because processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot([AtomicUsize; DEPTH]);

#[cfg(not(loom))]
static SLOTS: [Slot; thread_slot::COUNT] =
    [const { Slot([const { AtomicUsize::new(0) }; DEPTH]) }; thread_slot::COUNT];

#[cfg(not(loom))]
impl Slot {
    /// Returns the calling thread's slot, or `None` if it has none or `membarrier` does not work.
    fn current() -> Option<&'static Slot> {
        if membarrier::works() { thread_slot::current().map(|slot| &SLOTS[slot]) } else { None }
    }
}

/// A readers-writer lock with cheap reads; see the module's documentation.
pub(crate) struct ReaderLock<T> {
    /// True while a writer holds the lock or waits for readers.
    writing: AtomicBool,
    /// Held by the writer, and shared by readers without a slot entry.
    rest: RwLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the lock allows either shared references from many threads or one exclusive reference.
unsafe impl<T: Send + Sync> Sync for ReaderLock<T> {}

impl<T> ReaderLock<T> {
    pub(crate) fn new(value: T) -> ReaderLock<T> {
        ReaderLock { writing: AtomicBool::new(false), rest: RwLock::new(()), value: UnsafeCell::new(value) }
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Announces a reader in its slot. Returns `None` if the slot is full or a writer is active;
    /// the reader then uses `rest`.
    fn announce<'a>(&'a self, slot: &'a Slot) -> Option<ReaderGuard<'a, T>> {
        let entry = slot.0.iter().find(|entry| entry.load(Ordering::Relaxed) == 0)?;
        entry.store(self.address(), Ordering::Relaxed);
        barrier::of_reader();
        // The acquire load makes the changes of the last writer visible.
        if self.writing.load(Ordering::Acquire) {
            entry.store(0, Ordering::Release);
            return None;
        }
        Some(ReaderGuard { lock: self, held: Held::Announced(entry), _stays: PhantomData })
    }

    fn read_in<'a>(&'a self, slot: Option<&'a Slot>) -> ReaderGuard<'a, T> {
        if let Some(guard) = slot.and_then(|slot| self.announce(slot)) {
            return guard;
        }
        ReaderGuard { lock: self, held: Held::Shared { _rest: self.rest.read() }, _stays: PhantomData }
    }

    fn try_read_in<'a>(&'a self, slot: Option<&'a Slot>) -> Option<ReaderGuard<'a, T>> {
        slot.and_then(|slot| self.announce(slot)).or_else(|| {
            let held = Held::Shared { _rest: self.rest.try_read()? };
            Some(ReaderGuard { lock: self, held, _stays: PhantomData })
        })
    }

    fn write_in<'a>(&'a self, slots: &[Slot]) -> WriterGuard<'a, T> {
        let writer = WriterGuard { lock: self, _rest: self.rest.write() };
        self.writing.store(true, Ordering::Relaxed);
        barrier::of_writer();
        for entry in slots.iter().flat_map(|slot| &slot.0) {
            let mut polls = 0_u32;
            // The reader has finished when its entry is empty.
            while entry.load(Ordering::Acquire) == self.address() {
                polls += 1;
                // The reader may be copying a gigabyte.
                if polls < MAX_BUSY_POLLS { yield_now() } else { sleep(PAUSE) }
            }
        }
        writer
    }
}

#[cfg(not(loom))]
impl<T> ReaderLock<T> {
    /// Locks for reading. Blocks while a writer holds or requests the lock. A thread that holds the
    /// lock must not take it again.
    pub(crate) fn read(&self) -> ReaderGuard<'_, T> {
        self.read_in(Slot::current())
    }

    /// Locks for reading, or returns `None` if [`read`](Self::read) would block.
    pub(crate) fn try_read(&self) -> Option<ReaderGuard<'_, T>> {
        self.try_read_in(Slot::current())
    }

    /// Locks for writing. Blocks until no other thread holds the lock. Takes microseconds even
    /// without contention.
    pub(crate) fn write(&self) -> WriterGuard<'_, T> {
        self.write_in(&SLOTS)
    }
}

impl<T: Default> Default for ReaderLock<T> {
    fn default() -> Self {
        ReaderLock::new(T::default())
    }
}

impl<T> std::fmt::Debug for ReaderLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderLock").finish_non_exhaustive()
    }
}

enum Held<'a> {
    /// Announced in an entry of the thread's slot.
    Announced(&'a AtomicUsize),
    Shared {
        _rest: RwLockReadGuard<'a, ()>,
    },
}

/// Holds a lock for reading. It stays on its thread. A leaked guard would block writers forever.
pub(crate) struct ReaderGuard<'a, T> {
    lock: &'a ReaderLock<T>,
    held: Held<'a>,
    _stays: PhantomData<*const ()>,
}

impl<T> Deref for ReaderGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: no writer holds the lock while this guard exists, because a writer waits for the
        // slot entry or for `rest`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReaderGuard<'_, T> {
    fn drop(&mut self) {
        if let Held::Announced(entry) = self.held {
            entry.store(0, Ordering::Release);
        }
    }
}

impl<T> std::fmt::Debug for ReaderGuard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderGuard").finish_non_exhaustive()
    }
}

/// Holds a lock for writing.
pub(crate) struct WriterGuard<'a, T> {
    lock: &'a ReaderLock<T>,
    _rest: RwLockWriteGuard<'a, ()>,
}

impl<T> Deref for WriterGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the writer has exclusive access; see `write_in`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriterGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the writer has exclusive access; see `write_in`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriterGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.writing.store(false, Ordering::Release);
    }
}

/// The two sides of the barrier.
#[cfg(not(loom))]
mod barrier {
    use std::sync::atomic::{Ordering, compiler_fence};

    use crate::sync::membarrier;

    pub(crate) fn of_reader() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(crate) fn of_writer() {
        // Without membarrier, no reader uses a slot.
        if membarrier::works() {
            membarrier::on_every_processor();
        }
    }
}

/// For threads, the kernel's barrier acts as a fence on both sides.
#[cfg(loom)]
mod barrier {
    use crate::sync::atomic::{Ordering, fence};

    pub(crate) fn of_reader() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn of_writer() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(all(not(loom), test))]
mod tests;
