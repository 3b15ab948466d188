//! The state of a store.
//!
//! # Concurrency
//! Plain values.

use pool::Incarnation;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct StoreState {
    pub(in crate::machine) address: String,
    pub(in crate::machine) incarnation: Incarnation,
    pub(in crate::machine) capacity: u64,
    pub(in crate::machine) state: LinkState,
    /// Number of the link that was asked for last.
    pub(in crate::machine) link: u64,
    /// It was ready before in this run, so all chunks that it has are this master's.
    pub(in crate::machine) is_own: bool,
}

/// Whether a store gets orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum LinkState {
    Up,
    /// The master connects, or waits for the store to register again, since this time.
    Down(u64),
}
