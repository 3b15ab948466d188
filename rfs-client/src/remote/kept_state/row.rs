//! The kept counters of one inode.
//!
//! # Concurrency
//! Any thread. Takes the lock of the current request, if there is one.

use std::sync::{Arc, atomic::Ordering};

use super::{
    counter::Counter,
    layout::{SLOT, row_at},
    scope::current,
    state::{KeptInode, KeptState},
};

/// The row of an inode in the kept state.
#[derive(Debug)]
pub(crate) struct Row {
    kept: Arc<KeptState>,
    ino: u64,
    index: usize,
}

impl Row {
    /// Adds an inode to the state. `None` if there is no room.
    pub(crate) fn add(kept: &Arc<KeptState>, ino: u64) -> Option<Row> {
        let index = kept.add_row(ino)?;
        Some(Row { kept: Arc::clone(kept), ino, index })
    }

    /// Returns the row of an inode of the previous process.
    pub(crate) fn of(kept: &Arc<KeptState>, previous: &KeptInode) -> Row {
        Row { kept: Arc::clone(kept), ino: previous.ino, index: previous.row }
    }

    /// Adds to a counter, and notes that for the current request. The order decides which way a
    /// counter is wrong if the process dies in between.
    pub(crate) fn count(&self, counter: Counter, amount: i64) {
        let note = || {
            if let Some(scope) = current() {
                scope.note_effect(self.ino, counter, amount);
            }
        };
        let add = || self.kept.add_to_counter(self.index, counter, amount);
        if counter.changes_before_note(amount) {
            add();
            note();
        } else {
            note();
            add();
        }
    }

    /// Returns a counter.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.kept.area().word(row_at(self.index) + counter.offset()).load(Ordering::Acquire)
    }

    /// Notes the slot of the inode's record.
    pub(crate) fn set_slot(&self, slot: u32) {
        self.kept.area().word(row_at(self.index) + SLOT).store(u64::from(slot) + 1, Ordering::Release);
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.kept.free_row(self.index);
    }
}
