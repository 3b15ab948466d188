//! The status of a reply, and the error of bytes that are no message.
//!
//! # Concurrency
//! Plain values.

use crate::store::{StoreError, StoreOutcome};

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends too early.
    #[error("a message that ends early")]
    Short,
    /// The message has bytes behind its end.
    #[error("a message with bytes behind its end")]
    Long,
    /// A field has a value that is not defined.
    #[error("field {0} has an undefined value")]
    Field(&'static str),
    /// The message is of another version of the protocol.
    #[error(
        "a message of version {0} of the protocol, and this side has version {version}: use client and server of \
         one release",
        version = super::VERSION
    )]
    Version(u8),
}

/// The lower half of the last byte of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Status {
    /// The operation has succeeded.
    Done = 0,
    /// There is no item with the key.
    Missing = 1,
    /// The condition of a change does not hold.
    NotStored = 2,
    /// The item has another version.
    OtherVersion = 3,
    /// The value is longer than the limit of the store.
    ValueTooLong = 4,
    /// Transfers hold the memory.
    Full = 5,
    /// The value is no number.
    NotANumber = 6,
    /// The session has no such transfer, or too many transfers.
    NoTransfer = 7,
    /// The key belongs to another partition: the client has another seed or number of partitions.
    OtherPartition = 8,
}

impl Status {
    const ALL: [Status; 9] = [
        Status::Done,
        Status::Missing,
        Status::NotStored,
        Status::OtherVersion,
        Status::ValueTooLong,
        Status::Full,
        Status::NotANumber,
        Status::NoTransfer,
        Status::OtherPartition,
    ];

    /// Returns the code of the protocol.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the status of a code.
    ///
    /// # Errors
    /// [`DecodeError::Field`] for an undefined code.
    pub fn of_code(code: u8) -> Result<Status, DecodeError> {
        Self::ALL.get(usize::from(code)).copied().ok_or(DecodeError::Field("status"))
    }

    /// Returns the status of an outcome without its version.
    pub fn of_outcome(outcome: StoreOutcome) -> Status {
        match outcome {
            StoreOutcome::Stored(_) => Status::Done,
            StoreOutcome::NotStored => Status::NotStored,
            StoreOutcome::OtherVersion => Status::OtherVersion,
            StoreOutcome::NotFound => Status::Missing,
        }
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Status {
        match error {
            StoreError::ValueTooLong => Status::ValueTooLong,
            StoreError::Full => Status::Full,
            StoreError::NotANumber => Status::NotANumber,
        }
    }
}
