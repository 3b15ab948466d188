//! The client's errors, and the one place where they become error numbers.
//!
//! | error | errno |
//! |-|-|
//! | the server refused the request | the server's errno |
//! | no completion or reply within the timeout | ETIMEDOUT |
//! | the session is closed, the peer is gone, its queue pair is flushed | EHOSTDOWN |
//! | a one-sided operation was refused or failed | EIO |
//! | rdmabox rejected the request as invalid | EIO |
//! | a malformed message or layout, a reply of the wrong kind, another version | EPROTO |
//! | the file's layout kept changing during an operation | EIO |
//! | the append lock was held, or a block was being written, for too long | ETIMEDOUT |
//! | the export is in use, and one session demands exclusive use | EBUSY |
//! | the export has no checksums, or the provider lacks an atomic | EOPNOTSUPP |

use rdmabox::{RequestError, WcStatus};
use rfs_proto::{DecodeError, Errno, InUse, OLDEST_VERSION, VERSION};

/// A failed client operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused, or the client refused in its place.
    #[error("{0}")]
    Errno(Errno),
    /// The session failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The server's reply could not be decoded.
    #[error("unreadable reply: {0}")]
    Decode(#[from] DecodeError),
    /// The server violated the protocol.
    #[error("the server violates the protocol: {0}")]
    Protocol(&'static str),
    /// The layout of a file kept changing during a read or write.
    #[error("the file's layout kept changing during the operation")]
    Unstable,
    /// A block of a file does not match its checksum.
    #[error(
        "inode {ino}: the block at {offset}, at {arena} in the arena, is bad: its check is {found:08x}, not {expected:08x}"
    )]
    Bad {
        /// Inode of the file.
        ino: u64,
        /// Offset of the block in the file.
        offset: u64,
        /// Offset of the block in the arena.
        arena: u64,
        /// Check of the written bytes.
        expected: u32,
        /// Check of the bytes that were read.
        found: u32,
    },
    /// A block stayed under write for longer than the reader waits.
    #[error("inode {ino}: the block at {offset} stayed under write for too long")]
    BeingWritten {
        /// Inode of the file.
        ino: u64,
        /// Offset of the block in the file.
        offset: u64,
    },
    /// Other sessions are attached, and this session or one of them demands exclusive use.
    #[error(
        "{} other mount{} the export, and --cache writeback needs it alone",
        .0.sessions, if .0.sessions == 1 { " uses" } else { "s use" }
    )]
    InUse(InUse),
    /// The server has another version of the protocol.
    #[error(
        "the server has protocol version {server}, this program {OLDEST_VERSION} to {VERSION}: upgrade {}",
        if .server < &VERSION { "the server" } else { "this program" }
    )]
    Version {
        /// Version of the server.
        server: u32,
    },
    /// The export has no checksums, and the caller requires them.
    #[error("the server's memory has no checksums")]
    Unchecked,
    /// The session of this number held the append lock of the file for too long.
    #[error("session {0} held the file's append lock for too long")]
    Appending(u64),
}

impl ClientError {
    /// Returns the error number that users of the file system see.
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
            ClientError::Protocol(_) | ClientError::Version { .. } => Errno::EPROTO,
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

/// Returns the error number of a failed request.
pub fn errno_of_request(error: &RequestError) -> Errno {
    match error {
        RequestError::Completion(status) => errno_of_completion(*status),
        RequestError::Timeout(_) => Errno::ETIMEDOUT,
        RequestError::Disconnected => Errno::EHOSTDOWN,
        RequestError::Cancelled => Errno::EINTR,
        RequestError::Flushed
        | RequestError::Unanswered
        | RequestError::Rejected { .. }
        | RequestError::Invalid(_) => Errno::EIO,
        RequestError::Unsupported(_) => Errno::EOPNOTSUPP,
        // An error that this version does not know.
        _ => Errno::EIO,
    }
}

/// Returns the error number of a completion status.
pub fn errno_of_completion(status: WcStatus) -> Errno {
    match status {
        WcStatus::WrFlushErr | WcStatus::RetryExcErr => Errno::EHOSTDOWN,
        WcStatus::RnrRetryExcErr => Errno::ETIMEDOUT,
        WcStatus::Success
        | WcStatus::LocLenErr
        | WcStatus::LocQpOpErr
        | WcStatus::LocProtErr
        | WcStatus::RemInvReqErr
        | WcStatus::RemAccessErr
        | WcStatus::RemOpErr
        | WcStatus::GeneralErr => Errno::EIO,
        // A status that this version does not know.
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use rdmabox::AtomicOp;

    use super::*;

    #[test]
    fn each_error_has_its_errno() {
        let table = [
            (ClientError::Errno(Errno::ENOSPC), Errno::ENOSPC),
            (RequestError::Timeout(std::time::Duration::from_secs(1)).into(), Errno::ETIMEDOUT),
            (RequestError::Disconnected.into(), Errno::EHOSTDOWN),
            (RequestError::Completion(WcStatus::WrFlushErr).into(), Errno::EHOSTDOWN),
            (RequestError::Completion(WcStatus::RemAccessErr).into(), Errno::EIO),
            (RequestError::Flushed.into(), Errno::EIO),
            (RequestError::Invalid("x".into()).into(), Errno::EIO),
            (RequestError::Unsupported(AtomicOp::Max(1)).into(), Errno::EOPNOTSUPP),
            (DecodeError::Malformed.into(), Errno::EPROTO),
            (ClientError::Protocol("x"), Errno::EPROTO),
            (ClientError::Version { server: VERSION + 1 }, Errno::EPROTO),
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
