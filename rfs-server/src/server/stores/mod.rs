//! The stores whose memory an export uses: how the server takes them over, reaches them, fences
//! sessions, and shows them.
//!
//! # Concurrency
//! See the modules. Locks of the members are held for moments, and none while a store is asked.

mod lost_report;
mod member;
mod pool_stores;
mod watch;

use std::path::PathBuf;

use pool::OwnerError;
use rdmabox::{Address, KeyFileError};

pub(super) use member::PoolStore;
pub(super) use pool_stores::PoolStores;
pub(super) use watch::StoreWatch;

/// Default length of the pieces of a file that stores take in turn.
pub const DEFAULT_STRIPE_UNIT: u64 = 1 << 20;

/// Stores whose memory the server uses in addition to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoresConfig {
    /// Addresses of the stores, as the server and its clients reach them.
    pub addresses: Vec<Address>,
    /// File with the key of the pool.
    pub key: PathBuf,
    /// Length of the pieces of a file that stores take in turn.
    pub unit: u64,
}

/// Why the stores cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The key file is missing, invalid, or accessible to other users.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A store cannot be taken over.
    #[error("--store-at: {0}")]
    Join(#[from] OwnerError),
    /// A store lends less than a block, or more than a place can name.
    #[error("--store-at {address}: the store lends {len} bytes, which cannot be used")]
    Len {
        /// The store.
        address: Address,
        /// Bytes that it lends.
        len: u64,
    },
}
