//! Names of stores, chunks and clients.
//!
//! The owner of the pool (for example RStore's master) assigns the numbers of stores and clients.
//! A store assigns the numbers of its chunks, and uses none of them twice while it runs.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, io};

use serde::{Deserialize, Serialize};

/// A store of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoreId(pub u16);

/// A client of a pool. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// A chunk of memory at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    /// The store that has the memory.
    pub store: StoreId,
    /// Number of the chunk at its store.
    pub number: u32,
}

/// A random number that tells one run of a store from the next run at the same address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// Returns a random number.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> io::Result<Incarnation> {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Incarnation(u128::from_le_bytes(number)))
    }
}

impl fmt::Debug for Incarnation {
    // The number also authenticates the owner of the pool to its stores.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({:08x}..)", (self.0 >> 96) as u32)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} of {}", self.number, self.store)
    }
}
