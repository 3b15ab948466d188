//! The record of the server that has a pool.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, io};

use rdmabox::Address;
use serde::{Deserialize, Serialize};

/// The server that has a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerRecord {
    /// A random name of this run of the server.
    pub(crate) run: String,
    /// Name of its machine.
    pub(crate) host: String,
    /// Number of its process there.
    pub(crate) pid: u32,
    /// Its addresses.
    pub(crate) addresses: Vec<String>,
}

impl ServerRecord {
    /// Returns the record of this process.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn of_this_process(addresses: &[Address]) -> io::Result<ServerRecord> {
        Ok(ServerRecord {
            run: random_name()?,
            host: host_name(),
            pid: std::process::id(),
            addresses: addresses.iter().map(Address::to_string).collect(),
        })
    }
}

impl fmt::Display for ServerRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A record is input: a terminal obeys some bytes.
        write!(f, "process {} on {}", self.pid, self.host.escape_debug())?;
        match self.addresses.first() {
            Some(address) => write!(f, " at {}", address.escape_debug()),
            None => Ok(()),
        }
    }
}

/// Returns a random name of 32 hexadecimal digits.
pub(super) fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Returns the name of this machine.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
