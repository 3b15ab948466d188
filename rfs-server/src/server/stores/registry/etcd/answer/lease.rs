//! Answers about leases: grants, renewals and questions.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use serde::Deserialize;

use super::{
    super::key_store::{KeyStoreError, Lease},
    fields::Int,
};

/// A lease, as the answers to a grant, to a renewal and to a question have it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct LeaseAnswer {
    #[serde(rename = "ID")]
    id: Int,
    #[serde(rename = "TTL")]
    seconds: Int,
    error: String,
}

impl LeaseAnswer {
    /// Returns the lease of a grant.
    ///
    /// # Errors
    /// There is no lease in the answer.
    pub(in super::super) fn granted(self) -> Result<Lease, KeyStoreError> {
        match (self.id.0, self.error.is_empty()) {
            (0, true) => Err(KeyStoreError::Away("its answer has no lease".into())),
            (id, true) => Ok(Lease(id)),
            (_, false) => Err(KeyStoreError::Refused(self.error.escape_debug().to_string())),
        }
    }

    /// Returns the rest of the lease in seconds; `None` if it has ended.
    pub(in super::super) fn rest(&self) -> Option<u64> {
        u64::try_from(self.seconds.0).ok()
    }
}

/// The answer to a renewal. A lease that has ended has no time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(in super::super) struct RenewalAnswer {
    result: LeaseAnswer,
}

impl RenewalAnswer {
    pub(in super::super) fn is_alive(&self) -> bool {
        self.result.seconds.0 > 0
    }
}
