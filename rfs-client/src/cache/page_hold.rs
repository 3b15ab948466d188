//! Pages of files that this mount and other mounts have open while one of them may write.
//!
//! The kernel caches pages of a file that no other mount could write to when it was opened. The
//! server recalls them when another mount opens the file for writing ([`PageHold`]). A mount that
//! reads on asks the server for the right to cache pages again. A mount that opens a file for
//! writing hears from the server if other mounts have it open ([`Sharing`]). After each write, it
//! has the server recall their pages before the write returns.
//!
//! A file that no other mount has open costs one load per read or write.
//!
//! # Concurrency
//! Atomic words. A recall is noted, and a hold is taken, under the lock of the recall log.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// No page is cached, or no cached page has to be current.
const NONE: u8 = 0;
/// The server recalls the pages before another mount's write returns.
const HELD: u8 = 1;
/// The pages were recalled, and the server does not recall newer ones.
const LOST: u8 = 2;
/// Like [`HELD`], after an earlier recall of pages.
const REGAINED: u8 = 3;

/// Whether the server recalls the cached pages of an inode.
#[derive(Debug, Default)]
pub(crate) struct PageHold(AtomicU8);

/// Counts over all inodes, so that the common case looks at no inode.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Number of inodes with a lost hold.
    pub(crate) contested: AtomicUsize,
    /// Number of inodes that are open here for writing, and were open at other mounts at the time.
    pub(crate) shared: AtomicUsize,
}

/// A counter. Odd: the inode is open here for writing, and perhaps open at other mounts. Each
/// change adds 1.
#[derive(Debug, Default)]
pub(crate) struct Shared(AtomicU64);

impl PageHold {
    /// Notes that pages are cached from now on, which the server recalls.
    pub(crate) fn hold(&self, sharing: &Sharing) {
        self.change(sharing, |before| if is_contested(before) { REGAINED } else { HELD });
    }

    /// Notes that pages are cached from now on, which the server does not recall.
    pub(crate) fn hold_later(&self, sharing: &Sharing) {
        self.change(sharing, |_| LOST);
    }

    /// Notes that the pages were recalled.
    pub(crate) fn recalled(&self, sharing: &Sharing) {
        if self.state() != NONE {
            self.change(sharing, |before| if before == NONE { NONE } else { LOST });
        }
    }

    /// Notes that the file is closed.
    pub(crate) fn end(&self, sharing: &Sharing) {
        if self.state() != NONE {
            self.change(sharing, |_| NONE);
        }
    }

    pub(crate) fn state(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state() == LOST
    }

    fn change(&self, sharing: &Sharing, to: impl Fn(u8) -> u8) {
        // Counting before the change becomes visible keeps the count from being too low.
        sharing.contested.fetch_add(1, Ordering::SeqCst);
        let change = |before| Some(to(before));
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).unwrap_or_default();
        let surplus = usize::from(is_contested(before)) + usize::from(!is_contested(to(before)));
        sharing.contested.fetch_sub(surplus, Ordering::SeqCst);
    }
}

pub(crate) fn is_contested(state: u8) -> bool {
    matches!(state, LOST | REGAINED)
}

impl Shared {
    /// Notes that other mounts have the file open.
    pub(crate) fn begin(&self, sharing: &Sharing) {
        let next = |before: u64| Some((before + 1) | 1);
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
        if before.is_multiple_of(2) {
            sharing.shared.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that the file is closed.
    pub(crate) fn end(&self, sharing: &Sharing) {
        let now = self.0.load(Ordering::SeqCst);
        self.end_as_of(now, sharing);
    }

    /// Notes that no other mount has the file open, unless the state has changed since `seen`.
    pub(crate) fn end_as_of(&self, seen: u64, sharing: &Sharing) {
        if !seen.is_multiple_of(2)
            && self.0.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            sharing.shared.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn seen(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hold_can_be_lost() {
        let (hold, sharing) = (PageHold::default(), Sharing::default());
        let contested = || sharing.contested.load(Ordering::SeqCst);
        hold.recalled(&sharing);
        assert!(!hold.is_lost() && contested() == 0);
        hold.hold(&sharing);
        assert_eq!(contested(), 0);
        hold.recalled(&sharing);
        hold.recalled(&sharing);
        assert!(hold.is_lost() && contested() == 1);
        hold.hold_later(&sharing);
        assert!(hold.is_lost() && contested() == 1);
        hold.hold(&sharing);
        assert!(!hold.is_lost() && contested() == 1);
        hold.end(&sharing);
        assert_eq!(contested(), 0);
        hold.hold_later(&sharing);
        hold.end(&sharing);
        assert!(!hold.is_lost() && contested() == 0);
    }

    #[test]
    fn shared_files_are_counted_once() {
        let (file, sharing) = (Shared::default(), Sharing::default());
        file.end(&sharing);
        file.begin(&sharing);
        file.begin(&sharing);
        assert_eq!(sharing.shared.load(Ordering::SeqCst), 1);
        let before = file.seen();
        file.end_as_of(before, &sharing);
        file.begin(&sharing);
        file.end_as_of(before, &sharing);
        assert_eq!(sharing.shared.load(Ordering::SeqCst), 1, "opened anew");
        file.end(&sharing);
        assert_eq!(sharing.shared.load(Ordering::SeqCst), 0);
    }
}
