//! Who looks at the sessions' request memory, and when nobody does.
//!
//! A session is awake while one of the host's threads looks at its requests, and asleep otherwise. At most one thread
//! looks: the first that a client rings, until all sessions have gone to sleep for want of requests. An idle host sleeps.
//!
//! A session goes to sleep in this order: it is marked asleep, where its client can read it; a fence; one more look at its
//! requests. A client makes a request in this order: it writes the request; a fence ([`written`]); it looks at the mark. So
//! either the host finds the request with that last look, or the client finds that it has to ring. Without either fence both
//! could look before the other's write has reached them, and the call would wait for ever; the models show that it does.

use std::sync::Arc;

use super::Patience;
use crate::sync::{
    Mutex, TryMutex,
    atomic::{AtomicBool, AtomicU32, Ordering, fence},
};
#[cfg(not(loom))]
use crate::sync::{spin_loop, yield_now};

/// Looks at all sessions before the core is offered to others. One turn, of which a session's patience is made.
#[cfg(not(loom))]
const LOOKS: u32 = 64;
#[cfg(loom)]
const LOOKS: u32 = 1;
/// Most turns without a request that a session stays awake for: about a tenth of a millisecond if nobody else wants the core.
#[cfg(not(loom))]
const TURNS: u32 = 32;
#[cfg(loom)]
const TURNS: u32 = 1;

// In a model there is no pause: a look that follows a yield sees all that was written before it, which is not so elsewhere.
#[cfg(loom)]
fn spin_loop() {}
#[cfg(loom)]
fn yield_now() {}

/// To be called between the writing of a request and the look at whether the host is asleep, by a client whose processor does
/// both.
pub(super) fn written() {
    fence(Ordering::SeqCst);
}

/// A session as the thread that looks sees it.
pub(crate) trait Watched {
    /// What it takes to carry a request out.
    type Work;
    /// Carries out the requests that are there; true if there were any.
    fn serve(self: &Arc<Self>, work: &mut Self::Work) -> bool;
    /// Tells the client whether somebody looks.
    fn mark(&self, awake: bool);
    /// The session has ended.
    fn is_over(&self) -> bool;
    /// What is kept here for it; `None` for one that is not to be looked at.
    fn vigil(&self) -> Option<&Vigil>;
    /// The core of this host on which its client is, if that is known.
    fn core(&self) -> Option<usize> {
        None
    }
}

/// A session's part.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// It is among those that are looked at, or will be.
    awake: AtomicBool,
    /// Turns without a request that it may take.
    patience: Patience,
    /// Turns that have ended since the last request.
    turns: AtomicU32,
}

impl Default for Vigil {
    fn default() -> Self {
        Vigil { awake: AtomicBool::new(false), patience: Patience::new(TURNS), turns: AtomicU32::new(0) }
    }
}

/// What the thread that looks does between two turns.
pub(crate) trait Between<W> {
    /// Offers others what they need of this thread; false if it is to stop.
    fn turn(&self, work: &mut W) -> bool;
    /// Keeps the thread off these cores.
    fn keep_off(&self, _work: &mut W, _cores: impl Iterator<Item = usize> + Clone) {}
    /// It has stopped looking.
    fn over(&self, _work: &mut W) {}
}

/// The sessions that are awake.
#[derive(Debug)]
pub(crate) struct Watch<T> {
    /// Those that the thread that looks does not know yet.
    arrived: Mutex<Vec<Arc<T>>>,
    /// Held by the thread that looks, with those that it looks at.
    watching: TryMutex<Vec<Arc<T>>>,
}

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Watch { arrived: Mutex::default(), watching: TryMutex::new(Vec::new()) }
    }
}

impl<T: Watched> Watch<T> {
    /// A session is to be looked at from now on. [`run`](Self::run) has to follow.
    pub(crate) fn wake(&self, session: &Arc<T>) {
        if wake(session) {
            self.arrived.lock().push(Arc::clone(session));
        }
    }

    /// Looks at the sessions that are awake for as long as there are any, unless another thread does.
    pub(crate) fn run(&self, work: &mut T::Work, between: &impl Between<T::Work>) {
        // What arrives while another thread looks is left to that one, and is found here if it had stopped before.
        while !self.arrived.lock().is_empty() {
            let Some(mut sessions) = self.watching.try_lock() else { return };
            let goes_on = self.until_all_sleep(&mut sessions, work, between);
            between.over(work);
            if !goes_on {
                // Nobody serves any more.
                sessions.drain(..).for_each(|session| session.mark(false));
                return;
            }
        }
    }

    /// False if it is to stop.
    fn until_all_sleep(
        &self,
        sessions: &mut Vec<Arc<T>>,
        work: &mut T::Work,
        between: &impl Between<T::Work>,
    ) -> bool {
        loop {
            sessions.append(&mut self.arrived.lock());
            for _ in 0..LOOKS {
                let mut found = false;
                for session in sessions.iter() {
                    if session.serve(work) {
                        found = true;
                        session.vigil().inspect(|vigil| vigil.served());
                    }
                }
                if !found {
                    spin_loop();
                }
            }
            sessions.retain(|session| !session.is_over() && stays(session, work));
            // A session that arrives now finds this thread at work, which looks again.
            if sessions.is_empty() && self.arrived.lock().is_empty() {
                return true;
            }
            if !between.turn(work) {
                return false;
            }
            between.keep_off(work, sessions.iter().filter_map(|session| session.core()));
            yield_now();
        }
    }
}

/// True if it was asleep.
fn wake<T: Watched>(session: &Arc<T>) -> bool {
    let Some(vigil) = session.vigil() else { return false };
    // Set after the mark of one that goes to sleep, which this overwrites.
    if vigil.awake.swap(true, Ordering::SeqCst) {
        return false;
    }
    vigil.turns.store(0, Ordering::Relaxed);
    session.mark(true);
    true
}

/// A turn is over: puts a session to sleep for which that is enough. True if it stays, as one does that has a request all the
/// same.
fn stays<T: Watched>(session: &Arc<T>, work: &mut T::Work) -> bool {
    let Some(vigil) = session.vigil() else { return false };
    if vigil.has_patience() {
        return true;
    }
    vigil.patience.gave_up();
    session.mark(false);
    vigil.awake.store(false, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    // Awake by another thread's doing, it is in good hands.
    session.serve(work) && wake(session)
}

impl Vigil {
    /// There was a request.
    fn served(&self) {
        let turns = self.turns.load(Ordering::Relaxed);
        if turns > 0 {
            self.patience.paid(turns - 1);
            self.turns.store(0, Ordering::Relaxed);
        }
    }

    /// A turn is over. True if it may take another one: the first one counts for nothing.
    fn has_patience(&self) -> bool {
        let turns = self.turns.load(Ordering::Relaxed) + 1;
        self.turns.store(turns, Ordering::Relaxed);
        turns <= self.patience.limit()
    }
}

#[cfg(all(loom, test))]
mod model;
