//! Limits of the software device.

use crate::verbs::VerbsError;

/// Maximum message length in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;
/// Maximum number of outstanding requests per work queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 16;
pub(crate) const MAX_SGE: u32 = 256;
pub(crate) const MAX_INLINE: u32 = 1024;
pub(crate) const MAX_CQE: u32 = 1 << 20;

/// Returns an error if `asked` is more than `limit`.
pub(crate) fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked > limit { Err(VerbsError::Limit { what, asked, limit }) } else { Ok(()) }
}
