//! Sizes of pages.
//!
//! # Concurrency
//! Pure functions.

/// Maximum number of pages per `mincore` call.
pub(crate) const RESIDENCY: usize = 256;

/// Returns the size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
