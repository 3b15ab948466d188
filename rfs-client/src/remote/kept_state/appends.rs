//! Appends that the previous process had begun. No I/O, no locks of its own, no clock.

use std::collections::HashMap;

use super::layout::{APPEND_LOCK, APPEND_OFFSET};

/// An append that the previous process had begun.
#[derive(Debug)]
struct BegunAppend {
    /// Place of the request. Its notes stay until the request is answered.
    entry: usize,
    offset: Option<u64>,
    /// Number of the append lock. 0: the append was given up, to begin anew.
    hold: u64,
}

/// Appends of repeated requests, by the kernel's number of the request.
#[derive(Debug, Default)]
pub(super) struct BegunAppends(HashMap<u64, BegunAppend>);

impl BegunAppends {
    /// Takes in a note of an append. Notes come from the last one to the first one, and the last
    /// one counts.
    pub(super) fn note(&mut self, (entry, unique): (usize, u64), kind: u8, value: u64) {
        match kind {
            APPEND_LOCK => {
                self.0.entry(unique).or_insert(BegunAppend { entry, offset: None, hold: value });
            }
            APPEND_OFFSET => {
                if let Some(append) = self.0.get_mut(&unique) {
                    append.offset.get_or_insert(value);
                }
            }
            _ => {}
        }
    }

    /// Returns true if an entry has the notes of an append. Forgets an append that was given up.
    pub(super) fn keeps(&mut self, entry: usize, unique: u64) -> bool {
        let Some(append) = self.0.get(&unique) else { return false };
        if append.hold == 0 {
            self.0.remove(&unique);
            return false;
        }
        append.entry == entry
    }

    /// Returns the offset and the lock of an append.
    pub(super) fn find(&self, unique: u64) -> Option<(u64, u64)> {
        self.0.get(&unique).and_then(|append| Some((append.offset?, append.hold)))
    }

    pub(super) fn contains(&self, unique: u64) -> bool {
        self.0.contains_key(&unique)
    }

    /// Removes an append that is answered. Returns the place of its request.
    pub(super) fn end(&mut self, unique: u64) -> Option<usize> {
        self.0.remove(&unique).map(|append| append.entry)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
