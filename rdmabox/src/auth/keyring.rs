//! The keys that a host accepts, their rights, and the host's limits.
//!
//! # Concurrency
//! The threads of new connections query a keyring concurrently. A query must not block for long.

use std::{collections::HashMap, time::Duration};

use super::key::{KeyId, Secret};

/// A protection domain of a host. Its sessions can access only its exports, regardless of the
/// rkeys in their requests. [`Host::domain`](crate::Host::domain) creates a domain. Sessions
/// without a key are in the default domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Domain(pub(crate) usize);

/// The rights of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The secret that clients with the key prove.
    pub secret: Secret,
    /// The domain of their sessions.
    pub domain: Domain,
}

/// The keys of a host ([`Host::keys`](crate::Host::keys)).
pub trait Keyring: Send + Sync + 'static {
    /// Returns the rights of a key, `None` for an unknown key. Called once for each requested
    /// session.
    fn grant(&self, id: &KeyId) -> Option<Grant>;
}

impl Keyring for HashMap<KeyId, Grant> {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        self.get(id).cloned()
    }
}

/// Limits on the resources that a host spends on clients ([`Host::limits`](crate::Host::limits)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections that belong to no session yet. Each takes a thread and reads
    /// at most 160 bytes. With TLS it also reads a handshake, with at most 64 KiB kept. At the
    /// limit, a new connection evicts the oldest unauthenticated one of the source with the most
    /// connections.
    pub strangers: usize,
    /// Time limit for a connection to send its preamble and to prove its key.
    pub introduction: Duration,
    /// Maximum number of sessions, including sessions in the making; at most 1000 per kind of
    /// device.
    pub sessions: usize,
    /// Maximum number of sessions per key. Each can use up to 5 MiB of the host's memory.
    pub sessions_per_key: usize,
}

impl Limits {
    /// Returns the maximum number of sessions in the making. It is below `strangers`, so that the
    /// streams of these sessions can still be accepted.
    pub(crate) fn in_making(&self) -> usize {
        self.strangers.div_ceil(2)
    }

    /// Returns the maximum number of sessions in the making per key, so that one key leaves room
    /// for others.
    pub(crate) fn in_making_per_key(&self) -> usize {
        self.in_making().div_ceil(4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { strangers: 256, introduction: Duration::from_secs(5), sessions: 1000, sessions_per_key: 250 }
    }
}
