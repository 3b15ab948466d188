//! Orders without an outcome, and the reservations that wait for them.
//!
//! # Concurrency
//! Plain values.

use pool::{ChunkId, ClientId, Order, StoreId};
use serde::{Deserialize, Serialize};

use crate::{proto::NamespaceId, refusal::Refusal};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct PendingOrder {
    pub(in crate::machine) store: StoreId,
    pub(in crate::machine) order: Order,
    pub(in crate::machine) purpose: Purpose,
}

/// The purpose of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) enum Purpose {
    Reservation(u64),
    Discard(u32),
    Mark,
    EndClient(ClientId),
    EndLease(u64),
}

/// A reservation that waits for stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::machine) struct Reservation {
    pub(in crate::machine) call: u64,
    pub(in crate::machine) client: ClientId,
    pub(in crate::machine) namespace: NamespaceId,
    pub(in crate::machine) chunks: Vec<ChunkId>,
    /// Orders without an outcome.
    pub(in crate::machine) outstanding: u64,
    pub(in crate::machine) failure: Option<Refusal>,
}
