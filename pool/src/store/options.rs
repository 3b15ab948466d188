//! Settings of a store, and the errors of its start.
//!
//! # Concurrency
//! Plain values.

use std::{io, sync::Arc, time::Duration};

use rdmabox::{Address, Domain, Fencing, Grant, Host, HostError, Key};

use crate::{ids::Incarnation, ticket::PoolKeys};

/// Settings of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Most bytes that the store lends, without the marks of chunks.
    pub capacity: u64,
    /// Keys of clients and of the owner. Each key reaches all chunks.
    pub keys: Vec<Key>,
    /// Key of the pool. The owner has it, and takes the store over with it. Clients have tickets
    /// ([`Ticket`](crate::Ticket)), and introduce themselves as their ticket says. Excludes `keys`.
    pub pool_key: Option<Key>,
    /// Serves every program that reaches a network address, if there are no keys.
    pub allow_without_keys: bool,
    /// Kills a local client that keeps memory mapped 3 seconds after its access was ended. Without
    /// it, the store waits until the process of the client ends.
    pub kill: bool,
    /// The random number of this run.
    pub incarnation: Incarnation,
}

impl StoreOptions {
    /// Returns the settings of a store of this user and of root on this machine, without keys.
    pub fn new(capacity: u64, incarnation: Incarnation) -> StoreOptions {
        StoreOptions {
            capacity,
            keys: Vec::new(),
            pool_key: None,
            allow_without_keys: false,
            kill: false,
            incarnation,
        }
    }

    /// Refuses network addresses without keys.
    pub(super) fn check(&self, addresses: &[Address]) -> Result<(), StoreError> {
        let has_keys = !self.keys.is_empty() || self.pool_key.is_some();
        let needs_keys = !has_keys && !self.allow_without_keys;
        match addresses.iter().find(|address| needs_keys && address.is_network()) {
            Some(address) => Err(StoreError::WithoutKeys(address.clone())),
            None => Ok(()),
        }
    }

    /// Makes the host, and the domains of its chunks.
    pub(super) fn host(&self) -> Result<(Host, Domains), HostError> {
        let fencing = Fencing::new(None::<Duration>, self.kill);
        let host = Host::new()?.any_local_user(self.allow_without_keys).fencing(fencing);
        if let Some(pool) = &self.pool_key {
            let domain = host.domain()?;
            let read_only = host.domain()?;
            let keys = PoolKeys { pool: pool.clone(), domain, read_only };
            return Ok((host.keys(Arc::new(keys)), Domains { write: domain, read: Some(read_only) }));
        }
        if self.keys.is_empty() {
            return Ok((host, Domains { write: Domain::default(), read: None }));
        }
        let domain = host.domain()?;
        let domains = Domains { write: domain, read: None };
        Ok((host.keys(Grant::keyring(&self.keys, domain)), domains))
    }
}

/// The domains that chunks are registered in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Domains {
    /// Of clients that may write.
    pub(super) write: Domain,
    /// Of clients that may only read, if there can be some.
    pub(super) read: Option<Domain>,
}

/// Why a store did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A network address, and no keys.
    #[error(
        "{0} is a network address, and without keys every program that reaches it can read and write the lent \
         memory: give keys, or allow it"
    )]
    WithoutKeys(Address),
    /// The host could not listen.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The system started no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
