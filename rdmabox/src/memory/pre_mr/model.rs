//! Models of the pool.

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// One for each block of the pool: changed without any protection of its own, it shows the model checker a block that
/// is used by two, or whose next user does not see what the last one did.
struct Uses([UnsafeCell<()>; 2]);

impl Uses {
    fn new() -> Arc<Uses> {
        Arc::new(Uses([UnsafeCell::new(()), UnsafeCell::new(())]))
    }

    /// Uses all blocks of a buffer.
    fn fill(&self, buf: &PreMrBuf) {
        let first = buf.offset() / MIN_BLOCK;
        self.0[first..first + buf.capacity() / MIN_BLOCK].iter().for_each(|used| used.with_mut(|_| {}));
    }
}

/// A pool of two blocks. The memory is of no interest: all models share it.
fn pool() -> Arc<PreMrPool> {
    static MEMORY: std::sync::LazyLock<Arc<Memory>> =
        std::sync::LazyLock::new(|| Arc::new(Memory::private(2 * MIN_BLOCK).expect("memory for a model")));
    PreMrPool::new(Arc::clone(&MEMORY), 2 * MIN_BLOCK)
}

/// No block is handed to two, and none is lost: threads that want one of both blocks, or both as one, and one that gives
/// back what another acquired. Catches a table that is changed outside of the lock, and a block given back twice or never.
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
        // One block is out with `small`, and one at most with the taker of both, who cannot have got both.
        if let Some(buf) = pool.acquire(1) {
            uses.fill(&buf);
        }
        [giver, taker].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(pool.available(), 2 * MIN_BLOCK);
        assert!(pool.acquire(2 * MIN_BLOCK).is_some(), "the blocks have not joined again");
    });
}
