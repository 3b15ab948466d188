//! Counts of requests that their caller carries out.
//!
//! Such a request takes less time than a counter that is on its way from another processor: threads count apart, and a
//! snapshot adds it up.

use super::{Counter, StatsSnapshot};

/// Threads count apart as far as there are so many.
const SHARDS: usize = 16;
/// Every so many-th request of a shard and kind is timed: two looks at the clock cost more than a short request.
const TIMED: u64 = 16;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    Atomic,
}

/// Alone in its cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    requests: [Counter; 3],
    bytes: [Counter; 3],
}

/// The counts of all threads.
#[derive(Debug, Default)]
pub(crate) struct OnTheSpot([Shard; SHARDS]);

impl OnTheSpot {
    fn shard(&self, thread: u64) -> &Shard {
        &self.0[thread as usize % SHARDS]
    }

    /// True if the next request of the thread is to be timed.
    pub(crate) fn is_timed(&self, thread: u64, direction: Direction) -> bool {
        self.shard(thread).requests[direction as usize].get().is_multiple_of(TIMED)
    }

    /// Counts a request that moved `bytes`.
    pub(crate) fn count(&self, thread: u64, direction: Direction, bytes: u64) {
        let shard = self.shard(thread);
        shard.requests[direction as usize].inc();
        shard.bytes[direction as usize].add(bytes);
    }

    /// Adds what was counted.
    pub(super) fn add_to(&self, snapshot: &mut StatsSnapshot) {
        for shard in &self.0 {
            let [reads, writes, atomics] = &shard.requests;
            snapshot.read_requests += reads.get();
            snapshot.write_requests += writes.get();
            snapshot.atomic_requests += atomics.get();
            snapshot.direct += reads.get() + writes.get() + atomics.get();
            let [read, written, _] = &shard.bytes;
            snapshot.bytes_read += read.get();
            snapshot.bytes_written += written.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let counts = OnTheSpot::default();
        for thread in 0..40 {
            counts.count(thread, Direction::Read, 10);
            counts.count(thread, Direction::Write, thread);
        }
        counts.count(3, Direction::Atomic, 8);
        let mut snapshot = StatsSnapshot { read_requests: 5, ..StatsSnapshot::default() };
        counts.add_to(&mut snapshot);
        assert_eq!((snapshot.read_requests, snapshot.write_requests, snapshot.atomic_requests), (45, 40, 1));
        assert_eq!((snapshot.bytes_read, snapshot.bytes_written), (400, 40 * 39 / 2));
        assert_eq!(snapshot.direct, 81);
    }

    #[test]
    fn the_first_is_timed_and_then_every_sixteenth() {
        let counts = OnTheSpot::default();
        let timed: Vec<usize> = (0..40)
            .filter(|_| {
                let timed = counts.is_timed(1, Direction::Read);
                counts.count(1, Direction::Read, 8);
                timed
            })
            .collect();
        assert_eq!(timed, [0, 16, 32]);
        assert!(counts.is_timed(1, Direction::Write));
    }
}
