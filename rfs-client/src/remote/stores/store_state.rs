//! The state of a store at the client: the way there, and an outage.
//!
//! # Concurrency
//! Plain values, under the lock of the store. It is held while a session connects.

use std::time::Instant;

use pool::{ChunkId, Link, LinkError, Stores};
use rdmabox::Address;

/// The known state of a store.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    /// The way to the store, once the server has told it.
    pub(super) known: Option<(Stores, ChunkId, Address)>,
    pub(super) outage: Option<Outage>,
}

/// A store to which no connection could be made since a loss.
#[derive(Clone, Debug)]
pub(super) struct Outage {
    pub(super) since: Instant,
    pub(super) last_attempt: Instant,
    pub(super) reason: String,
}

impl StoreState {
    /// Returns a link to the chunk, or why there is none.
    pub(super) fn connect(&self) -> Result<Link, LinkFailure> {
        let other = |reason: String| LinkFailure::Other(reason);
        let (stores, chunk, address) = self.known.as_ref().ok_or_else(|| other("is not known".into()))?;
        let links = stores.link(&[*chunk]).map_err(|error| {
            let reason = format!("at {address}: {error}");
            if matches!(error, LinkError::Refused { .. }) {
                LinkFailure::Refused(reason)
            } else {
                other(reason)
            }
        })?;
        links.into_iter().next().ok_or_else(|| other(format!("at {address}: it has no chunk")))
    }

    /// Forgets the way to the store, and ends the session.
    pub(super) fn forget_access(&mut self) {
        if let Some((stores, ..)) = self.known.take() {
            stores.close();
        }
    }
}

/// Why there is no link to a store.
#[derive(Debug)]
pub(super) enum LinkFailure {
    /// The store refuses the client.
    Refused(String),
    Other(String),
}

impl LinkFailure {
    pub(super) fn into_reason(self) -> String {
        match self {
            LinkFailure::Refused(reason) | LinkFailure::Other(reason) => reason,
        }
    }
}
