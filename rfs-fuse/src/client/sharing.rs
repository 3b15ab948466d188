//! Files that this mount and others have open while one of them may write.
//!
//! The kernel keeps pages of a file that was opened when no other mount could write to it. The
//! server recalls them when another mount opens the file to write ([`PageHold`]). A mount that
//! reads on through such an open file asks the server for the right to keep pages once more, before
//! it reads. A mount that opens a file to write which others have open is told so ([`Sharing`]):
//! after each write it has the server recall the pages that others keep, before the write returns.
//!
//! A file that no other mount has open costs one load for each read and each write.
//!
//! # Concurrency
//! Atomic words. A recall is noted under the lock of the recalls, and a hold is taken under it.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use rfs_proto::{Marks, Request};

use super::{
    Client, ClientError,
    keeping::{Effect, Since},
};

/// No page is kept, or none that would have to be right.
const NONE: u8 = 0;
/// The server recalls the pages before another mount's write returns.
const HELD: u8 = 1;
/// The pages were recalled, and the server does not recall others.
const LOST: u8 = 2;
/// As [`HELD`], after pages have been recalled.
const REGAINED: u8 = 3;

/// Whether the server recalls the pages that are kept of an inode.
#[derive(Debug, Default)]
pub(crate) struct PageHold(AtomicU8);

/// Counts over all inodes, so that the usual case needs no look at an inode.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Inodes whose hold was lost.
    contested: AtomicUsize,
    /// Inodes that others had open when they were opened here to write.
    shared: AtomicUsize,
}

/// Whether others had an inode open when it was opened here to write: odd if they had. Another
/// number each time.
#[derive(Debug, Default)]
pub(crate) struct Shared(AtomicU64);

impl PageHold {
    /// Pages are kept from now on, and the server recalls them.
    pub(crate) fn hold(&self, sharing: &Sharing) {
        self.change(sharing, |before| if is_contested(before) { REGAINED } else { HELD });
    }

    /// Pages are kept from now on that the server does not recall yet, or no more.
    pub(crate) fn hold_later(&self, sharing: &Sharing) {
        self.change(sharing, |_| LOST);
    }

    /// The pages were recalled.
    pub(crate) fn recalled(&self, sharing: &Sharing) {
        if self.state() != NONE {
            self.change(sharing, |before| if before == NONE { NONE } else { LOST });
        }
    }

    /// The file is closed.
    pub(crate) fn end(&self, sharing: &Sharing) {
        if self.state() != NONE {
            self.change(sharing, |_| NONE);
        }
    }

    fn state(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }

    fn is_lost(&self) -> bool {
        self.state() == LOST
    }

    fn change(&self, sharing: &Sharing, to: impl Fn(u8) -> u8) {
        // Counted before it shows, so that the count is never too low.
        sharing.contested.fetch_add(1, Ordering::SeqCst);
        let change = |before| Some(to(before));
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).unwrap_or_default();
        let surplus = usize::from(is_contested(before)) + usize::from(!is_contested(to(before)));
        sharing.contested.fetch_sub(surplus, Ordering::SeqCst);
    }
}

fn is_contested(state: u8) -> bool {
    matches!(state, LOST | REGAINED)
}

impl Shared {
    /// Others have the file open.
    pub(crate) fn begin(&self, sharing: &Sharing) {
        let next = |before: u64| Some((before + 1) | 1);
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
        if before.is_multiple_of(2) {
            sharing.shared.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The file is closed.
    pub(crate) fn end(&self, sharing: &Sharing) {
        let now = self.0.load(Ordering::SeqCst);
        self.end_as_of(now, sharing);
    }

    /// Others had it open as of `seen`, and have it open no more.
    fn end_as_of(&self, seen: u64, sharing: &Sharing) {
        if !seen.is_multiple_of(2)
            && self.0.compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            sharing.shared.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn seen(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Client {
    /// Returns true if pages of a file that are about to be kept would not be recalled:
    /// [`hold_pages`](Self::hold_pages) comes first.
    pub fn lacks_hold(&self, ino: u64) -> bool {
        self.inodes.sharing().contested.load(Ordering::SeqCst) > 0
            && self.keeping.is_on()
            && self.inodes.get(ino).is_some_and(|inode| inode.hold.is_lost())
    }

    /// Returns true if the kernel has been told, since a file was opened, to drop pages of it.
    pub fn is_contested(&self, ino: u64) -> bool {
        self.inodes.sharing().contested.load(Ordering::SeqCst) > 0
            && self.inodes.get(ino).is_some_and(|inode| is_contested(inode.hold.state()))
    }

    /// Has the server recall pages of a file that are read or written from now on.
    ///
    /// # Errors
    /// That of the call. Nothing is to be kept then.
    pub fn hold_pages(&self, ino: u64) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(()) };
        let since: Since = self.since();
        self.call_done(&Request::HoldPages { ino })?;
        let telling = self.telling();
        if inode.hold.is_lost() && !telling.loses_pages(since, ino) {
            inode.hold.hold(self.inodes.sharing());
        }
        Ok(())
    }

    /// Returns true if others may keep pages of a file that is open here to write.
    pub fn is_shared(&self, ino: u64) -> bool {
        self.inodes.sharing().shared.load(Ordering::SeqCst) > 0
            && self.inodes.get(ino).is_some_and(|inode| !inode.shared.seen().is_multiple_of(2))
    }

    /// Waits until no other mount keeps pages of a file that are older than what was written here
    /// before the call.
    ///
    /// # Errors
    /// That of the call. Others may keep old pages then.
    pub fn drop_others_pages(&self, ino: u64) -> Result<(), ClientError> {
        // One of the calls that others may hold up.
        let effect = Effect::default();
        let inode = self.inodes.get(ino);
        let seen = inode.as_ref().map(|inode| inode.shared.seen());
        let _under_way = self.changes().begin(&effect);
        let attr = self.call_attr(&Request::DropPages { ino })?;
        if let (Some(inode), Some(seen), false) = (inode, seen, attr.marks.contains(Marks::SHARED)) {
            // From now on others open it in a way that keeps no pages.
            inode.shared.end_as_of(seen, self.inodes.sharing());
        }
        Ok(())
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
