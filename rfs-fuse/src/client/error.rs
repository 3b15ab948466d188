//! What can go wrong, and the one place where it becomes an error number.
//!
//! | what happened | errno |
//! |-|-|
//! | the server said so | the server's own |
//! | no completion or reply within the timeout | ETIMEDOUT |
//! | the session is closed, the peer is gone, its queue pair is flushed | EHOSTDOWN |
//! | a one-sided operation was refused or failed | EIO |
//! | rdmabox found the request impossible | EIO |
//! | a message or layout that makes no sense, a reply of the wrong kind | EPROTO |
//! | the file's space kept changing under an operation | EIO |
//! | a block is not what its checksum says | EIO |
//! | another client was appending all the time | ETIMEDOUT |
//! | a block was being written all the time | ETIMEDOUT |
//! | the file system is not to be shared | EBUSY |
//! | there are no checksums | EOPNOTSUPP |

use rdmabox::{RequestError, WcStatus};
use rfs_proto::{DecodeError, Errno, InUse};

/// The peer is gone (Linux EHOSTDOWN).
const EHOSTDOWN: Errno = Errno(112);

/// A failed client operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused, or this side did so in the server's place.
    #[error("{0}")]
    Errno(Errno),
    /// The session failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The server's reply is no message.
    #[error("unreadable reply: {0}")]
    Decode(#[from] DecodeError),
    /// The server broke the protocol.
    #[error("the server breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The space of a file kept changing while it was read or written.
    #[error("the file was truncated again and again during the operation")]
    Unstable,
    /// Bytes of a file are not those that were written.
    #[error(
        "inode {ino}: the block at {offset}, at {arena} in the arena, is bad: its check is {found:08x}, not {expected:08x}"
    )]
    Bad {
        /// Whose.
        ino: u64,
        /// Where it begins in the file.
        offset: u64,
        /// And in the arena.
        arena: u64,
        /// The check of what was written.
        expected: u32,
        /// That of what is there.
        found: u32,
    },
    /// A block that is read is being written, and does not come to rest.
    #[error("inode {ino}: the block at {offset} has been being written for too long")]
    BeingWritten {
        /// Whose.
        ino: u64,
        /// Where it begins in the file.
        offset: u64,
    },
    /// Others are attached, and one of them, or this one, is not to have any beside it.
    #[error("{} others are attached", .0.sessions)]
    InUse(InUse),
    /// The memory has no checksums, and they were insisted on.
    #[error("the server's memory has no checksums")]
    Unchecked,
    /// Another client holds the end of the file, and does not get on.
    #[error("session {0} has been appending to the file for too long")]
    Appending(u64),
}

impl ClientError {
    /// The error number that a caller of the file system sees.
    pub fn errno(&self) -> Errno {
        match self {
            ClientError::Errno(errno) => *errno,
            ClientError::Request(e) => errno_of_request(e),
            ClientError::Decode(
                DecodeError::TooLong(_)
                | DecodeError::Truncated
                | DecodeError::Trailing(_)
                | DecodeError::Malformed,
            ) => Errno::EPROTO,
            ClientError::Protocol(_) => Errno::EPROTO,
            ClientError::Unstable | ClientError::Bad { .. } => Errno::EIO,
            ClientError::Appending(_) | ClientError::BeingWritten { .. } => Errno::ETIMEDOUT,
            ClientError::InUse(_) => Errno::EBUSY,
            ClientError::Unchecked => Errno::EOPNOTSUPP,
        }
    }
}

impl From<Errno> for ClientError {
    fn from(errno: Errno) -> ClientError {
        ClientError::Errno(errno)
    }
}

/// The error number for a failed request.
pub fn errno_of_request(error: &RequestError) -> Errno {
    match error {
        RequestError::Completion(status) => errno_of_completion(*status),
        RequestError::Timeout(_) => Errno::ETIMEDOUT,
        RequestError::Disconnected => EHOSTDOWN,
        RequestError::Cancelled => Errno::EINTR,
        RequestError::Flushed | RequestError::Unanswered | RequestError::Invalid(_) => Errno::EIO,
    }
}

/// The error number for a completion status.
pub fn errno_of_completion(status: WcStatus) -> Errno {
    match status {
        WcStatus::WrFlushErr | WcStatus::RetryExcErr => EHOSTDOWN,
        WcStatus::RnrRetryExcErr => Errno::ETIMEDOUT,
        WcStatus::Success
        | WcStatus::LocLenErr
        | WcStatus::LocQpOpErr
        | WcStatus::LocProtErr
        | WcStatus::RemInvReqErr
        | WcStatus::RemAccessErr
        | WcStatus::RemOpErr
        | WcStatus::GeneralErr => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_failure_has_its_number() {
        let table = [
            (ClientError::Errno(Errno::ENOSPC), Errno::ENOSPC),
            (RequestError::Timeout(std::time::Duration::from_secs(1)).into(), Errno::ETIMEDOUT),
            (RequestError::Disconnected.into(), EHOSTDOWN),
            (RequestError::Completion(WcStatus::WrFlushErr).into(), EHOSTDOWN),
            (RequestError::Completion(WcStatus::RemAccessErr).into(), Errno::EIO),
            (RequestError::Flushed.into(), Errno::EIO),
            (RequestError::Invalid("x".into()).into(), Errno::EIO),
            (DecodeError::Malformed.into(), Errno::EPROTO),
            (ClientError::Protocol("x"), Errno::EPROTO),
            (ClientError::Unstable, Errno::EIO),
            (ClientError::Bad { ino: 1, offset: 0, arena: 0, expected: 1, found: 2 }, Errno::EIO),
            (ClientError::Appending(3), Errno::ETIMEDOUT),
            (ClientError::BeingWritten { ino: 1, offset: 0 }, Errno::ETIMEDOUT),
            (ClientError::InUse(InUse { sessions: 1, alone: true }), Errno::EBUSY),
        ];
        for (error, errno) in table {
            assert_eq!(error.errno(), errno, "{error}");
        }
    }
}
