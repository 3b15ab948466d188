//! Admission control: limits the number of bytes in flight.
//!
//! A session counts the bytes in flight, and an [`AdmissionPolicy`] decides. [`WindowScope`] says
//! whether the bytes of other sessions on the same device count as well. A request that is not
//! admitted stays in the merge queue, where it can still merge. Its owner retries after a
//! completion of the session. [`StaticWindow`] is the policy that the RDMAbox paper measures, and
//! that a session has by default. [`LatencyWindow`] finds the window size itself, for which the
//! paper leaves a hook (section IV-A).
//! [`SessionBuilder::admission`](crate::SessionBuilder::admission) sets a policy.
//!
//! # Concurrency
//! Any thread may call every method. The counter uses atomics, never queues and never waits.

mod device_bytes;
mod in_flight;
mod latency_window;
mod scope;
mod static_window;
mod turns;

use std::{fmt, sync::Arc, time::Duration};

use in_flight::InFlight;

use crate::sync::atomic::{AtomicBool, Ordering};

pub(crate) use device_bytes::{DeviceBytes, DeviceKey};
pub use latency_window::{LatencyTarget, LatencyWindow, LatencyWindowOptions};
pub use scope::{ParseScopeError, WindowScope};
pub use static_window::{DEFAULT_WINDOW, StaticWindow};
pub(crate) use turns::Turns;

/// Accounting unit in bytes. Every request is charged a whole number of units.
pub const ADMISSION_PAGE: u64 = 4096;

/// Decides which requests may be posted. Many threads call it concurrently, and competing threads
/// call it several times per request, so it must be quick and must not block.
///
/// A program may implement it. Methods that a later version adds have a default.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use rdmabox::{MemoryServer, Session, admission::{AdmissionPolicy, LatencyWindow, StaticWindow}};
///
/// /// A fixed window that reports slow completions.
/// #[derive(Debug)]
/// struct Reporting(StaticWindow);
///
/// impl AdmissionPolicy for Reporting {
///     fn admit(&self, in_flight_bytes: u64, request_bytes: u64) -> bool {
///         self.0.admit(in_flight_bytes, request_bytes)
///     }
///
///     fn window(&self) -> u64 {
///         self.0.window()
///     }
///
///     fn on_complete(&self, bytes: u64, latency: Duration) {
///         if latency > Duration::from_secs(1) {
///             eprintln!("{bytes} bytes took {latency:?}");
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 4096)?;
/// # let address = &host.addresses()[0];
/// let policy = Arc::new(LatencyWindow::new(Default::default()));
/// let adaptive = Session::builder().admission(policy).connect(address)?;
/// let policy = Arc::new(Reporting(StaticWindow::new(1 << 20)));
/// let reporting = Session::builder().admission(policy).connect(address)?;
/// # Ok(())
/// # }
/// ```
pub trait AdmissionPolicy: Send + Sync + fmt::Debug {
    /// Returns true if a request of `request_bytes` may be posted while `in_flight_bytes` are in
    /// flight, of the session or of the device ([`WindowScope`]). Both are whole pages.
    ///
    /// A request is admitted without a call of this method when its session has nothing in flight,
    /// so each request is posted at some time.
    fn admit(&self, in_flight_bytes: u64, request_bytes: u64) -> bool;

    /// Returns the current size of the window in bytes. Requests are not merged beyond it: a merged
    /// work request that is larger would be admitted alone, and exceed the window. The default is
    /// for policies without such a size.
    fn window(&self) -> u64 {
        u64::MAX
    }

    /// Records a completion: its size in bytes and the time since its post.
    fn on_complete(&self, bytes: u64, latency: Duration) {
        let _ = (bytes, latency);
    }
}

/// Returns the bytes that a request of `bytes` is charged, in whole pages. An empty request is
/// charged nothing.
pub(crate) fn charge(bytes: u64) -> u64 {
    bytes.div_ceil(ADMISSION_PAGE).saturating_mul(ADMISSION_PAGE)
}

/// Counter of the bytes in flight. Each successful [`try_admit`](Self::try_admit) needs exactly
/// one [`release`](Self::release) or [`complete`](Self::complete) with the same number of bytes.
#[derive(Debug)]
pub(crate) struct Admission {
    policy: Arc<dyn AdmissionPolicy>,
    own: InFlight,
    /// The device whose window the session shares.
    device: Option<SharedWindow>,
}

/// The part of a session in the window of its device.
#[derive(Debug)]
struct SharedWindow {
    bytes: Arc<DeviceBytes>,
    /// True if the last request was refused, and some are in flight since.
    waits: AtomicBool,
}

impl SharedWindow {
    fn set_waiting(&self, waits: bool) {
        if self.waits.load(Ordering::Relaxed) != waits && self.waits.swap(waits, Ordering::Relaxed) != waits {
            self.bytes.set_waiting(waits);
        }
    }
}

impl Admission {
    /// Creates a counter with nothing in flight and decisions by `policy`.
    pub(crate) fn new(policy: Arc<dyn AdmissionPolicy>) -> Admission {
        Admission { policy, own: InFlight::default(), device: None }
    }

    /// Creates the counter of a session that shares the window of a device.
    pub(crate) fn on_device(policy: Arc<dyn AdmissionPolicy>, bytes: Arc<DeviceBytes>) -> Admission {
        let device = Some(SharedWindow { bytes, waits: AtomicBool::new(false) });
        Admission { policy, own: InFlight::default(), device }
    }

    /// Adds a request if the policy admits it. The decision and the addition are atomic, so
    /// competing threads never exceed the window together. Threads of one session that share a
    /// device's window must not call it at the same time.
    pub(crate) fn try_admit(&self, bytes: u64) -> bool {
        let charge = charge(bytes);
        match &self.device {
            None => self.own.try_add(charge, |own| own == 0 || self.policy.admit(own, charge)),
            Some(device) => self.try_admit_on(device, charge),
        }
    }

    fn try_admit_on(&self, device: &SharedWindow, charge: u64) -> bool {
        let (own, active) = (self.in_flight(), device.bytes.active());
        let share = self.policy.window() / active;
        let may_exceed_share = !device.bytes.has_waiting_beside(device.waits.load(Ordering::Relaxed));
        let is_in_share = own.checked_add(charge).is_some_and(|total| total <= share);
        let admits = |total| {
            own == 0
                || (may_exceed_share || is_in_share) && self.policy.admit(total, charge)
                || self.is_guaranteed(own, charge, total, active)
        };
        let admitted = device.bytes.in_flight.try_add(charge, admits);
        // A completion may have removed the last bytes since.
        if admitted && charge > 0 && self.own.add(charge) == 0 {
            device.bytes.set_active(true);
        }
        device.set_waiting(!admitted);
        if !admitted && self.in_flight() == 0 {
            // The last completion came before the refusal was noted. The next request is admitted.
            device.set_waiting(false);
        }
        admitted
    }

    /// Returns true if a session may exceed the window of its device. It stays within its share, as
    /// all active sessions would with as many bytes each. The sum exceeds the window by one share
    /// at most. So a peer that is stopped, and holds the window, leaves others a share.
    fn is_guaranteed(&self, own: u64, charge: u64, total: u64, active: u64) -> bool {
        let window = self.policy.window();
        let share = window / active;
        window < u64::MAX
            && total > share
            && self.policy.admit(own.saturating_mul(active), charge.saturating_mul(active))
            && self.policy.admit(total - share, charge)
    }

    /// Removes a request that was not executed, or whose latency is not meaningful.
    pub(crate) fn release(&self, bytes: u64) {
        let charge = charge(bytes);
        match &self.device {
            None => {
                self.own.remove(charge);
            }
            Some(device) => self.release_on(device, charge),
        }
    }

    fn release_on(&self, device: &SharedWindow, charge: u64) {
        // The device first: a session without bytes is admitted in any case.
        device.bytes.in_flight.remove(charge);
        if self.own.remove(charge) == charge && charge > 0 {
            device.bytes.set_active(false);
            // The next request is admitted in any case.
            device.set_waiting(false);
        }
    }

    /// Removes a completed request and reports its latency to the policy.
    pub(crate) fn complete(&self, bytes: u64, latency: Duration) {
        self.release(bytes);
        self.policy.on_complete(bytes, latency);
    }

    /// Returns the bytes currently in flight, in whole pages.
    pub(crate) fn in_flight(&self) -> u64 {
        self.own.bytes()
    }

    /// Returns the bytes that count beside the window: those of the session, or of its device.
    pub(crate) fn counted(&self) -> u64 {
        self.in_window().bytes()
    }

    fn in_window(&self) -> &InFlight {
        self.device.as_ref().map_or(&self.own, |device| &device.bytes.in_flight)
    }

    /// Returns the free part of the window in bytes. A hint: other threads may take it, and a
    /// policy may admit less.
    pub(crate) fn free(&self) -> u64 {
        self.policy.window().saturating_sub(self.counted())
    }

    /// Returns the maximum number of bytes in flight so far, in whole pages.
    pub(crate) fn peak(&self) -> u64 {
        self.own.peak()
    }

    /// Returns the maximum number of bytes that counted beside the window.
    pub(crate) fn counted_peak(&self) -> u64 {
        self.in_window().peak()
    }

    /// Returns the maximum length of a merged work request in bytes: whole pages, so that its
    /// charge is not larger.
    pub(crate) fn max_merge(&self) -> u64 {
        (self.policy.window() / ADMISSION_PAGE).max(1) * ADMISSION_PAGE
    }
}

impl Drop for Admission {
    /// Gives back the bytes of requests that never completed.
    fn drop(&mut self) {
        let Some(device) = &self.device else { return };
        let rest = self.in_flight();
        if rest > 0 {
            device.bytes.in_flight.remove(rest);
            device.bytes.set_active(false);
        }
        device.set_waiting(false);
    }
}

impl Default for Admission {
    fn default() -> Self {
        Admission::new(Arc::new(StaticWindow::default()))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use parking_lot::Mutex;
    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = ADMISSION_PAGE;

    fn window(bytes: u64) -> Admission {
        Admission::new(Arc::new(StaticWindow::new(bytes)))
    }

    #[test]
    fn the_default_window_is_seven_mebibytes() {
        let admission = Admission::default();
        assert!(admission.try_admit(6 << 20));
        assert!(!admission.try_admit((1 << 20) + 1));
        assert!(admission.try_admit(1 << 20));
        assert!(!admission.try_admit(1));
        assert_eq!(admission.in_flight(), 7 << 20);
    }

    #[test]
    fn requests_are_charged_in_pages() {
        let admission = window(2 * PAGE);
        assert!(admission.try_admit(1));
        assert_eq!(admission.in_flight(), PAGE);
        assert!(!admission.try_admit(PAGE + 1));
        assert!(admission.try_admit(PAGE));
        admission.release(1);
        assert_eq!(admission.in_flight(), PAGE);
        admission.release(PAGE);
        assert_eq!((admission.in_flight(), admission.peak()), (0, 2 * PAGE));
    }

    #[test]
    fn a_request_larger_than_the_window_goes_alone() {
        let admission = window(4 * PAGE);
        assert!(admission.try_admit(100 * PAGE));
        assert!(!admission.try_admit(1));
        admission.release(100 * PAGE);
        assert!(admission.try_admit(1));
        assert!(!admission.try_admit(100 * PAGE));
        assert_eq!(admission.peak(), 100 * PAGE);
    }

    #[test]
    fn empty_requests_are_charged_nothing() {
        let admission = window(PAGE);
        assert!(admission.try_admit(PAGE));
        assert!(admission.try_admit(0));
        admission.release(0);
        assert_eq!(admission.in_flight(), PAGE);
    }

    #[test]
    fn huge_lengths_do_not_overflow() {
        let admission = window(u64::MAX);
        assert!(admission.try_admit(u64::MAX - PAGE));
        assert!(!admission.try_admit(u64::MAX));
        assert!(!admission.try_admit(2 * PAGE));
    }

    #[derive(Debug, Default)]
    struct Never(Mutex<Vec<(u64, Duration)>>);

    impl AdmissionPolicy for Never {
        fn admit(&self, _: u64, _: u64) -> bool {
            false
        }

        fn on_complete(&self, bytes: u64, latency: Duration) {
            self.0.lock().push((bytes, latency));
        }
    }

    #[test]
    fn a_custom_policy_decides_and_receives_completions() {
        let policy = Arc::new(Never::default());
        let admission = Admission::new(policy.clone());
        assert!(admission.try_admit(1), "any request is admitted when nothing is in flight");
        assert!(!admission.try_admit(1));
        admission.complete(1, Duration::from_micros(3));
        assert_eq!(*policy.0.lock(), [(1, Duration::from_micros(3))]);
        assert_eq!(admission.in_flight(), 0);
        assert_eq!(admission.max_merge(), u64::MAX - (PAGE - 1), "a policy without a size");
    }

    #[test]
    fn requests_merge_up_to_the_window() {
        for (bytes, merged) in [(1, PAGE), (PAGE, PAGE), (3 * PAGE + 9, 3 * PAGE), (7 << 20, 7 << 20)] {
            assert_eq!(window(bytes).max_merge(), merged);
        }
        let options = LatencyWindowOptions { start: 5 * PAGE + 9, min: 1, ..LatencyWindowOptions::default() };
        assert_eq!(Admission::new(Arc::new(LatencyWindow::new(options))).max_merge(), 5 * PAGE);
    }

    #[test]
    fn competing_threads_never_exceed_the_window() {
        const THREADS: u64 = 8;
        let admission = window(16 * PAGE);
        let start = Barrier::new(THREADS as usize);
        let admitted: u64 = thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|seed| {
                    let (admission, start) = (&admission, &start);
                    scope.spawn(move || {
                        start.wait();
                        let mut held = Vec::new();
                        let mut admitted = 0;
                        for step in 0..20_000u64 {
                            let bytes = (step * 7919 + seed * 104_729) % (5 * PAGE) + 1;
                            if admission.try_admit(bytes) {
                                admitted += 1;
                                held.push(bytes);
                            } else if let Some(bytes) = held.pop() {
                                admission.release(bytes);
                            }
                            assert!(admission.in_flight() <= 16 * PAGE);
                        }
                        held.into_iter().for_each(|bytes| admission.release(bytes));
                        admitted
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no worker panics")).sum()
        });
        assert!(admitted > THREADS);
        assert_eq!(admission.in_flight(), 0);
        assert!(admission.peak() <= 16 * PAGE);
        assert!(admission.peak() > 11 * PAGE, "a refusal means that 5 pages did not fit");
    }

    proptest! {
        #[test]
        fn the_counter_behaves_like_a_sum(
            pages in 1..20u64,
            requests in prop::collection::vec((0..100_000u64, any::<bool>()), 0..200),
        ) {
            let admission = window(pages * PAGE);
            let mut held: Vec<u64> = Vec::new();
            let mut peak = 0;
            for (bytes, finish) in requests {
                if finish && !held.is_empty() {
                    admission.release(held.remove(0));
                } else {
                    let in_flight: u64 = held.iter().map(|&bytes| charge(bytes)).sum();
                    let fits = in_flight == 0 || in_flight + charge(bytes) <= pages * PAGE;
                    prop_assert_eq!(admission.try_admit(bytes), fits);
                    if fits {
                        held.push(bytes);
                    }
                }
                let in_flight: u64 = held.iter().map(|&bytes| charge(bytes)).sum();
                prop_assert_eq!(admission.in_flight(), in_flight);
                peak = peak.max(in_flight);
                prop_assert_eq!(admission.peak(), peak);
            }
        }
    }
}
