//! The remote addresses of a thread's requests. No I/O, no locks, no clock.
//!
//! The memory of a peer is a sequence of blocks, one per request. `seq` takes the next block from a
//! cursor. With a shared cursor, outstanding requests of all threads are adjacent, so they can be
//! merged across threads. With own cursors, only a thread's own requests are adjacent. `rand` draws
//! random blocks. `mixed` draws `seq` or `rand` for every request: the first half of the blocks is
//! for the sequence, the second half for random requests. `bursts` takes blocks like `seq`; the
//! worker adds the gaps.
//!
//! Invariant: requests under way have blocks of their own, as pages under writeback have. Otherwise
//! a WRITE waits for an earlier one of its block, and a load measures these waits. It holds if the
//! blocks of the sequence, and those of random requests, are as many as the requests under way.

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
    cursor: Position,
    draw: Draw,
    random: fastrand::Rng,
}

/// The blocks for random requests of one thread.
///
/// The blocks are divided into classes, one for each request that can be under way.
#[derive(Debug)]
struct Draw {
    /// First block and number of blocks.
    first: u64,
    blocks: u64,
    /// Number of classes, or 1 if there are fewer blocks than requests under way.
    classes: u64,
    /// The thread's first class.
    own: u64,
}

impl Draw {
    fn new(first: u64, blocks: u64, (thread, threads): (u64, u64), depth: u64) -> Draw {
        match threads.saturating_mul(depth) {
            classes if classes <= blocks => Draw { first, blocks, classes, own: thread * depth },
            _ => Draw { first, blocks, classes: 1, own: 0 },
        }
    }

    /// Returns a block for the request in the thread's slot `slot`.
    fn block(&self, slot: u64, random: &mut fastrand::Rng) -> u64 {
        let class = (self.own + slot) % self.classes;
        let of_class = (self.blocks - class).div_ceil(self.classes);
        self.first + class + self.classes * random.u64(..of_class)
    }
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
    /// Returns the blocks for thread `thread` of `threads`, which have at most `depth` requests
    /// under way each. `shared` is the cursor of this peer.
    ///
    /// # Panics
    /// If there are no blocks, or fewer blocks than threads with own cursors. The options have been
    /// checked for both.
    pub fn new(
        pattern: Pattern,
        cursor: Cursor,
        blocks: u64,
        (thread, threads): (u64, u64),
        depth: u64,
        shared: &Arc<AtomicU64>,
    ) -> Places {
        assert!(blocks > 0 && threads > 0 && thread < threads, "options are checked before");
        let sequence = match pattern {
            // With few blocks both kinds use all of them.
            Pattern::Mixed if blocks >= 2 * threads => blocks / 2,
            _ => blocks,
        };
        let (first, walk, cursor) = match cursor {
            Cursor::Shared if threads > 1 => (0, sequence, Position::Shared(Arc::clone(shared))),
            Cursor::Shared | Cursor::Own => {
                let first = share(sequence, thread, threads);
                (first, share(sequence, thread + 1, threads) - first, Position::Own(0))
            }
        };
        assert!(walk > 0, "options are checked before");
        let others = if sequence < blocks { sequence } else { 0 };
        let draw = Draw::new(others, blocks - others, (thread, threads), depth.max(1));
        // A fixed seed per thread: compared runs use the same addresses.
        let random = fastrand::Rng::with_seed(0x5eed ^ (thread << 32));
        Places { pattern, first, walk, cursor, draw, random }
    }

    /// Returns the block of the thread's next request, which takes slot `slot`, below the depth.
    pub fn next_block(&mut self, slot: u64) -> u64 {
        let sequential = match self.pattern {
            Pattern::Seq | Pattern::Bursts => true,
            Pattern::Rand => false,
            Pattern::Mixed => self.random.bool(),
        };
        if sequential {
            self.first + self.next_in_sequence()
        } else {
            self.draw.block(slot, &mut self.random)
        }
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

    /// Requests of a thread that can be under way.
    const DEPTH: u64 = 4;

    fn places(pattern: Pattern, cursor: Cursor, blocks: u64, threads: u64) -> Vec<Places> {
        let shared = Arc::default();
        (0..threads).map(|t| Places::new(pattern, cursor, blocks, (t, threads), DEPTH, &shared)).collect()
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
                prop_assert_eq!(threads[turn].next_block(0), n as u64 % blocks);
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
                let around: Vec<u64> = (0..len).map(|_| places.next_block(0)).collect();
                prop_assert_eq!(places.next_block(0), around[0]);
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
                prop_assert!((0..200).all(|_| places.next_block(0) < blocks));
            }
        }
    }

    proptest! {
        /// Catches two requests under way for one block, whose WRITEs would wait for each other.
        #[test]
        fn requests_under_way_have_blocks_of_their_own(
            pattern in prop::sample::select(vec![Pattern::Seq, Pattern::Rand, Pattern::Mixed, Pattern::Bursts]),
            cursor in prop::sample::select(vec![Cursor::Shared, Cursor::Own]),
            threads in 1u64..8,
            more in 0u64..100,
            starts in prop::collection::vec((0usize..8, 0..DEPTH), 1..300),
        ) {
            // A thread's part of the sequence has as many blocks as requests of the thread.
            let blocks = 2 * threads * DEPTH + more;
            let mut places = places(pattern, cursor, blocks, threads);
            // Thread, slot, block, and the numbers of the request: of the thread, and of all.
            let mut under_way: Vec<(usize, u64, u64, u64, u64)> = Vec::new();
            let mut counts = vec![0; places.len()];
            for (n, (thread, slot)) in (0..).zip(starts) {
                let thread = thread % places.len();
                // A sequence comes round. Requests of the round before are complete.
                under_way.retain(|(other, taken, _, own, all)| {
                    let is_of_this_round = counts[*other] - own < DEPTH && n - all < threads * DEPTH;
                    is_of_this_round && (*other, *taken) != (thread, slot)
                });
                let block = places[thread].next_block(slot);
                prop_assert!(under_way.iter().all(|(_, _, other, ..)| *other != block), "{}", block);
                under_way.push((thread, slot, block, counts[thread], n));
                counts[thread] += 1;
            }
        }
    }

    #[test]
    fn random_blocks_differ_between_threads_but_not_between_runs() {
        let draw = || {
            let mut threads = places(Pattern::Rand, Cursor::Shared, 1 << 40, 2);
            [0, 1].map(|t: usize| (0..8).map(|_| threads[t].next_block(0)).collect::<Vec<_>>())
        };
        let [first, second] = draw();
        assert_ne!(first, second);
        assert_eq!(draw(), [first, second]);
    }

    #[test]
    fn mixed_is_a_mixture() {
        let mut places = places(Pattern::Mixed, Cursor::Shared, 1 << 40, 1).remove(0);
        let drawn: Vec<u64> = (0..1000).map(|_| places.next_block(0)).collect();
        // Large numbers are random blocks; small numbers are the complete sequence.
        let sequential: Vec<u64> = drawn.iter().copied().filter(|block| *block < 1000).collect();
        assert_eq!(sequential, (0..sequential.len() as u64).collect::<Vec<_>>());
        assert!((300..700).contains(&sequential.len()), "{}", sequential.len());
    }
}
