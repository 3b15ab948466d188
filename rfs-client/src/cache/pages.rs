//! Whether the kernel's cached pages of a file are current at the next open or lock. No I/O.
//!
//! Pages are current if this client might cache all the time since they were read. Otherwise the
//! kernel drops them at the open. It does so after the reply, so new pages count only once a
//! request came through that handle.

use std::sync::atomic::{AtomicU64, Ordering};

use rfs_proto::Locked;

const OLD: u64 = 0;
const GOOD: u64 = u64::MAX;

/// The state of one file: [`OLD`], [`GOOD`], or the handle whose use makes the pages current.
#[derive(Debug, Default)]
pub(crate) struct PageState {
    word: AtomicU64,
}

/// The server's count of visits at this client's last lock of a file, if only this client could
/// have changed the file since.
#[derive(Debug, Default)]
pub(crate) struct LockVisits(Option<u64>);

impl LockVisits {
    /// Notes that a lock of the file was granted. Returns true if another client may have changed
    /// the file since this client's last lock.
    pub(crate) fn locked(&mut self, Locked { visits, alone }: Locked) -> bool {
        let before = std::mem::replace(&mut self.0, alone.then_some(visits));
        !alone || before != Some(visits)
    }
}

impl PageState {
    /// Notes that the pages were recalled, or bypassed by a write.
    pub(crate) fn recalled(&self) {
        self.word.store(OLD, Ordering::Release);
    }

    /// Notes that the file is opened as `handle` (neither 0 nor the maximum) through the page
    /// cache. `kept` tells whether the pages are cacheable. Returns true if they are current.
    pub(crate) fn opened(&self, handle: u64, kept: bool) -> bool {
        if !kept {
            self.recalled();
            return false;
        }
        if self.are_good() {
            return true;
        }
        self.word.store(handle, Ordering::Release);
        false
    }

    /// Notes a request through a handle: the kernel has dropped old pages by now.
    pub(crate) fn used(&self, handle: u64) {
        if self.word.load(Ordering::Relaxed) == handle {
            self.word.compare_exchange(handle, GOOD, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
    }

    /// Returns true if no other client can have changed the pages' contents.
    pub(crate) fn are_good(&self) -> bool {
        self.word.load(Ordering::Acquire) == GOOD
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
    fn a_recall_makes_pages_old() {
        let pages = PageState::default();
        pages.opened(4, true);
        pages.recalled();
        pages.used(4);
        assert!(!pages.opened(8, true));
        pages.used(8);
        assert!(pages.are_good() && !pages.opened(12, false) && !pages.are_good());
    }
}
