//! A queue without a thread of its own: whoever comes first works for all (RDMAbox, section IV-A).
//!
//! A thread appends what it has and then tries to become the combiner. If another thread is, that one will take it
//! along: the later thread leaves. A count of events, compared after the lock has been given up, makes sure that
//! nothing is stranded between a combiner's last look and its unlock.
//!
//! What a combiner cannot deal with stays with it, and it says that it has stalled *before* it looks at what it
//! lacks. Whoever gives something back looks for that note afterwards: one of the two sees the other.

use crate::sync::{
    Mutex, TryMutex, TryMutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering, fence},
};

/// Requests of type `T`, and a combiner's state `C`.
#[derive(Debug)]
pub(crate) struct MergeQueue<T, C> {
    arrived: Mutex<Vec<T>>,
    combiner: TryMutex<C>,
    /// Counts reasons to look at the queue.
    events: AtomicU64,
    stalled: AtomicBool,
}

impl<T, C: Default> Default for MergeQueue<T, C> {
    fn default() -> Self {
        MergeQueue {
            arrived: Mutex::new(Vec::new()),
            combiner: TryMutex::default(),
            events: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
        }
    }
}

impl<T, C> MergeQueue<T, C> {
    /// Appends requests. [`kick`](Self::kick) has to follow.
    pub(crate) fn push(&self, requests: impl Iterator<Item = T>) {
        self.arrived.lock().extend(requests);
    }

    /// Sees to it that somebody combines after this call began: this thread, or the one that is at it.
    pub(crate) fn kick(&self, mut combine: impl FnMut(&mut Turn<'_, T, C>)) {
        self.events.fetch_add(1, Ordering::AcqRel);
        // Counted before the look at the lock, as a combiner gives up the lock before it looks at the count.
        fence(Ordering::SeqCst);
        loop {
            let Some(guard) = self.combiner.try_lock() else { return };
            let seen = self.events.load(Ordering::Acquire);
            let mut turn = Turn { queue: self, guard: Some(guard) };
            combine(&mut turn);
            drop(turn);
            // Whoever came while the lock was held has left its work to this thread.
            fence(Ordering::SeqCst);
            if self.events.load(Ordering::Acquire) == seen {
                return;
            }
        }
    }

    /// Runs `f` on the combiner's state, waiting for the combiner if there is one. [`kick`](Self::kick) has to follow: who
    /// came meanwhile has left its work to this thread.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Turn<'_, T, C>) -> R) -> R {
        let guard = self.combiner.lock();
        f(&mut Turn { queue: self, guard: Some(guard) })
    }

    /// True if a combiner had to leave something. To be asked after giving back what it may have lacked; if so,
    /// [`kick`](Self::kick).
    pub(crate) fn is_stalled(&self) -> bool {
        fence(Ordering::SeqCst);
        self.stalled.load(Ordering::SeqCst)
    }
}

/// A combiner's hold on the queue.
pub(crate) struct Turn<'a, T, C> {
    queue: &'a MergeQueue<T, C>,
    /// None only inside of `unlocked`.
    guard: Option<TryMutexGuard<'a, C>>,
}

impl<T, C> Turn<'_, T, C> {
    /// The combiner's state.
    pub(crate) fn state(&mut self) -> &mut C {
        match &mut self.guard {
            Some(guard) => guard,
            None => unreachable!("a turn is used by its holder only"),
        }
    }

    /// Moves what has arrived to where `place` says.
    pub(crate) fn collect(&mut self, place: impl FnOnce(&mut C) -> &mut Vec<T>) {
        let queue = self.queue;
        place(self.state()).append(&mut queue.arrived.lock());
    }

    /// Notes whether something has to be left: `true` before the look at what is lacking.
    pub(crate) fn set_stalled(&mut self, stalled: bool) {
        self.queue.stalled.store(stalled, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Runs `f` while others may combine.
    pub(crate) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        self.guard = None;
        let result = f();
        self.guard = Some(self.queue.combiner.lock());
        result
    }
}

#[cfg(all(loom, test))]
mod model;
