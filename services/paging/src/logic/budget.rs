//! Numbers of pages that follow from the local budget.
//!
//! # Concurrency
//! Plain values.

/// Most pages of one batch of victims, and of reads that are under way together.
pub(crate) const MAX_BATCH: usize = 64;
/// Pages of write-outs under way at which no further batch begins. With a batch more, and as many
/// reads, a session has 256 buffers: that many registrations it keeps.
const MAX_WRITES: usize = 128;

/// The local budget in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(usize);

impl Budget {
    pub(crate) fn new(pages: usize) -> Budget {
        Budget(pages)
    }

    pub(crate) fn pages(self) -> usize {
        self.0
    }

    /// Returns the number of victims of a batch.
    pub(crate) fn batch(self) -> usize {
        (self.0 / 8).clamp(1, MAX_BATCH)
    }

    /// Returns the most pages that are read together. They fit into the budget at once.
    pub(crate) fn reads(self) -> usize {
        (self.0 / 4).min(MAX_BATCH)
    }

    /// Returns true if `pages` more pages exceed the budget.
    pub(crate) fn is_exceeded(self, resident: usize, pages: usize) -> bool {
        resident + pages > self.0
    }

    /// Returns true if a batch shall leave, so that `pages` pages and later ones have room.
    /// `writing` of the resident pages are on their way.
    pub(crate) fn wants_batch(self, resident: usize, writing: usize, pages: usize) -> bool {
        let has_room = resident - writing + pages + self.batch() <= self.0;
        !has_room && writing < MAX_WRITES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_leaves_before_the_budget_is_exceeded() {
        let budget = Budget::new(512);
        assert_eq!((budget.batch(), budget.reads(), Budget::new(32).reads()), (64, 64, 8));
        assert!(!budget.is_exceeded(511, 1) && budget.is_exceeded(512, 1));
        assert!(!budget.wants_batch(447, 0, 1) && budget.wants_batch(448, 0, 1));
        assert!(!budget.wants_batch(511, 64, 1), "a batch is on its way");
        assert!(!budget.wants_batch(512, 128, 128), "enough is on its way");
    }
}
