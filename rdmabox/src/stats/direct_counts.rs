//! Sharded counters of requests that their caller executes.
//!
//! Such a request takes less time than the transfer of a contended cache line, and little more
//! than one atomic addition. So each thread counts with plain additions in its own shard, and a
//! snapshot adds the shards up.
//!
//! # Concurrency
//! Each of the first shards has a single writer, the thread with its slot. All other threads
//! share the last shard and use atomic additions.

use super::{Counter, StatsSnapshot};

/// Number of shards with a single writer. Threads with a higher slot share one more shard.
const OWN_SHARDS: usize = 16;
/// Interval of timed requests per shard and kind, because reading the clock twice costs more than
/// a short request.
const TIMING_INTERVAL: u64 = 64;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
    Atomic,
}

/// Counters of one thread. Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    requests: [Counter; 3],
    bytes: [Counter; 3],
}

/// Counts of all threads.
#[derive(Debug, Default)]
pub(crate) struct DirectCounts {
    own: [Shard; OWN_SHARDS],
    shared: Shard,
}

/// Shard in which the calling thread counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts<'a> {
    shard: &'a Shard,
    /// True if no other thread counts in the shard.
    own: bool,
}

impl DirectCounts {
    /// Returns the shard of the thread with this slot, or the common shard for `None`.
    pub(crate) fn of(&self, slot: Option<usize>) -> Counts<'_> {
        match slot.and_then(|slot| self.own.get(slot)) {
            Some(shard) => Counts { shard, own: true },
            None => Counts { shard: &self.shared, own: false },
        }
    }

    /// Adds the counts to a snapshot.
    pub(super) fn add_to(&self, snapshot: &mut StatsSnapshot) {
        for shard in self.own.iter().chain([&self.shared]) {
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

impl Counts<'_> {
    /// Returns true if the next request must be timed.
    pub(crate) fn is_timed(self, direction: Direction) -> bool {
        self.shard.requests[direction as usize].get().is_multiple_of(TIMING_INTERVAL)
    }

    /// Counts a request that transferred `bytes`.
    pub(crate) fn count(self, direction: Direction, bytes: u64) {
        let (requests, moved) =
            (&self.shard.requests[direction as usize], &self.shard.bytes[direction as usize]);
        if self.own {
            requests.add_alone(1);
            moved.add_alone(bytes);
        } else {
            requests.inc();
            moved.add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_adds_the_counts_of_all_threads() {
        let counts = DirectCounts::default();
        for thread in 0..40 {
            let slot = (thread % 2 == 0).then_some(thread);
            counts.of(slot).count(Direction::Read, 10);
            counts.of(slot).count(Direction::Write, thread as u64);
        }
        counts.of(Some(3)).count(Direction::Atomic, 8);
        let mut snapshot = StatsSnapshot { read_requests: 5, ..StatsSnapshot::default() };
        counts.add_to(&mut snapshot);
        assert_eq!((snapshot.read_requests, snapshot.write_requests, snapshot.atomic_requests), (45, 40, 1));
        assert_eq!((snapshot.bytes_read, snapshot.bytes_written), (400, 40 * 39 / 2));
        assert_eq!(snapshot.direct, 81);
    }

    #[test]
    fn the_first_and_then_every_64th_request_is_timed() {
        let counts = DirectCounts::default();
        let timed: Vec<usize> = (0..150)
            .filter(|_| {
                let timed = counts.of(Some(1)).is_timed(Direction::Read);
                counts.of(Some(1)).count(Direction::Read, 8);
                timed
            })
            .collect();
        assert_eq!(timed, [0, 64, 128]);
        assert!(counts.of(Some(1)).is_timed(Direction::Write));
    }
}
