//! Moves session threads to the core of the caller that they serve.
//!
//! A caller is followed while it makes all requests and blocks for each answer. Its session thread
//! then runs while the caller sleeps, and wakes it on the core that both are on: no idle core wakes
//! up. Session threads are SCHED_IDLE meanwhile, so the kernel takes the core for free and lets the
//! caller go on at once. Several callers that wait for another process share one core.
//!
//! - [`seat`]: counts requests of one session thread, and moves the thread after its caller.
//! - [`depth`]: tells whether the caller blocks for each answer.
//! - [`habit`]: decides which caller to follow. No I/O, no locks, no clock.
//! - [`policy`]: the kernel's scheduler.
//! - [`guard`]: the thread that binds session threads, and lifts those that starve.

mod depth;
#[cfg(test)]
mod fake;
mod guard;
mod habit;
mod policy;
mod seat;

use std::{
    cell::{OnceCell, RefCell},
    os::fd::OwnedFd,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, Thread},
};

use parking_lot::Mutex;

use self::{
    depth::InFlight,
    guard::Guard,
    habit::Habit,
    policy::System,
    seat::{Seat, Tally},
};
pub(super) use self::{depth::Unanswered, policy::begin_unbound};
use super::session::descriptors::has_request;

/// The kernel has no thread of this number, nor of the other one.
const NOBODY: u32 = 0;
const SEVERAL: u32 = u32::MAX;

/// A caller that has made so much work in a row is worth a look.
const WORTH_A_LOOK: u16 = 32;

/// Units of work between two looks of a session thread: where the caller runs, and whether its
/// requests overlap. An odd number, so that the looks do not fall on the same place of each batch of
/// 8 or 16 requests.
const LOOK: u16 = 7;

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
    in_flight: InFlight,
    follows: AtomicU64,
    rescues: AtomicU64,
    overlaps: AtomicU64,
}

/// Where session threads report their requests. Empty without a guard.
#[derive(Clone, Debug)]
pub(super) struct Calls(Option<Reports>);

#[derive(Clone, Debug)]
struct Reports {
    shared: Arc<Shared>,
    /// The kernel's queue of requests.
    device: Arc<OwnedFd>,
}

impl Calls {
    /// A request has come: which thread made it (0 if the kernel does not say) and how many bytes of data it moves.
    /// The session thread drops the result just before the answer leaves.
    pub(super) fn note(&self, caller: u32, bytes: usize) -> Unanswered {
        let Some(Reports { shared, device }) = &self.0 else { return Unanswered::default() };
        let moves_data = caller != NOBODY && bytes > 0;
        let (unanswered, overlaps) =
            if moves_data { shared.in_flight.enter() } else { (Unanswered::default(), false) };
        OWN.with(|own| {
            let Own { seat, scheduler } = own.get_or_init(|| shared.take_seat());
            let (before, tally) = seat.note(caller, bytes);
            if shared.is_news(before, tally)
                && let Some(guard) = shared.guard.get()
            {
                guard.unpark();
            }
            if tally.passed(LOOK, before) {
                seat.keep_up(caller, &shared.followed, &mut *scheduler.borrow_mut());
                if moves_data {
                    seat.sample(overlaps || has_request(device));
                }
            }
        });
        unanswered
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

    /// For session threads that take requests from this device.
    pub(super) fn calls(&self, device: &Arc<OwnedFd>) -> Calls {
        let report =
            |shared: &Arc<Shared>| Reports { shared: Arc::clone(shared), device: Arc::clone(device) };
        Calls(self.shared.as_ref().map(report))
    }

    /// How often a caller was followed, how often session threads were lifted because that did harm
    /// (another thread kept its core busy, or fewer requests came than before), and how often a caller
    /// was left alone because its requests overlap. Empty if this process follows no caller.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("follows", count(&shared.follows)),
            ("rescues", count(&shared.rescues)),
            ("overlaps", count(&shared.overlaps)),
        ]
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

    /// The samples of a thread that takes 70 requests of 4 KiB, and answers all but the first
    /// `unanswered` of them at once. `device` stands for the kernel's queue.
    fn samples_of(device: impl Into<OwnedFd>, caller: u32, unanswered: usize) -> depth::Samples {
        let (shared, device) = (Arc::new(Shared::default()), Arc::new(device.into()));
        let calls = Calls(Some(Reports { shared: Arc::clone(&shared), device }));
        let serve = || {
            let mut requests: Vec<_> = (0..unanswered).map(|_| calls.note(caller, 4096)).collect();
            (unanswered..70).for_each(|_| drop(calls.note(caller, 4096)));
            requests.clear();
        };
        thread::scope(|scope| scope.spawn(serve).join()).expect("no panic");
        shared.seats.lock()[0].samples()
    }

    #[test]
    fn one_request_in_seven_is_a_sample() {
        let samples = |taken, overlapping| depth::Samples { taken, overlapping };
        let (empty, _writer) = rustix::pipe::pipe().expect("a pipe");
        let none = || empty.try_clone().expect("cloned");
        assert_eq!(samples_of(none(), 5, 0), samples(10, 0));
        assert_eq!(samples_of(none(), 5, 1), samples(10, 10));
        let further = std::fs::File::open("/dev/zero").expect("always readable");
        assert_eq!(samples_of(further, 5, 0), samples(10, 10));
        assert_eq!(samples_of(none(), NOBODY, 1), samples(0, 0), "requests of the kernel");
    }

    #[test]
    fn threads_are_seated_once_and_a_guard_ends() {
        assert_eq!(Placement::none().counters(), []);
        let placement = Placement::follow(true);
        // Always readable.
        let device = Arc::new(OwnedFd::from(std::fs::File::open("/dev/zero").expect("opened")));
        let calls = placement.calls(&device);
        let served = thread::scope(|scope| {
            let serve = || (0..100).for_each(|_| drop(calls.note(0, 0)));
            [scope.spawn(serve), scope.spawn(serve)].map(|thread| thread.join().is_ok())
        });
        assert_eq!(served, [true, true]);
        if let Some(shared) = &placement.shared {
            assert_eq!(shared.seats.lock().len(), 2);
        }
        drop(placement);
    }
}
