//! Counters and latencies of a session.
//!
//! Counters only grow. Durations are measured by the code that records them; this module has no
//! clock and no output.
//!
//! # Concurrency
//! Any thread adds with relaxed atomics, which order nothing: in a snapshot during requests, one
//! counter may be ahead of another.

mod direct_counts;
mod histogram;

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use direct_counts::{DirectCounts, Direction};
pub use histogram::{Histogram, LatencyRecorder};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds `n` without an atomic read-modify-write, for counters with a single writer.
    pub(crate) fn add_alone(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds one.
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    /// Returns the value.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one data queue pair of a session, its replacements included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneStats {
    /// Work requests posted.
    pub work_requests: u64,
    /// Bytes of these work requests.
    pub bytes: u64,
}

/// Number of classes of [`StatsSnapshot::chain_lengths`].
pub const CHAIN_CLASSES: usize = 12;

/// Returns the class of a list of `work_requests` work requests: 1, 2, 3 to 4, 5 to 8, and so on.
fn chain_class(work_requests: usize) -> usize {
    let class = work_requests.max(1).next_power_of_two().trailing_zeros() as usize;
    class.min(CHAIN_CLASSES - 1)
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters and latencies of a session.
        #[derive(Debug, Default)]
        pub(crate) struct Stats {
            $($(#[doc = $doc])+ pub(crate) $name: Counter,)+
            /// Posted lists, by number of work requests.
            chain_lengths: [Counter; CHAIN_CLASSES],
            /// Requests that their caller executed.
            pub(crate) direct_counts: DirectCounts,
            /// Time from the submission of a READ to its completion.
            pub(crate) read_latency: LatencyRecorder,
            /// Time from the submission of a WRITE to its completion.
            pub(crate) write_latency: LatencyRecorder,
            /// Time from the submission of an atomic to its completion.
            pub(crate) atomic_latency: LatencyRecorder,
            /// Time from the request of a call to its reply.
            pub(crate) call_latency: LatencyRecorder,
        }

        impl Stats {
            /// Returns the current values.
            pub(crate) fn snapshot(&self) -> StatsSnapshot {
                let mut snapshot = StatsSnapshot {
                    $($name: self.$name.get(),)+
                    chain_lengths: std::array::from_fn(|class| self.chain_lengths[class].get()),
                    read_latency: self.read_latency.snapshot(),
                    write_latency: self.write_latency.snapshot(),
                    atomic_latency: self.atomic_latency.snapshot(),
                    call_latency: self.call_latency.snapshot(),
                };
                self.direct_counts.add_to(&mut snapshot);
                snapshot
            }
        }

        /// Values of a session's counters and latencies at one time
        /// ([`Session::stats`](crate::Session::stats)).
        /// [Reading the counters](crate::guide#reading-the-counters) tells which counter answers
        /// which question.
        ///
        /// ```
        /// # use rdmabox::{MemoryServer, Session};
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 8192)?;
        /// let session = Session::builder().direct(false).connect(&host.addresses()[0])?;
        /// let memory = MemoryServer::locate(&session)?;
        /// let before = session.stats();
        /// let (first, second) = (memory.for_write(0, 512)?, memory.for_write(512, 512)?);
        /// session.write_vectored(&[(first, &[1; 512]), (second, &[2; 512])])?;
        /// let took = session.stats().since(&before);
        /// // Two adjacent requests, one work request.
        /// assert_eq!((took.write_requests, took.merged, took.work_requests), (2, 1, 1));
        /// println!("median: {:?}", took.write_latency.percentile(50.0));
        /// # Ok(())
        /// # }
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StatsSnapshot {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Posted lists, by number of work requests: 1, 2, 3 to 4, 5 to 8, and so on; the last
            /// class is 1025 and more. The sum equals `doorbells`.
            pub chain_lengths: [u64; CHAIN_CLASSES],
            /// Time from the submission of a READ to its completion.
            pub read_latency: Histogram,
            /// Time from the submission of a WRITE to its completion.
            pub write_latency: Histogram,
            /// Time from the submission of an atomic to its completion.
            pub atomic_latency: Histogram,
            /// Time from the request of a call to its reply.
            pub call_latency: Histogram,
        }

        impl StatsSnapshot {
            /// Returns name and value of each counter, in the order of definition.
            pub fn counters(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            /// Returns the sum of two sessions.
            #[must_use]
            pub fn plus(&self, other: &StatsSnapshot) -> StatsSnapshot {
                StatsSnapshot {
                    $($name: self.$name + other.$name,)+
                    chain_lengths: std::array::from_fn(|class| {
                        self.chain_lengths[class] + other.chain_lengths[class]
                    }),
                    read_latency: self.read_latency.plus(&other.read_latency),
                    write_latency: self.write_latency.plus(&other.write_latency),
                    atomic_latency: self.atomic_latency.plus(&other.atomic_latency),
                    call_latency: self.call_latency.plus(&other.call_latency),
                }
            }

            /// Returns the difference to `earlier`, a snapshot of the same session.
            pub fn since(&self, earlier: &StatsSnapshot) -> StatsSnapshot {
                StatsSnapshot {
                    $($name: self.$name.saturating_sub(earlier.$name),)+
                    chain_lengths: std::array::from_fn(|class| {
                        self.chain_lengths[class].saturating_sub(earlier.chain_lengths[class])
                    }),
                    read_latency: self.read_latency.since(&earlier.read_latency),
                    write_latency: self.write_latency.since(&earlier.write_latency),
                    atomic_latency: self.atomic_latency.since(&earlier.atomic_latency),
                    call_latency: self.call_latency.since(&earlier.call_latency),
                }
            }
        }
    };
}

counters! {
    /// READ requests submitted.
    read_requests,
    /// WRITE requests submitted.
    write_requests,
    /// Atomics submitted.
    atomic_requests,
    /// Bytes of READs that completed.
    bytes_read,
    /// Bytes of WRITEs that completed.
    bytes_written,
    /// Requests that were merged into another request's work request.
    merged,
    /// Requests that were posted again alone, because the work request that they were merged into
    /// was refused.
    repeated,
    /// Started requests that waited in the merge queue, to leave together with others.
    gathered,
    /// Work requests posted.
    work_requests,
    /// Posts of a list of work requests.
    doorbells,
    /// Doorbells for more than one work request.
    chains,
    /// Work requests in those chains.
    chain_length_sum,
    /// Work requests posted without a completion on success.
    unsignaled,
    /// Requests executed by their caller without a work request; the latency of every 64th is
    /// recorded.
    direct,
    /// Bytes sent inline in their work request.
    inline_bytes,
    /// Bytes copied through a preMR.
    pre_mr_bytes,
    /// Work requests that were to be copied, but found no free block in the pool: their memory was
    /// registered instead. Buffers of [`Session::buffer`](crate::Session::buffer) occupy the pool,
    /// too.
    pool_misses,
    /// Bytes transferred from or to memory that was registered for the request.
    dyn_mr_bytes,
    /// Bytes transferred from or to memory that its owner had registered.
    registered_bytes,
    /// Memory registrations, for requests and by [`Session::allocate`](crate::Session::allocate).
    registrations,
    /// Registrations that the cache saved.
    cache_hits,
    /// Number of times that a request waited for the admission window, or for its turn.
    window_waits,
    /// Number of times that a request waited for an outstanding request that it overlaps.
    overlap_waits,
    /// Polls of a completion queue.
    polls,
    /// Polls that found nothing.
    empty_polls,
    /// Completions polled.
    completions,
    /// Sleeps on a completion queue.
    sleeps,
    /// Sleeps that an event ended.
    events,
    /// Wakeups of threads whose completion another thread polled.
    wakeups,
    /// Completions that ran a caller's callback.
    callbacks,
    /// Lanes that moved to Err, also for a refused request that its caller executed (`direct`).
    lane_failures,
    /// Lanes that were reconnected after a failure.
    lane_rebuilds,
    /// Remote procedure calls.
    calls,
    /// Calls that were started without waiting for the reply.
    calls_started,
    /// Messages sent for calls: requests, and notifications of calls by fetching.
    call_messages,
    /// Posts of such messages. Messages of several threads may share a post.
    call_doorbells,
    /// Calls whose reply the client fetched from the host's memory.
    calls_fetched,
    /// Calls by fetching of which the client notified the host, because the host slept or was slow.
    calls_rung,
    /// Fetches of replies: READs including those that came too early, or replies taken from mapped
    /// memory.
    fetches,
    /// READs among `fetches` that came before the reply, and found none.
    fetches_early,
    /// Requests of calls by fetching: WRITEs, or copies to mapped memory.
    call_writes,
    /// Requests and calls that failed.
    errors,
}

impl Stats {
    /// Counts one post of a list of `work_requests` work requests.
    pub(crate) fn count_post(&self, work_requests: usize) {
        self.work_requests.add(work_requests as u64);
        self.doorbells.inc();
        self.chain_lengths[chain_class(work_requests)].inc();
        if work_requests > 1 {
            self.chains.inc();
            self.chain_length_sum.add(work_requests as u64);
        }
    }

    /// Counts one poll of a completion queue that found `found` completions.
    pub(crate) fn count_poll(&self, found: usize) {
        self.polls.inc();
        if found == 0 {
            self.empty_polls.inc();
        } else {
            self.completions.add(found as u64);
        }
    }
}

impl StatsSnapshot {
    /// Returns the value of a counter, or zero if no counter has this name.
    pub fn get(&self, name: &str) -> u64 {
        self.counters().find(|(counter, _)| *counter == name).map_or(0, |(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counter_names_are_the_field_names() {
        let stats = Stats::default();
        stats.work_requests.add(3);
        stats.errors.inc();
        let snapshot = stats.snapshot();
        assert_eq!((snapshot.work_requests, snapshot.errors, snapshot.calls), (3, 1, 0));
        assert_eq!((snapshot.get("work_requests"), snapshot.get("errors"), snapshot.get("calls")), (3, 1, 0));
        assert_eq!(snapshot.get("no such counter"), 0);
        assert_eq!(snapshot.counters().next(), Some(("read_requests", 0)));
        assert_eq!(snapshot.counters().last(), Some(("errors", 1)));
        assert_eq!(snapshot.counters().map(|(_, value)| value).sum::<u64>(), 4);
    }

    #[test]
    fn a_difference_has_the_changes_in_between() {
        let stats = Stats::default();
        stats.calls.add(2);
        stats.count_post(2);
        stats.call_latency.record(Duration::from_secs(1));
        let before = stats.snapshot();
        stats.calls.add(5);
        stats.polls.inc();
        stats.count_post(2);
        stats.call_latency.record(Duration::from_nanos(7));
        let since = stats.snapshot().since(&before);
        assert_eq!((since.calls, since.polls, since.work_requests, since.chain_lengths[1]), (5, 1, 2, 1));
        assert_eq!((since.call_latency.count(), since.call_latency.max().as_nanos()), (1, 7));
        assert_eq!(before.since(&before), StatsSnapshot::default());
    }

    #[test]
    fn a_sum_adds_all_counters() {
        let (one, two) = (Stats::default(), Stats::default());
        for stats in [&one, &two, &two] {
            stats.calls.add(2);
            stats.count_post(2);
            stats.atomic_latency.record(Duration::from_nanos(7));
        }
        let both = one.snapshot().plus(&two.snapshot());
        assert_eq!(
            (both.calls, both.work_requests, both.chain_lengths[1], both.atomic_latency.count()),
            (6, 6, 3, 3)
        );
        assert_eq!(both.since(&one.snapshot()), two.snapshot());
    }

    #[test]
    fn each_latency_has_its_own_histogram() {
        let stats = Stats::default();
        let recorders =
            [&stats.read_latency, &stats.write_latency, &stats.atomic_latency, &stats.call_latency];
        for (recorder, nanos) in recorders.into_iter().zip(1..) {
            recorder.record(Duration::from_nanos(nanos));
        }
        let s = stats.snapshot();
        let maxima = [s.read_latency, s.write_latency, s.atomic_latency, s.call_latency]
            .map(|histogram| histogram.max().as_nanos());
        assert_eq!(maxima, [1, 2, 3, 4]);
    }

    #[test]
    fn polls_are_counted_by_result() {
        let stats = Stats::default();
        for found in [0, 3, 0, 1] {
            stats.count_poll(found);
        }
        assert_eq!((stats.polls.get(), stats.empty_polls.get(), stats.completions.get()), (4, 2, 4));
    }

    #[test]
    fn posts_are_counted_by_chain_length() {
        let stats = Stats::default();
        for work_requests in [1, 1, 2, 3, 4, 5, 8, 9, 1024, 1025, 100_000] {
            stats.count_post(work_requests);
        }
        let s = stats.snapshot();
        assert_eq!(s.chain_lengths, [2, 1, 2, 2, 1, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((s.doorbells, s.chains, s.work_requests, s.chain_length_sum), (11, 9, 102_082, 102_080));
    }
}
