//! A readers-writer lock whose readers run no locked instruction and write to no memory that another thread writes.
//!
//! A request that its caller carries out holds two locks, the one that keeps its queue pair in place and the one that keeps
//! the peer's memory mapped. Both change once in the life of a queue pair. With ordinary locks those four atomic changes of a
//! shared word would take longer than an 8-byte READ.
//!
//! A reader announces the lock's address in its thread's own slot and then looks whether somebody writes; a writer says
//! that it writes and then looks at all slots. One of the two has to see the other, which takes a full barrier between
//! the store and the load on both sides. The reader's costs nothing: the writer has the kernel run one on every processor that
//! runs a thread of this process (`membarrier(2)`), and all that the reader does is to keep the compiler from changing the
//! order. Where the kernel cannot do that, and for threads beyond the number of slots, this is an ordinary lock.

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
use crate::sync::thread_slot;
use crate::sync::{
    RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
    sleep, yield_now,
};

/// Locks that a thread can hold for reading at a time without an atomic change; with more it is as if it had no slot.
const DEPTH: usize = 4;

/// Looks at a reader that a writer waits for, before it sleeps between them.
const PATIENCE: u32 = 100;
const PAUSE: Duration = Duration::from_micros(50);

/// Where a thread announces what it reads: addresses of locks, zero for none. In cache lines of its own; processors fetch
/// them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Slot([AtomicUsize; DEPTH]);

#[cfg(not(loom))]
static SLOTS: [Slot; thread_slot::COUNT] =
    [const { Slot([const { AtomicUsize::new(0) }; DEPTH]) }; thread_slot::COUNT];

#[cfg(not(loom))]
impl Slot {
    /// The calling thread's, if it has one and a writer can rely on it.
    fn mine() -> Option<&'static Slot> {
        if membarrier::works() { thread_slot::mine().map(|mine| &SLOTS[mine]) } else { None }
    }
}

/// See the module's documentation.
pub(crate) struct ReaderLock<T> {
    /// Somebody writes or is about to.
    writing: AtomicBool,
    /// Held by the writer, and by readers that have announced nothing.
    rest: RwLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: a lock: the value is reached by shared reference from any number of threads, or by one exclusively.
unsafe impl<T: Send + Sync> Sync for ReaderLock<T> {}

impl<T> ReaderLock<T> {
    pub(crate) fn new(value: T) -> ReaderLock<T> {
        ReaderLock { writing: AtomicBool::new(false), rest: RwLock::new(()), value: UnsafeCell::new(value) }
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Announces a reader. `None` if it has to go the other way: no place is left, or somebody writes.
    fn announce<'a>(&'a self, slot: &'a Slot) -> Option<ReaderGuard<'a, T>> {
        let place = slot.0.iter().find(|place| place.load(Ordering::Relaxed) == 0)?;
        place.store(self.address(), Ordering::Relaxed);
        barrier::of_reader();
        // What the last writer has written is seen from here on.
        if self.writing.load(Ordering::Acquire) {
            place.store(0, Ordering::Release);
            return None;
        }
        Some(ReaderGuard { lock: self, held: Held::Announced(place), _stays: PhantomData })
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
        for place in slots.iter().flat_map(|slot| &slot.0) {
            let mut looks = 0_u32;
            // What was read is over when its place is seen empty.
            while place.load(Ordering::Acquire) == self.address() {
                looks += 1;
                // It may be a copy of a gigabyte.
                if looks < PATIENCE { yield_now() } else { sleep(PAUSE) }
            }
        }
        writer
    }
}

#[cfg(not(loom))]
impl<T> ReaderLock<T> {
    /// For reading. Blocks while somebody writes or is about to: a thread that holds it does not take it again.
    pub(crate) fn read(&self) -> ReaderGuard<'_, T> {
        self.read_in(Slot::mine())
    }

    /// As [`read`](Self::read), but `None` where that would block.
    pub(crate) fn try_read(&self) -> Option<ReaderGuard<'_, T>> {
        self.try_read_in(Slot::mine())
    }

    /// For writing. Blocks until nobody else holds it. Takes microseconds even if nobody does.
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
    /// In a place of the thread's slot.
    Announced(&'a AtomicUsize),
    Shared {
        _rest: RwLockReadGuard<'a, ()>,
    },
}

/// Holds a lock for reading. Stays on its thread; one that were forgotten would keep writers waiting for good.
pub(crate) struct ReaderGuard<'a, T> {
    lock: &'a ReaderLock<T>,
    held: Held<'a>,
    _stays: PhantomData<*const ()>,
}

impl<T> Deref for ReaderGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: while this is held nobody has it for writing: a writer waits for the announcement or for `rest`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> Drop for ReaderGuard<'_, T> {
    fn drop(&mut self) {
        if let Held::Announced(place) = self.held {
            place.store(0, Ordering::Release);
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
        // SAFETY: this has it alone; see `write_in`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriterGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this has it alone; see `write_in`.
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

    use crate::memory::membarrier;

    pub(super) fn of_reader() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn of_writer() {
        // Where it does not work, nobody announces anything.
        if membarrier::works() {
            membarrier::on_every_processor();
        }
    }
}

/// What the kernel does is, as far as threads can tell, a barrier on both sides.
#[cfg(loom)]
mod barrier {
    use crate::sync::atomic::{Ordering, fence};

    pub(super) fn of_reader() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn of_writer() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(all(not(loom), test))]
mod tests;
