//! Errors of a client.
//!
//! # Concurrency
//! Plain values.

use rdmabox::{Address, ConnectError, RequestError};

use crate::{
    protocol::{DecodeError, Status},
    store::{KeyError, StoreError},
};

/// Why a request of a client failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A partition could not be reached. A retry is safe.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The partition.
        address: Address,
        /// The reason.
        source: ConnectError,
    },
    /// The server is none of this crate, or of another version.
    #[error("{address} is no server of this version of jakiro: {reason}")]
    NotAServer {
        /// The server.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The length of a key is out of its range. No request was made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The store refused the change.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The call failed. After [`RequestError::Disconnected`], connect another client.
    #[error("partition {partition}: {source}")]
    Request {
        /// The partition.
        partition: usize,
        /// The reason.
        source: RequestError,
    },
    /// The reply is none of the protocol.
    #[error("partition {partition} sent {reason}: use client and server of one release")]
    Reply {
        /// The partition.
        partition: usize,
        /// The fault.
        reason: DecodeError,
    },
    /// The server has another hash of keys than at the start of this client.
    #[error("the server was restarted with other partitions: connect again")]
    Restarted,
    /// The session has too many long values under way. A retry is safe.
    #[error("64 threads of this client move long values to one partition: retry, or use more clients")]
    Busy,
}

impl ClientError {
    /// Returns the number of the kind of error. Those below 10 are of single requests, and the
    /// client goes on.
    pub fn code(&self) -> u16 {
        match self {
            ClientError::Key(_) => 1,
            ClientError::Store(error) => 1 + u16::from(error.code()),
            ClientError::Busy => 5,
            ClientError::Connect { .. } => 10,
            ClientError::NotAServer { .. } => 11,
            ClientError::Request { .. } => 12,
            ClientError::Reply { .. } => 13,
            ClientError::Restarted => 14,
        }
    }

    /// Returns true if the server is lost, so that the client must connect again.
    pub fn is_disconnected(&self) -> bool {
        use RequestError::{Cancelled, Invalid, Rejected, Unanswered};
        match self {
            ClientError::Restarted => true,
            ClientError::Request { source, .. } => {
                !matches!(source, Cancelled | Invalid(_) | Rejected { .. } | Unanswered)
            }
            _ => false,
        }
    }

    /// Returns a status that is an outcome, or the error that it stands for.
    pub(super) fn check(status: Status) -> Result<Status, ClientError> {
        match status {
            Status::ValueTooLong => Err(StoreError::ValueTooLong.into()),
            Status::Full => Err(StoreError::Full.into()),
            Status::NotANumber => Err(StoreError::NotANumber.into()),
            Status::NoTransfer => Err(ClientError::Busy),
            Status::OtherPartition => Err(ClientError::Restarted),
            Status::Done | Status::Missing | Status::NotStored | Status::OtherVersion => Ok(status),
        }
    }
}
