//! Whether this mount still uses a directory of which it keeps names. No I/O, no locks, no clock.
//!
//! A recall of a name takes the directory's attributes from the kernel, which asks for them again when a program walks through the
//! directory or lists it. So recalls that follow each other without such a request say that no program here uses the directory.

use std::sync::atomic::{AtomicU32, Ordering};

/// Recalls in a row after which the names of a directory are returned to the server.
const RECALLS: u32 = 8;

/// One directory's.
#[derive(Debug, Default)]
pub(crate) struct Interest(AtomicU32);

impl Interest {
    /// The directory is used here.
    pub(crate) fn used(&self) {
        // A file's, and a directory's without recalls, costs no store.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// A name in the directory was recalled. Returns true if it is time to return all of them, once for each [`RECALLS`] recalls.
    pub(crate) fn recalled(&self) -> bool {
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(RECALLS)
    }

    /// True if the directory has not been used since it was time to return its names.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= RECALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_used_in_between_is_kept() {
        let interest = Interest::default();
        let recalls = |count: u32| (0..count).filter(|_| interest.recalled()).count();
        for _ in 0..100 {
            assert_eq!(recalls(RECALLS - 1), 0);
            interest.used();
        }
        assert!(!interest.is_lost());
        assert_eq!((recalls(RECALLS), interest.is_lost()), (1, true));
        assert_eq!(recalls(2 * RECALLS), 2, "the server may not have heard of it");
        interest.used();
        assert!(!interest.is_lost());
    }
}
