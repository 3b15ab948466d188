//! Why a registry refuses.
//!
//! # Concurrency
//! Plain values.

use super::PoolFileError;

/// Why a registry refuses.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The pool file cannot be used.
    #[error(transparent)]
    File(#[from] PoolFileError),
    /// The registry does not answer.
    #[error(
        "{place} does not answer: {reason}. The pool goes on as it is, and changes when the registry is back: try \
         again"
    )]
    Away {
        /// The registry, in words.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The registry did not answer at the start, for as long as the start waits.
    #[error(
        "{place} does not answer: {reason}. Start etcd, or give its address (--registry), and start again"
    )]
    NoStart {
        /// The registry, in words.
        place: String,
        /// The reason.
        reason: String,
    },
    /// The registry answered, and refused.
    #[error("{place} refuses: {reason}")]
    Refused {
        /// The registry, in words.
        place: String,
        /// The reason.
        reason: String,
    },
    /// A record is none that this program writes.
    #[error("{place}: the record {key} cannot be read: {reason}. Look at it with etcdctl get {key}")]
    Record {
        /// The registry, in words.
        place: String,
        /// Key of the record.
        key: String,
        /// The reason.
        reason: String,
    },
    /// Another server has the pool.
    #[error(
        "{place}: the pool has a server, {by}. Stop that server first; if its machine has failed, this start works \
         {seconds} s after its last sign of life. For another pool, give the key of the pool another name"
    )]
    Taken {
        /// The registry, in words.
        place: String,
        /// The other server, in words.
        by: String,
        /// Seconds after which a server that is silent has lost the pool.
        seconds: u64,
    },
    /// Another server has taken the pool from this one.
    #[error("{place}: another server has taken the pool, {by}: this one changes it no more")]
    Lost {
        /// The registry, in words.
        place: String,
        /// The other server, in words.
        by: String,
    },
    /// The operating system has no thread, or no random numbers.
    #[error("cannot use the registry: {0}")]
    System(#[from] std::io::Error),
}
