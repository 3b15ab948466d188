//! The record of a store that has registered.
//!
//! # Concurrency
//! Plain values.

use std::io;

use rdmabox::Address;
use serde::{Deserialize, Serialize};

use super::{
    pool_view::{read_address, write_address},
    server_record::{host_name, random_name},
};

/// A store that has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRecord {
    /// The address under which the server and its clients reach it.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub address: Address,
    /// Bytes that it lends at most.
    #[serde(default)]
    pub memory_bytes: u64,
    /// A random name of this run of the store. It is not the store's incarnation, which is secret.
    pub run: String,
    /// Name of its machine.
    #[serde(default)]
    pub host: String,
    /// Number of its process there.
    #[serde(default)]
    pub pid: u32,
}

impl StoreRecord {
    /// Returns the record of a store in this process.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn of_this_process(address: Address, memory_bytes: u64) -> io::Result<StoreRecord> {
        let (run, host, pid) = (random_name()?, host_name(), std::process::id());
        Ok(StoreRecord { address, memory_bytes, run, host, pid })
    }
}
