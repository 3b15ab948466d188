//! Counters of requests, by kind.
//!
//! Only requests count; one-sided operations do not.
//!
//! # Concurrency
//! Any thread; relaxed atomics. A snapshot of the counters need not be consistent.

mod activity;
mod latencies;
mod scrubs;

use std::sync::atomic::{AtomicU64, Ordering};

use rfs_proto::{Request, ServerStats};

pub use activity::{Activity, HeldBack, LockWait, SessionActivity};
pub use latencies::{CallLatencies, Departure};
pub use scrubs::{Scrub, Scrubs};

use super::request_table::{NAMES, carries_data, index};

/// Number of copies of the counters. Threads that serve different sessions then do not write to the
/// same cache line.
const STRIPES: usize = 8;

#[derive(Debug)]
#[repr(align(128))]
struct Stripe([AtomicU64; NAMES.len()]);

impl Default for Stripe {
    fn default() -> Stripe {
        Stripe(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Requests by kind, in stripes by session.
#[derive(Debug, Default)]
pub struct Counters([Stripe; STRIPES]);

impl Counters {
    /// Counts a request of a session.
    pub fn count(&self, session: u64, request: &Request<'_>) {
        let Stripe(calls) = &self.0[(session % STRIPES as u64) as usize];
        calls[index(request)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests that are not for data.
    pub fn about_names(&self) -> u64 {
        let calls = self.0.iter().flat_map(|Stripe(calls)| calls.iter().enumerate());
        calls.filter(|(index, _)| !carries_data(*index)).map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of requests by name.
    pub fn calls(&self) -> Vec<(String, u64)> {
        let count = |at: usize| self.0.iter().map(|Stripe(calls)| calls[at].load(Ordering::Relaxed)).sum();
        NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), count(at))).collect()
    }
}

/// Returns the sums of the counters of several exports.
pub fn sum(exports: impl IntoIterator<Item = ServerStats>) -> ServerStats {
    let together = |mut sum: ServerStats, next: ServerStats| {
        // All have the same names in the same order.
        sum.calls.iter_mut().zip(next.calls).for_each(|((_, calls), (_, more))| *calls += more);
        sum.sessions += next.sessions;
        sum
    };
    exports.into_iter().reduce(together).unwrap_or_default()
}

/// Returns the name under which a request is counted.
pub fn request_name(request: &Request<'_>) -> &'static str {
    NAMES[index(request)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        let stats = |calls: &[u64], sessions| {
            let calls = NAMES.iter().zip(calls).map(|(name, count)| ((*name).to_owned(), *count)).collect();
            ServerStats { calls, sessions, uptime_secs: 9 }
        };
        assert_eq!(sum([stats(&[1, 2], 3), stats(&[10, 20], 30)]), stats(&[11, 22], 33));
    }

    #[test]
    fn counts_by_name() {
        let counters = Counters::default();
        counters.count(7, &Request::Stats);
        counters.count(7, &Request::Open { ino: 1, write: true });
        counters.count(8, &Request::Open { ino: 2, write: true });
        let calls = counters.calls();
        let get = |name: &str| calls.iter().find(|(n, _)| n == name).map(|(_, count)| *count);
        assert_eq!((get("stats"), get("open"), get("close")), (Some(1), Some(2), Some(0)));
        assert_eq!(calls.len(), NAMES.len());
        assert_eq!(counters.about_names(), 3);
        counters.count(9, &Request::Verify { ino: 1, offset: 0 });
        assert_eq!(counters.about_names(), 3);
        assert_eq!(request_name(&Request::Close { ino: 1 }), "close");
        assert_eq!(request_name(&Request::Stats), "stats");
        assert_eq!(request_name(&Request::RemoveXattr { ino: 1, name: b"", only_if: None }), "removexattr");
    }
}
