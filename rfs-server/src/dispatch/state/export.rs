//! The state of an export: its metadata and its sessions.
//!
//! # Concurrency
//! As the dispatcher. The list of abandoned sessions has a lock of its own, which is held over the
//! log's lock.

use parking_lot::Mutex;

use super::store::Store;
use crate::session::registry::Sessions;

/// The state of an export.
pub(in crate::dispatch) struct ExportState {
    pub(in crate::dispatch) store: Store,
    pub(in crate::dispatch) sessions: Sessions,
    /// Sessions of previous servers that do not reconnect, while their clients may still access
    /// memory.
    pub(in crate::dispatch) abandoned: Mutex<Vec<u64>>,
}

impl ExportState {
    /// Creates the state of an export without sessions.
    pub(in crate::dispatch) fn new(store: Store) -> ExportState {
        ExportState { store, sessions: Sessions::default(), abandoned: Mutex::default() }
    }
}
