//! The requests that the client may send again if their outcome is unknown.

use rfs_proto::{Growth, Request};

/// Returns true if the server may carry the request out any number of times with the same result.
pub(crate) fn is_idempotent(request: &Request<'_>) -> bool {
    match request {
        Request::Attach { .. }
        | Request::Lookup { .. }
        | Request::LookupAhead { .. }
        | Request::GetAttr { .. }
        | Request::Birth { .. }
        | Request::Readlink { .. }
        | Request::Layout { .. }
        | Request::Allocate { .. }
        | Request::ReadDir { .. }
        | Request::StatFs
        | Request::Stats
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::XattrPart { .. }
        | Request::TestLock { .. }
        | Request::Insist { .. }
        | Request::Recalls { .. }
        | Request::Grants
        | Request::Accessed { .. }
        // The envelope is never put into another envelope.
        | Request::Once { .. }
        | Request::Write { growth: Growth::Stay | Growth::Reach, .. }
        | Request::Verify { .. }
        | Request::ReturnNames { .. }
        | Request::ConfirmLocks { .. }
        | Request::Forget { .. }
        | Request::HoldPages { .. }
        | Request::DropPages { .. }
        | Request::ReachStore { .. }
        | Request::FenceStore { .. }
        | Request::Detach => true,
        Request::SetAttr { .. }
        | Request::Mknod { .. }
        | Request::Create { .. }
        | Request::Tmpfile { .. }
        | Request::Mkdir { .. }
        | Request::Symlink { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. }
        | Request::Open { .. }
        | Request::Close { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::Fallocate { .. }
        | Request::Copy { .. }
        | Request::Write { growth: Growth::From(_), .. }
        | Request::Lock { .. }
        | Request::StopWaiting { .. } => false,
    }
}
