//! Counts how often a cache answered, and how often it could not, for the status of a client.
//!
//! # Concurrency
//! Any thread adds with relaxed atomics. Each thread has one of [`STRIPES`] copies of the counters,
//! so that threads do not write to one cache line. Any thread reads the sums.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Copies of the counters.
const STRIPES: usize = 16;

/// A cache of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheKind {
    /// Absent names and prefetched entries, for lookups.
    Names,
    /// Attributes, while the records of the server are not mapped.
    Attributes,
    /// Permission bits and marks: whether a file lends rights, or has extended attributes.
    Marks,
    /// Listings that the caller has cached, for each open of a directory.
    Listings,
    /// Pages that the caller has cached, for each open of a file.
    Pages,
    /// Places of a file's bytes, for reads.
    Layouts,
}

const KINDS: [(CacheKind, &str); 6] = [
    (CacheKind::Names, "names"),
    (CacheKind::Attributes, "attributes"),
    (CacheKind::Marks, "marks"),
    (CacheKind::Listings, "listings"),
    (CacheKind::Pages, "pages"),
    (CacheKind::Layouts, "layouts"),
];

/// How often a cache was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Times that the cache answered.
    pub hits: u64,
    /// Times that it could not, and the server or its memory was asked.
    pub misses: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([[AtomicU64; 2]; KINDS.len()]);

/// Uses of all caches of a client.
#[derive(Debug, Default)]
pub(crate) struct CacheUses([Stripe; STRIPES]);

/// Number of threads that have counted so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Stripe of the calling thread, from its first use of a cache on.
    static STRIPE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl CacheUses {
    /// Counts a use.
    pub(crate) fn count(&self, kind: CacheKind, is_hit: bool) {
        let stripe = STRIPE.get().unwrap_or_else(|| {
            let stripe = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
            STRIPE.set(Some(stripe));
            stripe
        });
        let Stripe(counts) = &self.0[stripe];
        counts[kind as usize][usize::from(is_hit)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the uses of each cache by its name.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, CacheUse)> {
        let sum = |kind: CacheKind, is_hit: bool| {
            let count =
                |Stripe(counts): &Stripe| counts[kind as usize][usize::from(is_hit)].load(Ordering::Relaxed);
            self.0.iter().map(count).sum()
        };
        KINDS
            .iter()
            .map(move |(kind, name)| (*name, CacheUse { hits: sum(*kind, true), misses: sum(*kind, false) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_of_all_threads_add_up() {
        let uses = CacheUses::default();
        uses.count(CacheKind::Layouts, false);
        std::thread::scope(|scope| {
            for _ in 0..2 * STRIPES {
                scope.spawn(|| uses.count(CacheKind::Names, true));
            }
        });
        let sums: Vec<_> = uses.sums().filter(|(_, used)| *used != CacheUse::default()).collect();
        let names = CacheUse { hits: 2 * STRIPES as u64, misses: 0 };
        assert_eq!(sums, [("names", names), ("layouts", CacheUse { hits: 0, misses: 1 })]);
    }

    #[test]
    fn each_kind_has_its_own_place() {
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
