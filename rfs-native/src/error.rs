//! Errors of the API: the call, its object, and the reason with an error number.

use std::{fmt, io, path::Path};

use rfs_client::{AttachError, ClientError};
use rfs_proto::Errno;

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call: its name, its object, and the reason.
///
/// [`errno`](Error::errno) has the number that a system call on a mount would set. An
/// [`io::Error`] can be made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    call: &'static str,
    object: Box<str>,
    reason: ClientError,
}

impl Error {
    pub(crate) fn new(call: &'static str, object: impl Into<Box<str>>, reason: ClientError) -> Error {
        Error { call, object: object.into(), reason }
    }

    /// Returns the error number of Linux.
    pub fn errno(&self) -> i32 {
        self.reason.errno().0.into()
    }

    /// Returns the name of the failed call.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Returns the reason.
    pub fn reason(&self) -> &ClientError {
        &self.reason
    }

    /// Returns true if the call may have taken effect: the session was lost, or a timeout passed,
    /// before the outcome was known. A repetition is safe only if doing the call twice is.
    pub fn may_have_happened(&self) -> bool {
        !matches!(self.reason, ClientError::Errno(_) | ClientError::Bad { .. } | ClientError::Unchecked)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.call, self.object, self.reason)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.reason)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(kind, error)
    }
}

/// The reason why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The text is no address of a server.
    #[error("{0}")]
    Address(String),
    /// The key file or the TLS files cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// The server cannot be reached, or refuses the session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The system has no thread for the mount.
    #[error("cannot start the thread that receives recalls: {0}")]
    Thread(io::Error),
    /// The server ended the session right away.
    #[error("cannot announce this mount to the server: {0}")]
    Announce(ClientError),
}

impl ConnectError {
    /// Returns the error number of Linux that describes the reason best.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            ConnectError::Address(_) => Errno::EINVAL,
            ConnectError::Credentials(_) => Errno::EACCES,
            ConnectError::Thread(_) => Errno::EAGAIN,
            ConnectError::Announce(reason) => reason.errno(),
            ConnectError::Attach(reason) => match reason {
                AttachError::Attach { source, .. } => source.errno(),
                AttachError::Key { .. } | AttachError::ReadOnlyKey { .. } => Errno::EACCES,
                AttachError::Export { .. } => Errno::ENOENT,
                AttachError::NotAlone { .. } | AttachError::Taken { .. } => Errno::EBUSY,
                AttachError::Unchecked { .. } | AttachError::Evicting { .. } => Errno::EOPNOTSUPP,
                AttachError::Connect(_) | AttachError::Random(_) => Errno::EHOSTUNREACH,
            },
        };
        errno.0.into()
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        let kind = io::Error::from_raw_os_error(error.errno()).kind();
        io::Error::new(kind, error)
    }
}

/// Returns a function that adds a call and its path to an error.
pub(crate) fn at(call: &'static str, path: &Path) -> impl FnOnce(ClientError) -> Error {
    move |reason| Error::new(call, path.display().to_string(), reason)
}

/// Returns a function that adds a call and the number of its inode to an error.
pub(crate) fn on(call: &'static str, ino: u64) -> impl FnOnce(ClientError) -> Error {
    move |reason| Error::new(call, format!("inode {ino}"), reason)
}

#[cfg(test)]
mod tests {
    use rdmabox::RequestError;

    use super::*;

    #[test]
    fn errors_name_call_object_and_number() {
        let error = at("open", Path::new("/a/b"))(Errno::ENOENT.into());
        assert_eq!(error.to_string(), "open /a/b: no such file or directory (ENOENT)");
        assert_eq!((error.errno(), error.call(), error.may_have_happened()), (2, "open", false));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
        let lost = on("write", 7)(RequestError::Disconnected.into());
        assert_eq!((lost.errno(), lost.may_have_happened()), (112, true));
    }
}
