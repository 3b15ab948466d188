//! Where it is kept which stores a pool has: the command line, a file, or etcd.
//!
//! All of them implement the trait `Registry`. A server takes its pool, and writes each change of
//! the view before it uses it. With etcd, stores register themselves, and a second server of the
//! same pool is refused. The registry is asked when the pool starts and when it changes, and never
//! for a read or a write.
//!
//! # Concurrency
//! Any thread may call a registry. A call blocks for as long as etcd takes, which has a limit.
//! Callers hold no lock that requests of clients need.

mod error;
pub(crate) mod etcd;
mod pool_file;
mod pool_view;
mod server_record;
mod static_members;
mod store_record;

use std::{fmt, sync::Arc, time::Instant};

pub use error::RegistryError;
pub use etcd::{EtcdUrl, Registration};
pub use pool_file::PoolFileError;
pub(crate) use pool_view::{Member, MemberState, PoolView, RemovedStore};
pub(crate) use server_record::ServerRecord;
pub(crate) use static_members::{CommandLine, FileRegistry};
pub use store_record::StoreRecord;

/// Where it is kept which stores a pool has.
pub(crate) trait Registry: fmt::Debug + Send + Sync {
    /// Returns the registry in words, such as the path of a file. `None`: nothing is kept.
    fn place(&self) -> Option<String>;

    /// Takes the pool for this server. `now` is a time in milliseconds. The epoch of the view is
    /// higher than those of all previous servers, as far as the registry knows them.
    ///
    /// # Errors
    /// Another server has the pool, or the registry cannot be used.
    fn take(&self, now: u64) -> Result<PoolView, RegistryError>;

    /// Replaces the view. The caller makes one change at a time.
    ///
    /// # Errors
    /// The change must not be used. The registry has the old view, or gets it back.
    fn write(&self, view: &PoolView) -> Result<(), RegistryError>;

    /// Says whether changes are possible at the moment. `None` if they always are.
    fn health(&self) -> Option<Health> {
        None
    }

    /// Returns the stores that are registered. `None` if stores do not register here.
    fn registered(&self) -> Option<RegisteredStores> {
        None
    }
}

/// The stores that are registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegisteredStores {
    /// False until the registry was read once. The list may lack stores until then.
    pub(crate) is_read: bool,
    /// Raised by each change of the list.
    pub(crate) change: u64,
    /// The stores by address.
    pub(crate) stores: Arc<Vec<StoreRecord>>,
}

/// Whether a registry can be asked.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// It answers.
    Up,
    /// It does not answer. The pool goes on, and does not change.
    Away {
        /// The time of the first failure.
        since: Instant,
        /// The last reason.
        reason: String,
    },
    /// Another server has taken the pool. This one changes it no more.
    Taken {
        /// The other server, in words.
        by: String,
    },
}
