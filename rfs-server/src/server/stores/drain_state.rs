//! Whether data moves away from a store, and how far it is.
//!
//! # Concurrency
//! Any thread. One lock, held for moments.

use parking_lot::Mutex;

/// Whether data moves away from a store, and how far it is.
#[derive(Debug, Default)]
pub(in crate::server) struct Drain(Mutex<DrainState>);

/// Progress of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::server) struct DrainState {
    /// Data moves away.
    pub(in crate::server) is_on: bool,
    /// Bytes that were moved since the server started.
    pub(in crate::server) moved: u64,
    /// Why it does not go on at the moment.
    pub(in crate::server) waits: Option<String>,
}

impl Drain {
    /// Begins or ends the drain. Returns false if that was so.
    pub(super) fn set(&self, is_on: bool) -> bool {
        let mut state = self.0.lock();
        state.waits = None;
        std::mem::replace(&mut state.is_on, is_on) != is_on
    }

    pub(in crate::server) fn state(&self) -> DrainState {
        self.0.lock().clone()
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.lock().is_on
    }

    pub(super) fn moved(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.moved += bytes;
        state.waits = None;
    }

    pub(super) fn waits(&self, reason: String) {
        self.0.lock().waits = Some(reason);
    }
}
