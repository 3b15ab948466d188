//! NessieSD: the server-driven twin of the store, for comparison.
//!
//! A key belongs to one server by its hash. Index and data of the key are there, and a client sends
//! it each operation as a call, which a thread of the server executes. The tables and the machines
//! of operations are those of the client-driven store, so that only the way of driving differs.

use std::sync::Arc;

use rdmabox::{RequestError, Session};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    error::{NessieError, failed},
    node::Command,
};

/// Seed of the hash that selects the server. No slot of a key has it.
const SERVER_SEED: u64 = u64::MAX;

/// A client of a server-driven store.
#[derive(Debug)]
pub struct ServerDriven {
    servers: Vec<Arc<Session>>,
}

impl ServerDriven {
    /// Uses one session to each server. All clients need the same order.
    ///
    /// # Panics
    /// If there is no server.
    pub fn new(servers: Vec<Arc<Session>>) -> ServerDriven {
        assert!(!servers.is_empty(), "no server");
        ServerDriven { servers }
    }

    fn call(&self, key: &[u8], command: &Command, reply: &mut Vec<u8>) -> Result<(), NessieError> {
        let server = xxh3_64_with_seed(key, SERVER_SEED) % self.servers.len() as u64;
        self.servers[server as usize].call(&command.encode(), reply).map_err(|e| match e {
            RequestError::Rejected { reason } => NessieError::Command(reason),
            other => failed(server as u16, &other),
        })
    }

    /// Returns the value of a key, or `None` if it has none.
    ///
    /// # Errors
    /// [`NessieError::Unreachable`] and [`NessieError::Command`]. A retry is safe.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, NessieError> {
        let mut reply = Vec::new();
        self.call(key, &Command::Get(key.to_vec()), &mut reply)?;
        Ok(reply.strip_prefix(b"+").map(<[u8]>::to_vec))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// As for [`Self::get`]. After [`NessieError::Unreachable`] the value may be stored.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError> {
        self.call(key, &Command::Put(key.to_vec(), value.to_vec()), &mut Vec::new())
    }

    /// Removes the value of a key.
    ///
    /// # Errors
    /// As for [`Self::put`].
    pub fn delete(&self, key: &[u8]) -> Result<(), NessieError> {
        self.call(key, &Command::Delete(key.to_vec()), &mut Vec::new())
    }
}
