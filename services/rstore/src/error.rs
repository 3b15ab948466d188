//! Errors of a client.
//!
//! # Concurrency
//! Plain values.

use pool::{LinkError, TransferError};
use rdmabox::{ConnectError, RequestError, verbs::VerbsError};

use crate::refusal::Refusal;

/// Why a call of the client library failed. [`code`](Self::code) has a number for each kind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The master refused the call, which had no effect.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The master could not be reached. The call had no effect. A retry is safe.
    #[error("cannot connect to the master: {0}")]
    Connect(#[from] ConnectError),
    /// The session with the master ended during the call, which may have had its effect. Mapped
    /// regions can still be read and written. The next call connects again.
    #[error("the master was lost during the call, which may have had its effect: {0}")]
    MasterLost(RequestError),
    /// The reply of the master is not one of this version.
    #[error("unexpected reply of the master: {0}")]
    Protocol(String),
    /// A store could not be reached. A retry is safe.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A read or write failed. Bytes on other stores may have been moved. A retry is safe.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// A range is not in the mapping, or in the region.
    #[error("{len} bytes at offset {offset} are not in the {limit} bytes of the {object}")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the object in bytes.
        limit: u64,
        /// The object: "mapping", "region" or "lease".
        object: &'static str,
    },
    /// The region is still mapped in this process.
    #[error("the region is mapped: drop its mappings and handles before it is freed")]
    StillMapped,
    /// There is no local memory for the mapping.
    #[error("no local memory for a mapping of {len} bytes: {source}")]
    Local {
        /// Length in bytes.
        len: u64,
        /// The reason.
        source: VerbsError,
    },
    /// The region is changed by updates only.
    #[error("the region is copy-on-write: change it with an update")]
    CopyOnWrite,
    /// A worker of a barrier failed, or left before the phase.
    #[error("worker {0} failed")]
    WorkerFailed(usize),
    /// The parties of a barrier did not arrive in time.
    #[error("the barrier was not reached within {0:?}")]
    BarrierTimeout(std::time::Duration),
    /// The client of a worker is lost, so the worker does not reach the barrier any more.
    #[error("worker {0} is lost: its client has ended, or was disconnected for longer than the grace time")]
    WorkerLost(usize),
    /// The client of the coordinator is lost, so no further phase starts.
    #[error(
        "the coordinator is lost: its client has ended, or was disconnected for longer than the grace time"
    )]
    CoordinatorLost,
    /// The coordinator has ended the barrier, usually after the failure of another worker.
    #[error("the coordinator has ended the barrier")]
    BarrierEnded,
}

impl Error {
    /// Returns the number of the kind of error; for a refusal, its own number.
    pub fn code(&self) -> u16 {
        match self {
            Error::Refused(refusal) => refusal.code(),
            Error::Connect(_) => 100,
            Error::MasterLost(_) => 101,
            Error::Protocol(_) => 102,
            Error::Link(_) => 103,
            Error::Transfer(_) => 104,
            Error::OutOfBounds { .. } => 105,
            Error::StillMapped => 106,
            Error::Local { .. } => 107,
            Error::CopyOnWrite => 108,
            Error::WorkerFailed(_) => 109,
            Error::BarrierTimeout(_) => 110,
            Error::WorkerLost(_) => 111,
            Error::CoordinatorLost => 112,
            Error::BarrierEnded => 113,
        }
    }
}
