//! Counts of requests that their caller carries out.
//!
//! Such a request takes less time than a counter that is on its way from another processor, and not much more than one
//! atomic addition: threads count apart, each with plain additions in a shard that it alone writes to, and a snapshot
//! adds it up.

use super::{Counter, StatsSnapshot};

/// Threads with a slot below this have a shard for themselves; the others share one more.
const OWN_SHARDS: usize = 16;
/// Every so many-th request of a shard and kind is timed: two looks at the clock cost more than a short request.
const TIMED: u64 = 64;

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
pub(crate) struct OnTheSpot {
    own: [Shard; OWN_SHARDS],
    shared: Shard,
}

/// Where the calling thread counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts<'a> {
    shard: &'a Shard,
    /// Nobody else counts there.
    own: bool,
}

impl OnTheSpot {
    /// For the thread that has a slot, and for any that has none.
    pub(crate) fn of(&self, slot: Option<usize>) -> Counts<'_> {
        match slot.and_then(|slot| self.own.get(slot)) {
            Some(shard) => Counts { shard, own: true },
            None => Counts { shard: &self.shared, own: false },
        }
    }

    /// Adds what was counted.
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
    /// True if the next request is to be timed.
    pub(crate) fn is_timed(self, direction: Direction) -> bool {
        self.shard.requests[direction as usize].get().is_multiple_of(TIMED)
    }

    /// Counts a request that moved `bytes`.
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
    fn threads_add_up() {
        let counts = OnTheSpot::default();
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
    fn the_first_is_timed_and_then_every_sixty_fourth() {
        let counts = OnTheSpot::default();
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
