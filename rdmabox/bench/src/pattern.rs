//! Which places of the remote memory the requests of a thread go to. Pure.
//!
//! The memory of a peer is a row of blocks, one request each. `seq` takes the next block from a cursor: with one cursor
//! for all threads, the requests that are outstanding at a time are neighbours whichever thread makes them, so that
//! merging across threads can happen; with a cursor for each thread, a thread's requests are neighbours of its own
//! ones only. `rand` draws blocks, `mixed` tosses a coin between the two for every request. `bursts` takes blocks
//! as `seq` does; what makes it one is the gap that the worker leaves between bursts.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use clap::ValueEnum;
use serde::Serialize;

/// The order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// The next block after the one before.
    Seq,
    /// Any block.
    Rand,
    /// For every request a coin decides between the two.
    Mixed,
    /// As seq, in bursts with idle gaps between them.
    Bursts,
}

/// Who shares a place in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cursor {
    /// All threads: neighbouring blocks are taken by whoever comes first.
    Shared,
    /// Nobody: each thread walks through its own part of the memory.
    Own,
}

/// The blocks of one peer as one thread uses them.
#[derive(Debug)]
pub struct Places {
    pattern: Pattern,
    /// First block and number of blocks that the sequence walks through.
    first: u64,
    walk: u64,
    /// Blocks that random requests may use.
    all: u64,
    cursor: Position,
    random: fastrand::Rng,
}

/// How far a sequence has come.
#[derive(Debug)]
enum Position {
    /// Of a thread's own: the place in its part.
    Own(u64),
    /// Of all: requests so far.
    Shared(Arc<AtomicU64>),
}

impl Places {
    /// For thread `thread` of `threads`; `shared` is the cursor of this peer.
    ///
    /// # Panics
    /// If there are no blocks, or fewer blocks than threads for a cursor of their own: options have been checked.
    pub fn new(
        pattern: Pattern,
        cursor: Cursor,
        blocks: u64,
        (thread, threads): (u64, u64),
        shared: &Arc<AtomicU64>,
    ) -> Places {
        assert!(blocks > 0 && threads > 0 && thread < threads, "options are checked before");
        let (first, walk, cursor) = match cursor {
            Cursor::Shared if threads > 1 => (0, blocks, Position::Shared(Arc::clone(shared))),
            Cursor::Shared | Cursor::Own => {
                let first = share(blocks, thread, threads);
                (first, share(blocks, thread + 1, threads) - first, Position::Own(0))
            }
        };
        assert!(walk > 0, "options are checked before");
        // A seed of the thread's own that is the same in every run: what is compared sees the same addresses.
        let random = fastrand::Rng::with_seed(0x5eed ^ (thread << 32));
        Places { pattern, first, walk, all: blocks, cursor, random }
    }

    /// The block of the next request.
    pub fn next_block(&mut self) -> u64 {
        let sequential = match self.pattern {
            Pattern::Seq | Pattern::Bursts => true,
            Pattern::Rand => false,
            Pattern::Mixed => self.random.bool(),
        };
        if sequential { self.first + self.next_in_sequence() } else { self.random.u64(..self.all) }
    }
}

impl Places {
    fn next_in_sequence(&mut self) -> u64 {
        match &mut self.cursor {
            // No division: it would take longer than the shortest requests.
            Position::Own(next) => {
                let this = *next;
                *next = if this + 1 == self.walk { 0 } else { this + 1 };
                this
            }
            Position::Shared(taken) => taken.fetch_add(1, Ordering::Relaxed) % self.walk,
        }
    }
}

/// Where the part of `thread` begins when `total` is divided among `threads`.
pub fn share(total: u64, thread: u64, threads: u64) -> u64 {
    // Both are far below 2^64: blocks of a memory, threads of a process.
    (u128::from(total) * u128::from(thread) / u128::from(threads)) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(pattern: Pattern, cursor: Cursor, blocks: u64, threads: u64) -> Vec<Places> {
        let shared = Arc::default();
        (0..threads).map(|t| Places::new(pattern, cursor, blocks, (t, threads), &shared)).collect()
    }

    proptest! {
        /// However the threads take turns, a shared cursor gives every block in order, without gap or repetition.
        #[test]
        fn a_shared_cursor_covers_everything_in_order(
            blocks in 1u64..500,
            turns in prop::collection::vec(0usize..4, 1..1000),
        ) {
            let mut threads = places(Pattern::Seq, Cursor::Shared, blocks, 4);
            for (n, turn) in turns.into_iter().enumerate() {
                prop_assert_eq!(threads[turn].next_block(), n as u64 % blocks);
            }
        }

        /// Cursors of their own: once around, all threads together have used every block once, each in order.
        #[test]
        fn own_cursors_share_out_the_blocks(threads in 1u64..20, more in 0u64..500) {
            let blocks = threads + more;
            let mut used = Vec::new();
            for (n, mut places) in places(Pattern::Seq, Cursor::Own, blocks, threads).into_iter().enumerate() {
                let n = n as u64;
                let len = share(blocks, n + 1, threads) - share(blocks, n, threads);
                let around: Vec<u64> = (0..len).map(|_| places.next_block()).collect();
                prop_assert_eq!(places.next_block(), around[0]);
                used.extend(around);
            }
            prop_assert_eq!(used, (0..blocks).collect::<Vec<_>>());
        }

        /// Whatever the pattern, no request leaves the memory.
        #[test]
        fn every_block_is_in_range(
            pattern in prop::sample::select(vec![Pattern::Seq, Pattern::Rand, Pattern::Mixed, Pattern::Bursts]),
            cursor in prop::sample::select(vec![Cursor::Shared, Cursor::Own]),
            threads in 1u64..8,
            more in 0u64..100,
        ) {
            let blocks = threads + more;
            for mut places in places(pattern, cursor, blocks, threads) {
                prop_assert!((0..200).all(|_| places.next_block() < blocks));
            }
        }
    }

    #[test]
    fn random_blocks_differ_between_threads_but_not_between_runs() {
        let draw = || {
            let mut threads = places(Pattern::Rand, Cursor::Shared, 1 << 40, 2);
            [0, 1].map(|t: usize| (0..8).map(|_| threads[t].next_block()).collect::<Vec<_>>())
        };
        let [first, second] = draw();
        assert_ne!(first, second);
        assert_eq!(draw(), [first, second]);
    }

    #[test]
    fn mixed_is_a_mixture() {
        let mut places = places(Pattern::Mixed, Cursor::Shared, 1 << 40, 1).remove(0);
        let drawn: Vec<u64> = (0..1000).map(|_| places.next_block()).collect();
        // Random blocks of so many are large; sequential ones are small and complete.
        let sequential: Vec<u64> = drawn.iter().copied().filter(|block| *block < 1000).collect();
        assert_eq!(sequential, (0..sequential.len() as u64).collect::<Vec<_>>());
        assert!((300..700).contains(&sequential.len()), "{}", sequential.len());
    }
}
