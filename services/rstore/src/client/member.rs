//! A client of a master, and the namespaces that it makes and finds.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::Address;

use super::{
    connection::{ClientOptions, Connection, unexpected},
    namespace::Namespace,
};
use crate::{
    error::Error,
    proto::{Answer, Request, Status},
};

/// A client of a master. Its clones are one client. The drop of the last one, and of all that was
/// made with it, ends the client's references.
#[derive(Clone, Debug)]
pub struct Client(Arc<Connection>);

impl Client {
    /// Connects to a master.
    ///
    /// # Errors
    /// [`Error::Connect`], and [`Error::Protocol`] if the host is no master. A retry is safe.
    pub fn connect(master: &Address, options: ClientOptions) -> Result<Client, Error> {
        Ok(Client(Arc::new(Connection::open(master, options)?)))
    }

    /// Creates a namespace. It stays until it is deleted.
    ///
    /// # Errors
    /// [`Refusal::NamespaceExists`](crate::Refusal::NamespaceExists) and other reasons of
    /// [`Error`].
    pub fn create(&self, name: &str) -> Result<Namespace, Error> {
        self.namespace(Request::CreateNamespace(name.to_owned()))
    }

    /// Finds a namespace.
    ///
    /// # Errors
    /// [`Refusal::NoSuchNamespace`](crate::Refusal::NoSuchNamespace) and other reasons of
    /// [`Error`].
    pub fn join(&self, name: &str) -> Result<Namespace, Error> {
        self.namespace(Request::JoinNamespace(name.to_owned()))
    }

    fn namespace(&self, request: Request) -> Result<Namespace, Error> {
        match self.0.call(&request)? {
            Answer::Namespace(id) => Ok(Namespace::new(Arc::clone(&self.0), id)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the state of the master in numbers.
    ///
    /// # Errors
    /// As [`Error`] says. A retry is safe.
    pub fn status(&self) -> Result<Status, Error> {
        match self.0.call(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until `count` stores are up, for programs that start with their pool. Returns false if
    /// they are not within the time limit.
    ///
    /// # Errors
    /// As [`Error`] says. A retry is safe.
    pub fn wait_for_stores(&self, count: usize, limit: Duration) -> Result<bool, Error> {
        let begun = Instant::now();
        while self.status()?.stores.iter().filter(|store| store.up).count() < count {
            if begun.elapsed() >= limit {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }

    /// Returns the length of a chunk in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        self.0.chunk_bytes
    }

    /// Returns the number of calls that this client has made to its master. Reads and writes make
    /// none.
    pub fn calls(&self) -> u64 {
        self.0.calls()
    }

    /// Returns the number of stores to which this client is connected.
    pub fn connected_stores(&self) -> usize {
        self.0.stores.connected()
    }
}
