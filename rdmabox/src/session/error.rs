//! Errors of hosts and sessions.
//!
//! # Concurrency
//! Plain values.

use std::{io, time::Duration};

use super::address::Address;
use crate::{auth::LimitsError, mapping::MemoryError, provider::rdma::RdmaError, verbs::VerbsError};

/// Error of connecting a session. Nothing is left behind; a retry is safe.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The operating system reported an error.
    #[error("{address}: {source}")]
    Io {
        /// Address of the host.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The host did not answer in time.
    #[error("{address}: no answer within {timeout:?}")]
    Timeout {
        /// Address of the host.
        address: Address,
        /// The timeout.
        timeout: Duration,
    },
    /// The host refused the client, or the options do not fit.
    #[error("{address}: {reason}")]
    Refused {
        /// Address of the host.
        address: Address,
        /// The reason.
        reason: String,
    },
}

/// Error of starting a host or exporting memory.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Listening on an address failed, so the host listens on none.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// The device reported an error.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No memory to export.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// There is no device for an RDMA address.
    #[error("cannot listen on {address}: {source}")]
    Rdma {
        /// The address.
        address: Address,
        /// The missing part.
        source: RdmaError,
    },
    /// Clients of several kinds would change the same words with atomics that are not atomic
    /// towards each other.
    #[error(
        "cannot serve atomics on {address} beside RDMA: atomics of {device} are not atomic towards clients over TCP \
         and shared memory, and updates of words would be lost: listen on rdma: addresses only, or allow it \
         (--allow-mixed-atomics) and change each word over one of them only"
    )]
    MixedAtomics {
        /// The address that is not for RDMA.
        address: Address,
        /// The RDMA device.
        device: String,
    },
    /// Local clients did not finish their requests on withdrawn memory in time. Their sessions are
    /// being ended. They may still access the memory, until
    /// [`Service::disconnected`](crate::Service::disconnected) was called for each of them.
    #[error("sessions {sessions:?} may still access the withdrawn memory: their clients do not respond")]
    StillMapped {
        /// Numbers of the sessions ([`Peer::id`](crate::Peer::id)), in ascending order.
        sessions: Vec<u64>,
    },
    /// An RDMA device did not stop, and may still access the withdrawn memory. It must not be
    /// reused before the process ends.
    #[error("the RDMA device has not stopped, and may still access the withdrawn memory")]
    DeviceStuck,
    /// A value of [`Limits`](crate::Limits) is out of its range. Nothing was started.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// Starting a thread failed.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
