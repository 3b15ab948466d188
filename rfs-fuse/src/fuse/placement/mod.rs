//! Which core a request is served on: that of the thread that made it, while it is the only one that makes any and waits for each, or
//! that of several who wait for another process.
//!
//! Then the session thread runs while the caller waits, and wakes it on the core that both are on: no core has to be woken.
//! Session threads are SCHED_IDLE meanwhile, so that the kernel takes the core for free and lets the caller go on at
//! once. What comes of it is in `DESIGN.md`.
//!
//! [`seat`]: what a session thread counts, and how it keeps up with a caller that the kernel moves; [`habit`]: whom to follow, from that, pure; [`policy`]: the kernel's
//! scheduler; [`guard`]: the thread that does it, and that sees to it that nobody starves.

#[cfg(test)]
mod fake;
mod guard;
mod habit;
mod policy;
mod seat;

use std::{
    cell::{OnceCell, RefCell},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, Thread},
};

use parking_lot::Mutex;

pub(super) use self::policy::begin_unbound;
use self::{
    guard::Guard,
    habit::Habit,
    policy::System,
    seat::{Seat, Tally},
};

/// The kernel has no thread of this number, nor of the other one.
const NOBODY: u32 = 0;
const SEVERAL: u32 = u32::MAX;

/// A caller that has made so much work in a row is worth a look.
const WORTH_A_LOOK: u16 = 32;

/// Once in so much work a session thread looks where the caller runs now.
const KEEP_UP: u16 = 8;

/// What a session thread, which serves one mount all its life, has to itself.
struct Own {
    seat: Arc<Seat>,
    scheduler: RefCell<System>,
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

/// What session threads and the guard tell each other.
#[derive(Debug, Default)]
struct Shared {
    seats: Mutex<Vec<Arc<Seat>>>,
    guard: OnceLock<Thread>,
    /// The guard waits to be woken.
    asleep: AtomicBool,
    /// The thread that is followed, [`SEVERAL`], or [`NOBODY`].
    followed: AtomicU32,
    /// Several callers may be followed.
    several: bool,
    stop: AtomicBool,
    follows: AtomicU64,
    rescues: AtomicU64,
}

/// Where session threads say who calls. Without a guard it is nobody's business.
#[derive(Clone, Debug)]
pub(super) struct Calls(Option<Arc<Shared>>);

impl Calls {
    /// A request has come: which thread made it (0 if the kernel does not say) and how many bytes of data it moves.
    pub(super) fn note(&self, caller: u32, bytes: usize) {
        let Some(shared) = &self.0 else { return };
        OWN.with(|own| {
            let Own { seat, scheduler } = own.get_or_init(|| shared.take_seat());
            let (before, tally) = seat.note(caller, bytes);
            if shared.is_news(before, tally)
                && let Some(guard) = shared.guard.get()
            {
                guard.unpark();
            }
            if tally.passed(KEEP_UP, before) {
                seat.keep_up(caller, &shared.followed, &mut *scheduler.borrow_mut());
            }
        });
    }
}

impl Shared {
    fn take_seat(&self) -> Own {
        let seat = Arc::new(Seat::new(rustix::thread::gettid()));
        self.seats.lock().push(seat.clone());
        Own { seat, scheduler: RefCell::default() }
    }

    /// True if the guard has to know of it now: somebody else than who is followed, or much that the kernel asks for on its own, or
    /// somebody who may be worth it.
    fn is_news(&self, before: Tally, tally: Tally) -> bool {
        match self.followed.load(Ordering::Relaxed) {
            NOBODY => {
                (tally.run >= WORTH_A_LOOK || self.several && tally.run > 0)
                    && tally.passed(WORTH_A_LOOK, before)
                    && self.asleep.load(Ordering::Relaxed)
            }
            SEVERAL => false,
            followed => tally.caller != followed || tally.run == 0,
        }
    }
}

/// The guard of a mount's session threads. Dropping it lifts them and ends it.
#[derive(Debug)]
pub struct Placement {
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Placement {
    /// None: session threads run where the kernel has them run.
    pub fn none() -> Placement {
        Placement { shared: None, thread: None }
    }

    /// One that follows callers, where the kernel lets it; otherwise none. `several` at a time, too: that is for those who wait for another
    /// process, which has work for the other core.
    pub fn follow(several: bool) -> Placement {
        let start = |system: System| {
            let shared = Arc::new(Shared { several, ..Shared::default() });
            let guard = Guard::new(shared.clone(), system, Habit::new(several));
            let thread = thread::Builder::new().name("guard".into()).spawn(move || guard.run())?;
            shared.guard.set(thread.thread().clone()).ok();
            Ok(Placement { shared: Some(shared), thread: Some(thread) })
        };
        System::probe().and_then(start).unwrap_or_else(|e| {
            log::debug!("session threads do not follow callers: {e}");
            Placement::none()
        })
    }

    pub(super) fn calls(&self) -> Calls {
        Calls(self.shared.clone())
    }

    /// How often a caller was followed, and how often session threads were lifted because it did harm: somebody else kept its core
    /// busy, or fewer requests came than before. Nothing if nobody is followed here.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![("follows", count(&shared.follows)), ("rescues", count(&shared.rescues))]
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if let (Some(shared), Some(thread)) = (&self.shared, self.thread.take()) {
            shared.stop.store(true, Ordering::Relaxed);
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("the guard of session threads had panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_told_what_it_has_to_know() {
        let shared = Shared::default();
        let tally = |caller, run, count| Tally { caller, run, count };
        // After work of one.
        let is_news = |shared: &Shared, tally: Tally| {
            shared.is_news(Tally { count: tally.count.wrapping_sub(1), ..tally }, tally)
        };
        assert!(!is_news(&shared, tally(5, 32, 64)), "it is awake");
        shared.asleep.store(true, Ordering::Relaxed);
        assert!(is_news(&shared, tally(5, 32, 64)) && is_news(&shared, tally(5, u16::MAX, 0)));
        assert!(shared.is_news(tally(5, 7, 63), tally(5, 40, 96)), "it was as much at once");
        for tally in [tally(5, 31, 64), tally(5, 40, 63), tally(5, 0, 0)] {
            assert!(!is_news(&shared, tally));
        }
        shared.asleep.store(false, Ordering::Relaxed);
        shared.followed.store(5, Ordering::Relaxed);
        assert!(!is_news(&shared, tally(5, 1, 1)));
        assert!(is_news(&shared, tally(6, 1, 1)) && is_news(&shared, tally(5, 0, 64)));
        // Where several are followed, much of several is worth a look, and who makes it no news.
        let shared = Shared { several: true, ..Shared::default() };
        shared.asleep.store(true, Ordering::Relaxed);
        assert!(is_news(&shared, tally(5, 1, 64)));
        assert!(!is_news(&shared, tally(5, 0, 64)) && !is_news(&shared, tally(5, 1, 63)));
        shared.followed.store(SEVERAL, Ordering::Relaxed);
        assert!(!is_news(&shared, tally(5, 1, 64)) && !is_news(&shared, tally(6, 0, 64)));
    }

    #[test]
    fn threads_are_seated_once_and_a_guard_ends() {
        assert_eq!(Placement::none().counters(), []);
        let placement = Placement::follow(true);
        let calls = placement.calls();
        let served = thread::scope(|scope| {
            let serve = || (0..100).for_each(|_| calls.note(0, 0));
            [scope.spawn(serve), scope.spawn(serve)].map(|thread| thread.join().is_ok())
        });
        assert_eq!(served, [true, true]);
        if let Some(shared) = &placement.shared {
            assert_eq!(shared.seats.lock().len(), 2);
        }
        drop(placement);
    }
}
