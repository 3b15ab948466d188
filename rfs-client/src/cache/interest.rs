//! Whether this mount still uses a directory whose names it caches. No I/O, no locks, no clock.
//!
//! A recall of a name takes the directory's attributes from the kernel. The kernel asks for them
//! again when a program walks through the directory or lists it. A series of recalls without such
//! a request means that no program here uses the directory.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of recalls in a row after which a directory's names are returned to the server.
const RECALLS: u32 = 8;

/// Number of recalls of names of one directory since its last use.
#[derive(Debug, Default)]
pub(crate) struct Interest(AtomicU32);

impl Interest {
    /// Notes a use of the directory.
    pub(crate) fn used(&self) {
        // The common case, files and directories without recalls, costs no store.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Notes a recall of a name. Returns true once for each [`RECALLS`] recalls: the names are due
    /// to be returned.
    pub(crate) fn recalled(&self) -> bool {
        (self.0.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(RECALLS)
    }

    /// Returns true if the directory was not used since its names were due to be returned.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= RECALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_used_between_recalls_keeps_its_names() {
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
