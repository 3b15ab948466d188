//! A store: a process, or a part of one, that lends chunks of memory.
//!
//! A [`Store`] is an rdmabox host. The owner of the pool proves itself with the store's
//! [`Incarnation`], and gives orders. Clients introduce themselves, learn where chunks are, and
//! read and write them without code of the store. A chunk stays registered until it is discarded,
//! however often its use changes.
//!
//! # Concurrency
//! See the modules.

mod chunks;
mod options;
mod orders;
mod service;
mod visitors;
mod waits;

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
};

use rdmabox::{Address, HostHandle, Service};

pub use self::options::{StoreError, StoreOptions};
use self::{chunks::Chunks, orders::Worker, service::Lending};
use crate::{ids::Incarnation, message::StoreReport};

/// Memory that this process lends, until it is dropped. The drop ends the sessions of all clients.
#[derive(Debug)]
pub struct Store {
    lending: Arc<Lending>,
    worker: Option<JoinHandle<()>>,
    host: Option<Arc<HostHandle>>,
}

impl Store {
    /// Starts to listen at these addresses. The store has no chunks until its owner orders some.
    ///
    /// # Errors
    /// As [`StoreError`] says; nothing is left behind. A retry is safe.
    pub fn listen(addresses: &[Address], options: &StoreOptions) -> Result<Store, StoreError> {
        options.check(addresses)?;
        let (host, domains) = options.host()?;
        let (worker, orders) = Worker::new();
        let lending = Arc::new(Lending::new(options, orders));
        let host = Arc::new(host.listen(addresses, Arc::clone(&lending) as Arc<dyn Service>)?);
        lending.begin(host.ender());
        let chunks = Chunks::new(Arc::downgrade(&host), domains, options.capacity);
        lending.lend(chunks);
        let worker = worker.start(Arc::downgrade(&lending)).map_err(StoreError::Thread)?;
        Ok(Store { lending, worker: Some(worker), host: Some(host) })
    }

    /// Returns the addresses of the store, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        self.host.as_ref().map(|host| host.addresses()).unwrap_or_default()
    }

    /// Returns the number of this run, which only the owner of the pool may learn.
    pub fn incarnation(&self) -> Incarnation {
        self.lending.incarnation()
    }

    /// Returns the numbers of the store.
    pub fn report(&self) -> StoreReport {
        self.lending.report()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.lending.stop();
        if let Some(worker) = self.worker.take() {
            // A worker that panicked has said so.
            let _ = worker.join();
        }
        // Ends the sessions. The exports keep no handle of the host alive.
        let host: Option<Weak<HostHandle>> = self.host.take().map(|host| Arc::downgrade(&host));
        drop(host);
    }
}
