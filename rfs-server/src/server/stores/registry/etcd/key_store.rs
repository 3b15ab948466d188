//! The operations that the registry needs of etcd, and its names for them.
//!
//! The gateway implements it for a running etcd, and a fake for tests.
//!
//! # Concurrency
//! Any thread. A call returns within a few seconds, except a watch.

use std::{fmt, ops::ControlFlow, time::Duration};

/// Keys with revisions, changed by compare-and-swap, and leases.
pub(super) trait KeyStore: fmt::Debug + Send + Sync {
    /// Returns the key store in words.
    fn place(&self) -> String;

    /// Returns all entries whose keys begin so, and the revision at which that is true.
    fn list(&self, prefix: &str) -> Result<Listing, KeyStoreError>;

    /// Writes all entries if all guards hold, and returns the revision. Returns `None` if a guard
    /// does not hold; then nothing is written. After [`KeyStoreError::Away`] it is not known.
    fn put_if(&self, guards: &[Guard<'_>], puts: &[Put<'_>]) -> Result<Option<i64>, KeyStoreError>;

    /// Makes a lease that ends when it was not kept alive for this time.
    fn grant(&self, time: Duration) -> Result<Lease, KeyStoreError>;

    /// Returns false if the lease has ended.
    fn keep_alive(&self, lease: Lease) -> Result<bool, KeyStoreError>;

    /// Returns the rest of a lease, in whole seconds. `None` if it has ended.
    fn rest_of(&self, lease: Lease) -> Result<Option<Duration>, KeyStoreError>;

    /// Ends a lease, with the entries that have it.
    fn revoke(&self, lease: Lease) -> Result<(), KeyStoreError>;

    /// Calls `changed` with each group of changes from a revision on, until it breaks, or until the
    /// watch ends: after minutes, or with the connection.
    fn watch(
        &self,
        prefix: &str,
        from: i64,
        changed: &mut dyn FnMut(Vec<KeyChange>) -> ControlFlow<()>,
    ) -> Result<(), KeyStoreError>;
}

/// A lease. Zero is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease(pub(super) i64);

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// The revision of its last change.
    pub(super) revision: i64,
    pub(super) lease: Lease,
}

/// Entries at a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) revision: i64,
    pub(super) entries: Vec<Entry>,
}

impl Listing {
    /// Returns the entry of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

/// A condition: the last change of a key has this revision. Zero: there is no such key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard<'a> {
    pub(super) key: &'a str,
    pub(super) revision: i64,
}

/// An entry to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a [u8],
    pub(super) lease: Option<Lease>,
}

/// A change that a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyChange {
    /// The entry of a key is this one.
    Put(Entry),
    /// A key has no entry any more.
    Deleted(String),
}

/// Why a key store did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyStoreError {
    /// It did not answer in time, or its answer is none of etcd. The effect is not known.
    #[error("{0}")]
    Away(String),
    /// It answered, and refused.
    #[error("{0}")]
    Refused(String),
}
