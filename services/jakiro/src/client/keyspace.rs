//! The partitions of a store as a client sees them: the session with each, and the calls.
//!
//! # Concurrency
//! Any thread may use it; no locks.

use std::sync::Arc;

use rdmabox::Session;

use super::error::ClientError;
use crate::{
    protocol::{Request, ValueReply},
    store::Key,
};

/// Sessions with all partitions of a store.
#[derive(Debug)]
pub(super) struct Keyspace {
    /// Indexed by partition.
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) seed: u64,
    pub(super) max_value: usize,
}

impl Keyspace {
    /// Checks a key. Returns its partition.
    pub(super) fn partition(&self, key: &[u8]) -> Result<usize, ClientError> {
        Ok(Key::new(key, self.seed)?.partition(self.sessions.len()))
    }

    /// Makes a call. The reply replaces the content of `reply`.
    pub(super) fn call_raw(
        &self,
        partition: usize,
        request: &Request<'_>,
        bytes: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) -> Result<(), ClientError> {
        bytes.clear();
        request.encode(bytes);
        let failed = |source| ClientError::Request { partition, source };
        self.sessions[partition].call(bytes, reply).map_err(failed)
    }

    /// Makes a call. Leaves the value in `reply`, and returns the end of the reply.
    ///
    /// # Errors
    /// Also for a reply whose status is an error.
    pub(super) fn call(
        &self,
        partition: usize,
        request: &Request<'_>,
        bytes: &mut Vec<u8>,
        reply: &mut Vec<u8>,
    ) -> Result<ValueReply, ClientError> {
        self.call_raw(partition, request, bytes, reply)?;
        let ending = ValueReply::take(reply).map_err(|reason| ClientError::Reply { partition, reason })?;
        ClientError::check(ending.status)?;
        Ok(ending)
    }
}
