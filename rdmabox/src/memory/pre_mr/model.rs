//! Loom models of the pool.

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// One cell per block of the pool, changed without protection. The model checker reports a race
/// if two threads use a block, or if the next user does not see the accesses of the last.
struct Uses([UnsafeCell<()>; 2]);

impl Uses {
    fn new() -> Arc<Uses> {
        Arc::new(Uses([UnsafeCell::new(()), UnsafeCell::new(())]))
    }

    /// Uses every block of a buffer.
    fn fill(&self, buf: &PreMrBuf) {
        let first = buf.offset() / MIN_BLOCK;
        self.0[first..first + buf.capacity() / MIN_BLOCK].iter().for_each(|used| used.with_mut(|_| {}));
    }
}

/// Returns a pool of two blocks. All models share its memory, whose contents do not matter.
fn pool() -> Arc<PreMrPool> {
    static MEMORY: std::sync::LazyLock<Arc<Memory>> =
        std::sync::LazyLock::new(|| Arc::new(Memory::private(2 * MIN_BLOCK).expect("memory for a model")));
    PreMrPool::new(Arc::clone(&MEMORY), 2 * MIN_BLOCK)
}

/// Threads acquire one or both blocks, and one thread releases a block that another acquired.
/// Fails if a block has two owners, gets lost, or returns twice, or if a table changes outside
/// the lock.
#[test]
fn a_block_has_one_owner_and_comes_back() {
    check(Some(3), || {
        let (pool, uses) = (pool(), Uses::new());
        let small = pool.acquire(1).expect("the pool is full");
        uses.fill(&small);
        let giver = go({
            let uses = Arc::clone(&uses);
            move || {
                uses.fill(&small);
                drop(small);
            }
        });
        let taker = go({
            let (pool, uses) = (Arc::clone(&pool), Arc::clone(&uses));
            move || {
                for len in [1, 2 * MIN_BLOCK] {
                    if let Some(buf) = pool.acquire(len) {
                        uses.fill(&buf);
                    }
                }
            }
        });
        // `small` occupies one block, so the taker can hold at most one block and never both.
        if let Some(buf) = pool.acquire(1) {
            uses.fill(&buf);
        }
        [giver, taker].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.available(), 2 * MIN_BLOCK);
        assert!(pool.acquire(2 * MIN_BLOCK).is_some(), "the blocks have not joined again");
    });
}
