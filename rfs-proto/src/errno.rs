//! Error numbers on the wire: the values of Linux, on every platform.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident = $value:literal $text:literal,)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*

            /// Returns the symbolic name and the meaning of an error number that this protocol
            /// uses.
            pub fn describe(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1 "operation not permitted",
    ENOENT = 2 "no such file or directory",
    EINTR = 4 "interrupted",
    EIO = 5 "input/output error",
    ENXIO = 6 "no such device or address",
    E2BIG = 7 "too long",
    EBADF = 9 "bad file handle",
    EAGAIN = 11 "try again",
    ENOMEM = 12 "out of memory",
    EACCES = 13 "permission denied",
    EBUSY = 16 "busy",
    EEXIST = 17 "file exists",
    EXDEV = 18 "cross-device link",
    ENOTDIR = 20 "not a directory",
    EISDIR = 21 "is a directory",
    EINVAL = 22 "invalid argument",
    ENFILE = 23 "too many open files",
    EFBIG = 27 "file too large",
    ENOSPC = 28 "no space left",
    EROFS = 30 "read-only file system",
    EMLINK = 31 "too many links",
    ERANGE = 34 "out of range",
    EDEADLK = 35 "resource deadlock avoided",
    ENAMETOOLONG = 36 "name too long",
    ENOLCK = 37 "no locks available",
    ENOSYS = 38 "not implemented",
    ENOTEMPTY = 39 "directory not empty",
    ELOOP = 40 "too many symbolic links",
    EPROTO = 71 "protocol error",
    EBADMSG = 74 "data corrupted in transit",
    ENODATA = 61 "no such attribute",
    EOVERFLOW = 75 "value too large",
    EPROTONOSUPPORT = 93 "protocol version not supported",
    EOPNOTSUPP = 95 "operation not supported",
    ETIMEDOUT = 110 "timed out",
    EHOSTDOWN = 112 "host is down",
    EHOSTUNREACH = 113 "no route to host",
    ESTALE = 116 "stale file handle",
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.describe() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.describe() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "error number {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}
