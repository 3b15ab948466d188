//! Pins session threads to the core of their caller.
//!
//! Session threads are pinned while one caller makes all requests and blocks for each answer. A
//! session thread then runs while the caller sleeps, and wakes it on the same core, so no idle
//! core wakes up. Pinned threads are SCHED_IDLE, so a woken caller runs at once.
//!
//! - [`thread_stats`]: counts a session thread's requests, and moves the thread with its caller.
//! - [`overlap`]: detects callers that do not block for each answer.
//! - [`pin_policy`]: decides when to pin, and for which caller.
//! - [`sched`]: the kernel's scheduler.
//! - [`affinity_state`]: state that session threads and the monitor share.
//! - [`monitor`]: the thread that pins and unpins session threads.
//!
//! # Concurrency
//! Session threads write atomics, which the monitor reads. One lock over the list of threads.

mod affinity_state;
#[cfg(test)]
mod fake;
mod monitor;
mod overlap;
mod pin_policy;
mod sched;
mod thread_stats;

use std::{
    cell::{OnceCell, RefCell},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use self::{
    affinity_state::AffinityState,
    monitor::Monitor,
    pin_policy::PinPolicy,
    sched::System,
    thread_stats::{NO_THREAD, ThreadStats},
};
pub(super) use self::{overlap::Unanswered, sched::reset_affinity};
use super::descriptors::has_request;

/// Units of work between two samples of a session thread. A sample reads the caller's core, and
/// whether requests overlap. The number is odd, so that samples do not always meet the same
/// request of a batch of 8 or 16.
const SAMPLE_INTERVAL: u16 = 7;

/// State of a session thread. The thread serves one mount.
struct SessionThread {
    stats: Arc<ThreadStats>,
    scheduler: RefCell<System>,
}

thread_local! {
    static OWN: OnceCell<SessionThread> = const { OnceCell::new() };
}

/// Adds the calling thread to the session threads that the monitor watches.
fn register_thread(shared: &AffinityState) -> SessionThread {
    let stats = Arc::new(ThreadStats::new(rustix::thread::gettid()));
    shared.session_threads.lock().push(stats.clone());
    SessionThread { stats, scheduler: RefCell::default() }
}

/// Records requests of session threads. Empty without a monitor.
#[derive(Clone, Debug)]
pub(super) struct RequestLog(Option<Recorder>);

#[derive(Clone, Debug)]
struct Recorder {
    shared: Arc<AffinityState>,
    /// The FUSE device, which has the kernel's queue of requests.
    device: Arc<OwnedFd>,
}

impl RequestLog {
    /// Records a request of thread `caller` (0 if the kernel does not say) that moves `bytes` bytes
    /// of data. The session thread drops the result just before it sends the answer.
    pub(super) fn record(&self, caller: u32, bytes: usize) -> Unanswered {
        let Some(Recorder { shared, device }) = &self.0 else { return Unanswered::default() };
        let moves_data = caller != NO_THREAD && bytes > 0;
        let (unanswered, overlaps) =
            if moves_data { shared.in_flight.enter() } else { (Unanswered::default(), false) };
        OWN.with(|own| {
            let SessionThread { stats, scheduler } = own.get_or_init(|| register_thread(shared));
            let (before, tally) = stats.record(caller, bytes);
            if shared.needs_monitor(before, tally)
                && let Some(monitor) = shared.monitor.get()
            {
                monitor.unpark();
            }
            if tally.passed(SAMPLE_INTERVAL, before) {
                stats.follow_caller(caller, &shared.pinned_to, &mut *scheduler.borrow_mut());
                if moves_data {
                    stats.sample(overlaps || has_request(device));
                }
            }
        });
        unanswered
    }
}

/// The monitor of a mount's session threads. Dropping it unpins them and ends it.
#[derive(Debug)]
pub struct Placement {
    shared: Option<Arc<AffinityState>>,
    thread: Option<JoinHandle<()>>,
}

impl Placement {
    /// Returns no monitor: the kernel alone chooses the cores of session threads.
    pub fn none() -> Placement {
        Placement { shared: None, thread: None }
    }

    /// Starts a monitor, if the kernel allows pinning. With `several`, threads may also be pinned
    /// for several callers. That is for callers that wait for another process, which has work for
    /// the other core.
    pub fn follow(several: bool) -> Placement {
        let start = |system: System| {
            let shared = Arc::new(AffinityState { several, ..AffinityState::default() });
            let monitor = Monitor::new(shared.clone(), system, PinPolicy::new(several));
            let thread = thread::Builder::new().name("affinity".into()).spawn(move || monitor.run())?;
            shared.monitor.set(thread.thread().clone()).ok();
            Ok(Placement { shared: Some(shared), thread: Some(thread) })
        };
        System::probe().and_then(start).unwrap_or_else(|e| {
            log::debug!("session threads are not pinned: {e}");
            Placement::none()
        })
    }

    /// Returns the recorder for session threads that read requests from this device.
    pub(super) fn request_log(&self, device: &Arc<OwnedFd>) -> RequestLog {
        let report =
            |shared: &Arc<AffinityState>| Recorder { shared: Arc::clone(shared), device: Arc::clone(device) };
        RequestLog(self.shared.as_ref().map(report))
    }

    /// Returns counters, none without a monitor. `follows` counts pins. `rescues` counts unpins
    /// because pinning did harm: another thread kept the core busy, or fewer requests came than
    /// before. `overlaps` counts callers without a pin because their requests overlap.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            ("follows", count(&shared.pins)),
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

    /// Returns the samples of a thread that takes 70 requests of 4 KiB, and answers all but the
    /// first `unanswered` of them at once. `device` stands for the kernel's queue.
    fn samples_of(device: impl Into<OwnedFd>, caller: u32, unanswered: usize) -> overlap::Samples {
        let (shared, device) = (Arc::new(AffinityState::default()), Arc::new(device.into()));
        let request_log = RequestLog(Some(Recorder { shared: Arc::clone(&shared), device }));
        let serve = || {
            let mut requests: Vec<_> = (0..unanswered).map(|_| request_log.record(caller, 4096)).collect();
            (unanswered..70).for_each(|_| drop(request_log.record(caller, 4096)));
            requests.clear();
        };
        thread::scope(|scope| scope.spawn(serve).join()).expect("no panic");
        shared.session_threads.lock()[0].samples()
    }

    #[test]
    fn one_request_in_seven_is_a_sample() {
        let samples = |taken, overlapping| overlap::Samples { taken, overlapping };
        let (empty, _writer) = rustix::pipe::pipe().expect("a pipe");
        let none = || empty.try_clone().expect("cloned");
        assert_eq!(samples_of(none(), 5, 0), samples(10, 0));
        assert_eq!(samples_of(none(), 5, 1), samples(10, 10));
        let further = std::fs::File::open("/dev/zero").expect("always readable");
        assert_eq!(samples_of(further, 5, 0), samples(10, 10));
        assert_eq!(samples_of(none(), NO_THREAD, 1), samples(0, 0), "requests of the kernel");
    }

    #[test]
    fn each_thread_registers_once_and_the_monitor_ends() {
        assert_eq!(Placement::none().counters(), []);
        let placement = Placement::follow(true);
        // This file is always readable.
        let device = Arc::new(OwnedFd::from(std::fs::File::open("/dev/zero").expect("opened")));
        let request_log = placement.request_log(&device);
        let served = thread::scope(|scope| {
            let serve = || (0..100).for_each(|_| drop(request_log.record(0, 0)));
            [scope.spawn(serve), scope.spawn(serve)].map(|thread| thread.join().is_ok())
        });
        assert_eq!(served, [true, true]);
        if let Some(shared) = &placement.shared {
            assert_eq!(shared.session_threads.lock().len(), 2);
        }
        drop(placement);
    }
}
