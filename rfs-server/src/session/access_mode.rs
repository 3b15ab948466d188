//! Access rights of a session, and the requests that need write access. No I/O, no locks, no clock.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, str::FromStr};

use rfs_proto::Request;
use seeded_faults::seeded;

/// Access that a key permits to its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// Read everything, and lock. The clients' kernels check permissions.
    Read,
    /// Everything.
    Write,
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AccessMode::Read => "ro",
            AccessMode::Write => "rw",
        })
    }
}

impl FromStr for AccessMode {
    type Err = String;

    fn from_str(text: &str) -> Result<AccessMode, String> {
        match text {
            "ro" => Ok(AccessMode::Read),
            "rw" => Ok(AccessMode::Write),
            _ => Err(format!("invalid right {}: expected ro or rw", rdmabox::shown(text))),
        }
    }
}

impl AccessMode {
    /// Returns true if the rights permit a request.
    pub fn allow(self, request: &Request<'_>) -> bool {
        self == AccessMode::Write || !changes(request) || seeded!(ReaderChanges)
    }
}

/// Returns true for requests that change files or names, or prepare a change. Lists every request,
/// so that the compiler points out new ones.
pub(crate) fn changes(request: &Request<'_>) -> bool {
    match request {
        // An exclusive session would keep all others from writing.
        Request::Attach { alone: true, .. }
        | Request::SetAttr { .. }
        | Request::Mknod { .. }
        | Request::Create { .. }
        | Request::Tmpfile { .. }
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::Open { write: true, .. }
        | Request::Allocate { .. }
        | Request::SetXattr { .. }
        | Request::XattrPart { .. }
        | Request::RemoveXattr { .. }
        | Request::Fallocate { .. }
        | Request::Accessed { .. }
        | Request::Write { .. }
        | Request::Copy { .. } => true,
        Request::Attach { alone: false, .. }
        | Request::Lookup { .. }
        | Request::GetAttr { .. }
        | Request::Birth { .. }
        | Request::Readlink { .. }
        | Request::Open { write: false, .. }
        | Request::Close { .. }
        | Request::Layout { .. }
        | Request::ReadDir { .. }
        | Request::StatFs
        | Request::Stats
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::Lock { .. }
        | Request::StopWaiting { .. }
        | Request::Insist { .. }
        | Request::Grants
        // The inner request is checked by itself.
        | Request::Once { .. }
        | Request::Detach
        | Request::Verify { .. }
        | Request::ReturnNames { .. }
        | Request::ConfirmLocks { .. }
        | Request::TestLock { .. }
        | Request::LookupAhead { .. }
        | Request::Forget { .. }
        | Request::HoldPages { .. }
        | Request::DropPages { .. }
        | Request::ReachStore { .. }
        | Request::FenceStore { .. }
        | Request::Recalls { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_names() {
        for rights in [AccessMode::Read, AccessMode::Write] {
            assert_eq!(rights.to_string().parse(), Ok(rights));
        }
        assert!("RW".parse::<AccessMode>().is_err());
    }

    #[test]
    fn a_reader_may_send_no_changing_request() {
        let open = |write| Request::Open { ino: 1, write };
        assert!(AccessMode::Read.allow(&open(false)) && !AccessMode::Read.allow(&open(true)));
        assert!(AccessMode::Write.allow(&open(true)));
        let unlink = Request::Unlink { parent: 1, name: b"a" };
        assert!(!AccessMode::Read.allow(&unlink) && AccessMode::Write.allow(&unlink));
        assert!(AccessMode::Read.allow(&Request::Lookup { parent: 1, name: b"a" }));
    }
}
