//! The reply that tells how to reach a store.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a session reaches a store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreAccess {
    /// Address of the store.
    pub address: String,
    /// Number of the chunk of the store that has the data of the export.
    pub chunk: u32,
    /// Number of the session at the stores.
    pub client: u64,
    /// Name of the key with which the store admits the session.
    pub ticket: String,
    /// Secret of that key.
    #[serde(with = "serde_bytes")]
    pub secret: Vec<u8>,
}

impl fmt::Debug for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreAccess { address, chunk, client, ticket, secret: _ } = self;
        f.debug_struct("StoreAccess")
            .field("address", address)
            .field("chunk", chunk)
            .field("client", client)
            .field("ticket", ticket)
            .finish_non_exhaustive()
    }
}
