//! Whether the kernel's pages of a file are good at the next open. Pure, but for being atomic.
//!
//! They are if they were all read under a lease that has not been interrupted. When a file is opened and they are not, the kernel drops
//! what it has; since it does so after it was answered, the new pages count only once something came through that
//! open file.

use std::sync::atomic::{AtomicU64, Ordering};

const OLD: u64 = 0;
const GOOD: u64 = u64::MAX;

/// One file's.
#[derive(Debug, Default)]
pub(crate) struct PageState(AtomicU64);

impl PageState {
    /// Their lease is over, or something was written around them.
    pub(crate) fn recalled(&self) {
        self.0.store(OLD, Ordering::Release);
    }

    /// The file is opened as `handle`, which is neither 0 nor the greatest number, through the kernel's pages; `kept`: under a lease. True if they are good.
    pub(crate) fn opened(&self, handle: u64, kept: bool) -> bool {
        if !kept {
            self.recalled();
            return false;
        }
        if self.are_good() {
            return true;
        }
        self.0.store(handle, Ordering::Release);
        false
    }

    /// Something came through an open file: the kernel has dropped what it had before.
    pub(crate) fn used(&self, handle: u64) {
        if self.0.load(Ordering::Relaxed) == handle {
            self.0.compare_exchange(handle, GOOD, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
    }

    /// True if no other client can have changed what they hold.
    pub(crate) fn are_good(&self) -> bool {
        self.0.load(Ordering::Acquire) == GOOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_good_after_the_first_use() {
        let pages = PageState::default();
        assert!(!pages.opened(4, true) && !pages.opened(8, true), "the kernel may not have dropped them yet");
        pages.used(4);
        assert!(!pages.are_good(), "the later open drops them again");
        pages.used(8);
        assert!(pages.opened(12, true));
        pages.used(12);
        assert!(pages.are_good());
    }

    #[test]
    fn a_recall_takes_them() {
        let pages = PageState::default();
        pages.opened(4, true);
        pages.recalled();
        pages.used(4);
        assert!(!pages.opened(8, true));
        pages.used(8);
        assert!(pages.are_good() && !pages.opened(12, false) && !pages.are_good());
    }
}
