//! The state of a client.
//!
//! # Concurrency
//! Plain values.

use std::collections::BTreeSet;

use pool::StoreId;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct ClientState {
    pub(in crate::machine) nonce: u128,
    pub(in crate::machine) epoch: u32,
    pub(in crate::machine) presence: Presence,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum Presence {
    Here,
    /// Disconnected since this time.
    Away(u64),
    /// Lost. These stores have not confirmed the end of its access yet.
    Ending(BTreeSet<StoreId>),
}
