//! The stores whose memory an export uses: how the server takes them over, reaches them, fences
//! sessions, and shows them.
//!
//! # Concurrency
//! See the modules. Locks of the members are held for moments, and none while a store is asked.

mod lost_report;
mod member;
mod pool_file;
mod pool_stores;
mod watch;

use std::path::PathBuf;

use pool::OwnerError;
use rdmabox::{Address, KeyFileError};

pub(super) use member::PoolStore;
pub use pool_file::PoolFileError;
pub(super) use pool_stores::PoolStores;
pub(super) use watch::StoreWatch;

/// Default length of the pieces of a file that stores take in turn.
pub const DEFAULT_STRIPE_UNIT: u64 = 1 << 20;

/// Where it is written which stores there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// On the command line: addresses of the stores, as the server and its clients reach them.
    Addresses(Vec<Address>),
    /// In this file, which changes with the pool.
    File(PathBuf),
}

/// Stores whose memory the server uses in addition to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoresConfig {
    /// Which stores there are.
    pub members: Membership,
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
    /// The pool file cannot be used.
    #[error(transparent)]
    File(#[from] PoolFileError),
    /// A store cannot be taken over.
    #[error("cannot take a store over: {0}")]
    Join(#[from] OwnerError),
    /// The store is a store of the pool already.
    #[error("{address} is store {number} of this pool already")]
    Known {
        /// The store.
        address: Address,
        /// Its number.
        number: u16,
    },
    /// All numbers of stores are used.
    #[error("this server has given a number to 65,535 stores: restart it")]
    NoNumber,
    /// A store lends less than a block, or more than a place can name.
    #[error("the store at {address} lends {len} bytes, which cannot be used")]
    Len {
        /// The store.
        address: Address,
        /// Bytes that it lends.
        len: u64,
    },
}
