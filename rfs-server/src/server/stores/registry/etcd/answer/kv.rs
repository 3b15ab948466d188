//! Answers about keys: ranges and transactions.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use serde::Deserialize;

use super::{
    super::key_store::{KeyStoreError, Listing},
    fields::{Header, KeyValue},
};

/// The answer to a range.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct RangeAnswer {
    header: Header,
    kvs: Vec<KeyValue>,
}

impl RangeAnswer {
    /// Returns the entries.
    ///
    /// # Errors
    /// The answer has no revision, which etcd always has.
    pub(in super::super) fn into_listing(self) -> Result<Listing, KeyStoreError> {
        let revision = self.header.revision.0;
        if revision < 1 {
            return Err(KeyStoreError::Away("its answer has no revision".into()));
        }
        let entries = self.kvs.into_iter().filter_map(KeyValue::into_entry).collect();
        Ok(Listing { revision, entries })
    }
}

/// The answer to a transaction.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct TxnAnswer {
    header: Header,
    succeeded: bool,
}

impl TxnAnswer {
    /// Returns the revision of a transaction that was done.
    ///
    /// # Errors
    /// A transaction that was done has no revision.
    pub(in super::super) fn revision(self) -> Result<Option<i64>, KeyStoreError> {
        match (self.succeeded, self.header.revision.0) {
            (false, _) => Ok(None),
            (true, revision @ 1..) => Ok(Some(revision)),
            (true, _) => Err(KeyStoreError::Away("its answer has no revision".into())),
        }
    }
}
