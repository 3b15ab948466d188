//! Admission control: how many bytes may be under way at once.
//!
//! [`Admission`] does the accounting with atomics, from any number of threads; an [`AdmissionPolicy`] decides. It
//! neither queues nor waits: a request that is not admitted stays in the merge queue, where it can still merge,
//! and its owner tries again after a completion.
//!
//! Two policies are here: [`StaticWindow`], which the paper measures, and [`LatencyWindow`], which finds the window by
//! itself. The paper leaves the latter to a hook (RDMAbox, section IV-A): [`AdmissionPolicy`] is that hook.

mod latency_window;
mod static_window;

use std::{fmt, sync::Arc, time::Duration};

use crate::sync::atomic::{AtomicU64, Ordering};

pub use latency_window::{LatencyTarget, LatencyWindow, LatencyWindowOptions};
pub use static_window::{DEFAULT_WINDOW, StaticWindow};

/// Unit of the accounting: every request counts as a whole number of these.
pub const ADMISSION_PAGE: u64 = 4096;

/// Decides which requests may be posted. Called from many threads at once, and more than once for a request where
/// threads compete: it must be quick and must not block.
pub trait AdmissionPolicy: Send + Sync + fmt::Debug {
    /// True if a request of `request_bytes` may join `in_flight_bytes` that are under way. Both are whole pages.
    ///
    /// With nothing in flight it has to admit anything, or nothing would ever move again; [`Admission`] does not
    /// even ask then.
    fn admit(&self, in_flight_bytes: u64, request_bytes: u64) -> bool;

    /// Told of every completion: its size in bytes and the time since its post.
    fn on_complete(&self, bytes: u64, latency: Duration) {
        let _ = (bytes, latency);
    }
}

/// What a request of `bytes` counts as: whole pages. A request of no bytes counts as nothing.
pub fn charge(bytes: u64) -> u64 {
    bytes.div_ceil(ADMISSION_PAGE).saturating_mul(ADMISSION_PAGE)
}

/// The bytes in flight. Every successful [`try_admit`](Self::try_admit) is answered by exactly one
/// [`release`](Self::release) or [`complete`](Self::complete) with the same number of bytes.
#[derive(Debug)]
pub struct Admission {
    policy: Arc<dyn AdmissionPolicy>,
    in_flight: AtomicU64,
    peak: AtomicU64,
}

impl Admission {
    /// Nothing in flight, decisions by `policy`.
    pub fn new(policy: Arc<dyn AdmissionPolicy>) -> Admission {
        Admission { policy, in_flight: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    /// Counts a request in, if the policy lets it. What the policy allowed is what is counted: threads that
    /// compete cannot exceed it together.
    pub fn try_admit(&self, bytes: u64) -> bool {
        let charge = charge(bytes);
        let mut current = self.in_flight.load(Ordering::Relaxed);
        loop {
            if current != 0 && !self.policy.admit(current, charge) {
                return false;
            }
            let Some(total) = current.checked_add(charge) else { return false };
            match self.in_flight.compare_exchange_weak(current, total, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.peak.fetch_max(total, Ordering::Relaxed);
                    return true;
                }
                Err(now) => current = now,
            }
        }
    }

    /// Counts a request out that was not carried out, or whose duration means nothing.
    pub fn release(&self, bytes: u64) {
        let charge = charge(bytes);
        let before = self.in_flight.fetch_sub(charge, Ordering::AcqRel);
        debug_assert!(before >= charge, "released {charge} bytes of {before} in flight");
    }

    /// Counts a completed request out and tells the policy.
    pub fn complete(&self, bytes: u64, latency: Duration) {
        self.release(bytes);
        self.policy.on_complete(bytes, latency);
    }

    /// Bytes in flight now, in whole pages.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Most bytes that were ever in flight at once, in whole pages.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Who decides.
    pub fn policy(&self) -> &Arc<dyn AdmissionPolicy> {
        &self.policy
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
    fn the_default_is_seven_mebibytes() {
        let admission = Admission::default();
        assert!(admission.try_admit(6 << 20));
        assert!(!admission.try_admit((1 << 20) + 1));
        assert!(admission.try_admit(1 << 20));
        assert!(!admission.try_admit(1));
        assert_eq!(admission.in_flight(), 7 << 20);
    }

    #[test]
    fn counts_in_pages() {
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
    fn requests_of_no_bytes_count_as_nothing() {
        let admission = window(PAGE);
        assert!(admission.try_admit(PAGE));
        assert!(admission.try_admit(0));
        admission.release(0);
        assert_eq!(admission.in_flight(), PAGE);
    }

    #[test]
    fn absurd_lengths_do_not_overflow() {
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
    fn a_policy_of_ones_own_decides_and_learns() {
        let policy = Arc::new(Never::default());
        let admission = Admission::new(policy.clone());
        assert!(admission.try_admit(1), "with nothing in flight anything goes");
        assert!(!admission.try_admit(1));
        admission.complete(1, Duration::from_micros(3));
        assert_eq!(*policy.0.lock(), [(1, Duration::from_micros(3))]);
        assert_eq!(admission.in_flight(), 0);
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
        assert!(
            admission.peak() > 11 * PAGE,
            "the window was used: a refusal means that 5 pages did not fit"
        );
    }

    proptest! {
        #[test]
        fn behaves_as_a_sum(
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
