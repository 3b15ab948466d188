//! The stores whose memory an export uses: how the server takes them over, reaches them, fences
//! sessions, and shows them.
//!
//! # Concurrency
//! See the modules; `threads` has the threads. Locks of the members are held for moments, and
//! none while a store is asked.

mod accesses;
mod drain_state;
mod lent_memory;
mod lost_report;
mod member;
mod pool_stores;
pub mod registry;
mod threads;

use std::{io, path::PathBuf};

use pool::OwnerError;
use rdmabox::{Address, Key, KeyFileError};

use registry::{EtcdUrl, FileRegistry, RegistryError};

pub(super) use member::PoolStore;
pub(super) use pool_stores::PoolStores;
pub(super) use threads::{StoreThread, start_drainer, start_fencer, start_newcomers, start_watcher};

/// Default length of the pieces of a file that stores take in turn. The longest request of a mount
/// has 1 MiB, so it reaches four stores at once.
pub const DEFAULT_STRIPE_UNIT: u64 = 256 << 10;

/// Where it is written which stores there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Membership {
    /// On the command line: addresses of the stores, as the server and its clients reach them.
    Addresses(Vec<Address>),
    /// In this file, which changes with the pool.
    File(PathBuf),
    /// In etcd at these addresses, where stores register themselves.
    Etcd(Vec<EtcdUrl>),
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

/// Checks the files that stores need.
///
/// # Errors
/// The key, or the list of the stores, cannot be used.
pub(crate) fn check(config: &StoresConfig) -> Result<(), StoresError> {
    Key::load(&config.key)?;
    if let Membership::File(path) = &config.members {
        FileRegistry::read(path)?;
    }
    Ok(())
}

/// Why the stores cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The key file is missing, invalid, or accessible to other users.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The registry of the stores cannot be used, or it refuses.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The operating system has no random numbers.
    #[error("cannot take a pool: {0}")]
    System(#[from] io::Error),
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
    /// The pool has no such store.
    #[error("there is no store {0:?}: give the number or the address of a store of this pool")]
    NoStore(String),
    /// A store whose memory is lost has nothing to move.
    #[error("store {0} has lost its memory: rfs-server pool remove {0} --lost")]
    Lost(u16),
    /// The store has data that would be lost.
    #[error(
        "store {number} has {} that are in use or that a client may still reach: drain it first \
         (rfs-server pool drain {number}), and wait until it is empty", byte_size::show(*.bytes)
    )]
    InUse {
        /// Number of the store.
        number: u16,
        /// Bytes that are not free.
        bytes: u64,
    },
    /// The memory of a store that does not answer cannot be returned to it.
    #[error(
        "store {0} does not answer: wait for it, or give up the data that files may have there (--lost), if it \
         will never come back"
    )]
    Silent(u16),
    /// A store that answers is given up.
    #[error("store {0} answers: drain it, and remove it without --lost")]
    Answers(u16),
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
