//! Which keys a host takes, and what each opens.
//!
//! Threading: a keyring is asked by the threads of new connections, several at once. It must not block for long.

use std::{collections::HashMap, time::Duration};

use super::key::{KeyId, Secret};

/// A protection domain of a host: the sessions in it reach what is exported in it, and nothing else, whatever keys of
/// memory they name. [`Host::domain`](super::Host::domain) makes one; the default is that of sessions without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Domain(pub(super) usize);

/// What a key opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What its owners prove that they know.
    pub secret: Secret,
    /// Where their sessions are.
    pub domain: Domain,
}

/// The keys of a host ([`Host::keys`](super::Host::keys)).
pub trait Keyring: Send + Sync + 'static {
    /// What a key opens; `None` if there is no such key. Asked once for each session that is to be made.
    fn grant(&self, id: &KeyId) -> Option<Grant>;
}

impl Keyring for HashMap<KeyId, Grant> {
    fn grant(&self, id: &KeyId) -> Option<Grant> {
        self.get(id).cloned()
    }
}

/// What a host spends on clients at most ([`Host::limits`](super::Host::limits)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that belong to no session yet. Each takes a thread, and 160 bytes of it are read, with TLS those of a
    /// handshake, of which 64 KiB are kept at most. Where there is no room for one
    /// more, the oldest one gives way that has not shown yet who it is, of the network address that most come
    /// from.
    pub strangers: usize,
    /// Time for a connection to say what it wants, and to prove who it is.
    pub introduction: Duration,
    /// Sessions at a time, with those that are being made; at most 1000 for each kind of device.
    pub sessions: usize,
    /// Sessions at a time of one key. A client can make the host use up to 5 MiB of memory for each.
    pub sessions_per_key: usize,
}

impl Limits {
    /// Returns how many sessions can be in making: fewer than strangers, so that the streams that they wait for can come in.
    pub(super) fn in_making(&self) -> usize {
        self.strangers.div_ceil(2)
    }

    /// Returns how many of them can have one key, so that one key leaves room for others.
    pub(super) fn in_making_per_key(&self) -> usize {
        self.in_making().div_ceil(4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { strangers: 256, introduction: Duration::from_secs(5), sessions: 1000, sessions_per_key: 250 }
    }
}
