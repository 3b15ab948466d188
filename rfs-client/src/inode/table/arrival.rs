//! Requests in flight whose replies may bring inode numbers.
//!
//! # Concurrency
//! Any thread. [`InodeTable::unlinked`] and the end of an [`Arrival`] take the lock of the inode
//! table, and hold no lock of `Orphans` meanwhile.

use crate::inode::table::InodeTable;

/// A request in flight whose reply may bring inode numbers. It ends when the caller has the
/// reply.
#[derive(Debug)]
pub struct Arrival<'c> {
    inodes: &'c InodeTable,
    interval: u64,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let settles = self.inodes.orphans().arrivals.lock().leave(self.interval);
        if settles {
            self.inodes.settle();
        }
    }
}

impl InodeTable {
    /// Begins a request whose reply may bring inode numbers.
    pub(crate) fn arrival(&self) -> Arrival<'_> {
        Arrival { interval: self.orphans().arrivals.lock().enter(), inodes: self }
    }

    /// Notes that an inode has lost its last name.
    pub(crate) fn unlinked(&self, ino: u64) {
        {
            let mut arrivals = self.orphans().arrivals.lock();
            if !arrivals.are_none() {
                arrivals.unlinked(ino);
                drop(arrivals);
                return self.settle();
            }
        }
        self.settled(ino);
    }

    /// Settles unlinked inodes whose numbers no reply can bring any more.
    fn settle(&self) {
        loop {
            let settled = self.orphans().arrivals.lock().take_settled();
            let Some(ino) = settled else { return };
            self.settled(ino);
        }
    }

    /// Handles a settled inode. The server hears of it now if the caller does not know the inode,
    /// else when the caller forgets it.
    fn settled(&self, ino: u64) {
        let orphans = self.orphans();
        match (self.mark_unlinked(ino), orphans.drop_names.get()) {
            (true, Some(drop_names)) => drop_names(ino),
            (true, None) => {}
            (false, _) => orphans.post(ino),
        }
    }
}
