//! Pins session threads to the core of their caller.
//!
//! Session threads are pinned while one caller makes all requests and blocks for each answer. A
//! session thread then runs while the caller sleeps, and wakes it on the same core, so no idle core
//! wakes up. Pinned threads are SCHED_IDLE, so a woken caller runs at once. Several callers that
//! wait for another process share one core.
//!
//! - [`seat`]: counts requests of one session thread, and moves the thread with its caller.
//! - [`depth`]: detects callers that do not block for each answer.
//! - [`habit`]: decides when to pin, and for which caller.
//! - [`policy`]: the kernel's scheduler.
//! - [`guard`]: the thread that pins and unpins session threads.
//!
//! # Concurrency
//! Session threads write atomics, which the guard reads. One lock over the list of session threads.

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

/// No thread has this number, nor the number [`SEVERAL`].
const NOBODY: u32 = 0;
const SEVERAL: u32 = u32::MAX;

/// Work of a caller in a row that wakes the guard.
const WORTH_A_LOOK: u16 = 32;

/// Units of work between two samples of a session thread. A sample reads the caller's core, and
/// whether requests overlap. The number is odd, so that samples do not always meet the same request
/// of a batch of 8 or 16.
const LOOK: u16 = 7;

/// State of a session thread. The thread serves one mount.
struct Own {
    seat: Arc<Seat>,
    scheduler: RefCell<System>,
}

thread_local! {
    static OWN: OnceCell<Own> = const { OnceCell::new() };
}

/// State that session threads and the guard share.
#[derive(Debug, Default)]
struct Shared {
    seats: Mutex<Vec<Arc<Seat>>>,
    guard: OnceLock<Thread>,
    /// True while the guard sleeps until a session thread wakes it.
    asleep: AtomicBool,
    /// The caller to which session threads are pinned, [`SEVERAL`], or [`NOBODY`].
    followed: AtomicU32,
    /// True if session threads may be pinned for several callers.
    several: bool,
    stop: AtomicBool,
    in_flight: InFlight,
    follows: AtomicU64,
    rescues: AtomicU64,
    overlaps: AtomicU64,
}

/// Records requests of session threads. Empty without a guard.
#[derive(Clone, Debug)]
pub(super) struct Calls(Option<Reports>);

#[derive(Clone, Debug)]
struct Reports {
    shared: Arc<Shared>,
    /// The FUSE device, which has the kernel's queue of requests.
    device: Arc<OwnedFd>,
}

impl Calls {
    /// Records a request of thread `caller` (0 if the kernel does not say) that moves `bytes` bytes
    /// of data. The session thread drops the result just before it sends the answer.
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

    /// Returns true if the guard has to act now: another caller than the pinned one has made a
    /// request, the kernel has requested much on its own, or a caller may be worth pinning.
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

/// The guard of a mount's session threads. Dropping it unpins them and ends it.
#[derive(Debug)]
pub struct Placement {
    shared: Option<Arc<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl Placement {
    /// Returns no guard: the kernel alone chooses the cores of session threads.
    pub fn none() -> Placement {
        Placement { shared: None, thread: None }
    }

    /// Starts a guard, if the kernel allows pinning. With `several`, threads may also be pinned for
    /// several callers. That is for callers that wait for another process, which has work for the
    /// other core.
    pub fn follow(several: bool) -> Placement {
        let start = |system: System| {
            let shared = Arc::new(Shared { several, ..Shared::default() });
            let guard = Guard::new(shared.clone(), system, Habit::new(several));
            let thread = thread::Builder::new().name("guard".into()).spawn(move || guard.run())?;
            shared.guard.set(thread.thread().clone()).ok();
            Ok(Placement { shared: Some(shared), thread: Some(thread) })
        };
        System::probe().and_then(start).unwrap_or_else(|e| {
            log::debug!("session threads are not pinned: {e}");
            Placement::none()
        })
    }

    /// Returns the recorder for session threads that read requests from this device.
    pub(super) fn calls(&self, device: &Arc<OwnedFd>) -> Calls {
        let report =
            |shared: &Arc<Shared>| Reports { shared: Arc::clone(shared), device: Arc::clone(device) };
        Calls(self.shared.as_ref().map(report))
    }

    /// Returns counters, none without a guard. `follows` counts pins. `rescues` counts unpins
    /// because pinning did harm: another thread kept the core busy, or fewer requests came than
    /// before. `overlaps` counts callers without a pin because their requests overlap.
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
                log::error!("the thread that pins session threads has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_wakes_for_other_callers_and_for_dense_work() {
        let shared = Shared::default();
        let tally = |caller, run, count| Tally { caller, run, count };
        // A tally after one more unit of work.
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
        // With several callers, dense work wakes the guard, and a change of the caller does not.
        let shared = Shared { several: true, ..Shared::default() };
        shared.asleep.store(true, Ordering::Relaxed);
        assert!(is_news(&shared, tally(5, 1, 64)));
        assert!(!is_news(&shared, tally(5, 0, 64)) && !is_news(&shared, tally(5, 1, 63)));
        shared.followed.store(SEVERAL, Ordering::Relaxed);
        assert!(!is_news(&shared, tally(5, 1, 64)) && !is_news(&shared, tally(6, 0, 64)));
    }

    /// Returns the samples of a thread that takes 70 requests of 4 KiB, and answers all but the
    /// first `unanswered` of them at once. `device` stands for the kernel's queue.
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
    fn each_thread_registers_once_and_the_guard_ends() {
        assert_eq!(Placement::none().counters(), []);
        let placement = Placement::follow(true);
        // This file is always readable.
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
