//! The remote addresses of a thread's requests. No I/O, no locks, no clock.
//!
//! The memory of a peer is a sequence of blocks, one per request. `seq` takes the next block from a
//! cursor. With a shared cursor, outstanding requests of all threads are adjacent, so they can be
//! merged across threads. With own cursors, only a thread's own requests are adjacent. `rand` draws
//! random blocks. `mixed` draws `seq` or `rand` for every request. `bursts` takes blocks like
//! `seq`; the worker adds the gaps.

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
    /// Consecutive blocks.
    Seq,
    /// Random blocks.
    Rand,
    /// Either of the two, at random for every request.
    Mixed,
    /// Consecutive blocks, in bursts with idle gaps.
    Bursts,
}

/// Sharing of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cursor {
    /// All threads take blocks from one cursor.
    Shared,
    /// Each thread walks through its own part of the memory.
    Own,
}

/// The blocks of one peer, as one thread uses them.
#[derive(Debug)]
pub struct Places {
    pattern: Pattern,
    /// First block and number of blocks of the sequence.
    first: u64,
    walk: u64,
    /// Number of blocks for random requests.
    all: u64,
    cursor: Position,
    random: fastrand::Rng,
}

/// The position in a sequence.
#[derive(Debug)]
enum Position {
    /// The position in the thread's own part.
    Own(u64),
    /// The number of blocks that all threads have taken.
    Shared(Arc<AtomicU64>),
}

impl Places {
    /// Returns the blocks for thread `thread` of `threads`; `shared` is the cursor of this peer.
    ///
    /// # Panics
    /// If there are no blocks, or fewer blocks than threads with own cursors. The options have been
    /// checked for both.
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
        // A fixed seed per thread: compared runs use the same addresses.
        let random = fastrand::Rng::with_seed(0x5eed ^ (thread << 32));
        Places { pattern, first, walk, all: blocks, cursor, random }
    }

    /// Returns the block of the next request.
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
            // A division would take longer than the shortest requests.
            Position::Own(next) => {
                let this = *next;
                *next = if this + 1 == self.walk { 0 } else { this + 1 };
                this
            }
            Position::Shared(taken) => taken.fetch_add(1, Ordering::Relaxed) % self.walk,
        }
    }
}

/// Returns the start of the part of `thread` when `total` is divided among `threads`.
pub fn share(total: u64, thread: u64, threads: u64) -> u64 {
    // Both are far below 2^64, so the product fits.
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
        /// In any interleaving of the threads, a shared cursor gives every block in order, without
        /// gap or repetition.
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

        /// After one pass, all threads together have used every block once, each thread in order.
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

        /// With every pattern, no request leaves the memory.
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
        // Large numbers are random blocks; small numbers are the complete sequence.
        let sequential: Vec<u64> = drawn.iter().copied().filter(|block| *block < 1000).collect();
        assert_eq!(sequential, (0..sequential.len() as u64).collect::<Vec<_>>());
        assert!((300..700).contains(&sequential.len()), "{}", sequential.len());
    }
}
