//! What a session may do, and which requests take more than the right to read. Pure.

use std::{fmt, str::FromStr};

use rfs_proto::Request;
use seeded_faults::{Fault, seeded};

/// What a key lets its owners do with its export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Look at everything, and lock. Permissions are checked by the clients' kernels, as ever.
    Read,
    /// Everything.
    Write,
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Rights::Read => "ro",
            Rights::Write => "rw",
        })
    }
}

impl FromStr for Rights {
    type Err = String;

    fn from_str(text: &str) -> Result<Rights, String> {
        match text {
            "ro" => Ok(Rights::Read),
            "rw" => Ok(Rights::Write),
            _ => Err(format!("{} is no right: ro or rw", rdmabox::shown(text))),
        }
    }
}

impl Rights {
    /// Whether a request may be carried out.
    pub fn allow(self, request: &Request<'_>) -> bool {
        self == Rights::Write || !changes(request) || seeded(Fault::ReaderChanges)
    }
}

/// True for requests that change files or names, or prepare to. Every request is named, so that a new one is thought about.
pub(crate) fn changes(request: &Request<'_>) -> bool {
    match request {
        // Nobody else could write then.
        Request::Attach { alone: true, .. }
        | Request::SetAttr { .. }
        | Request::Mknod { .. }
        | Request::Create { .. }
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
        // The request in it is looked at.
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
        | Request::Recalls { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_names() {
        for rights in [Rights::Read, Rights::Write] {
            assert_eq!(rights.to_string().parse(), Ok(rights));
        }
        assert!("RW".parse::<Rights>().is_err());
    }

    #[test]
    fn who_may_read_changes_nothing() {
        let open = |write| Request::Open { ino: 1, write };
        assert!(Rights::Read.allow(&open(false)) && !Rights::Read.allow(&open(true)));
        assert!(Rights::Write.allow(&open(true)));
        let unlink = Request::Unlink { parent: 1, name: b"a" };
        assert!(!Rights::Read.allow(&unlink) && Rights::Write.allow(&unlink));
        assert!(Rights::Read.allow(&Request::Lookup { parent: 1, name: b"a" }));
    }
}
