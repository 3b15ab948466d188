//! Released space that a snapshot has still to copy.
//!
//! # Concurrency
//! One snapshot at a time; takes the lock of the account.

use super::{
    account::{Held, Space},
    quarantine::SNAPSHOT,
};

impl Space {
    /// Quarantines all released space from now on, for a snapshot that copies it.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.account.lock().held = Some(Held::default());
        Hold(self)
    }
}

/// Quarantines all released space for a snapshot. Dropping it ends that quarantine.
#[derive(Debug)]
pub(crate) struct Hold<'a>(&'a Space);

impl Hold<'_> {
    /// Ends the quarantine of space before `end`, which has been copied.
    pub(crate) fn copied_to(&self, end: u64) {
        self.0.change_account(|account| {
            let Some(held) = &mut account.held else { return };
            held.from = end;
            // Examines only released ranges: the snapshot calls this for each MiB while requests
            // wait for the lock.
            while let Some(first) = held.waits.first_entry().filter(|first| first.key().0 <= end) {
                let ((_, start), ino) = first.remove_entry();
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.0.tidy();
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.change_account(|account| {
            for ((_, start), ino) in account.held.take().unwrap_or_default().waits {
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.0.tidy();
    }
}
