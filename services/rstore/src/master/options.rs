//! Settings of a master, and the errors of its start.
//!
//! # Concurrency
//! Plain values.

use std::{io, path::PathBuf, time::Duration};

use rdmabox::{Address, Domain, Fencing, Grant, Host, HostError, Key, SessionOptions};

use super::log::LogError;
use crate::machine::Settings;

/// Settings of a master.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MasterOptions {
    /// Settings of the pool.
    pub settings: Settings,
    /// The file of the log. Without one, a restarted master knows nothing.
    pub log: Option<PathBuf>,
    /// Keys of clients and stores.
    pub keys: Vec<Key>,
    /// Serves every program that reaches a network address, if there are no keys.
    pub allow_without_keys: bool,
    /// A client or store that is silent for this long is disconnected.
    pub silence: Duration,
    /// Options of the sessions to stores, such as a key.
    pub session: SessionOptions,
}

impl MasterOptions {
    /// Returns the settings of a master of this user and of root on this machine, without a log.
    pub fn new(settings: Settings) -> MasterOptions {
        MasterOptions {
            settings,
            log: None,
            keys: Vec::new(),
            allow_without_keys: false,
            silence: Duration::from_secs(5),
            session: SessionOptions::default(),
        }
    }

    pub(super) fn check(&self, addresses: &[Address]) -> Result<(), MasterError> {
        let bytes = self.settings.chunk_bytes;
        if bytes == 0 || !bytes.is_multiple_of(4096) || bytes > 1 << 40 {
            return Err(MasterError::Chunk(bytes));
        }
        let needs_keys = self.keys.is_empty() && !self.allow_without_keys;
        match addresses.iter().find(|address| needs_keys && address.is_network()) {
            Some(address) => Err(MasterError::WithoutKeys(address.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn host(&self) -> Result<Host, HostError> {
        let host =
            Host::new()?.any_local_user(self.allow_without_keys).fencing(Fencing::new(self.silence, false));
        match &self.keys[..] {
            [] => Ok(host),
            keys => Ok(host.keys(Grant::keyring(keys, Domain::default()))),
        }
    }
}

/// Why a master did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasterError {
    /// The length of a chunk.
    #[error("a chunk of {0} bytes: the length is a multiple of 4 KiB, from 4 KiB to 1 TiB")]
    Chunk(u64),
    /// A network address, and no keys.
    #[error(
        "{0} is a network address, and without keys every program that reaches it can read and write the store: \
         give keys, or allow it"
    )]
    WithoutKeys(Address),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The host could not listen.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The system has no random numbers.
    #[error("getrandom failed: {0}")]
    Random(getrandom::Error),
    /// The system started no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
