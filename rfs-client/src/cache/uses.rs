//! Counts how often a cache answered, and how often it could not, for the status of a client.
//!
//! # Concurrency
//! Any thread may call every method.

mod striped_counts;

pub use striped_counts::StripedCounts;

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

/// Uses of all caches of a client: for each its misses and its hits.
#[derive(Debug, Default)]
pub(crate) struct CacheUses(StripedCounts<{ 2 * KINDS.len() }>);

/// Returns the place of a counter.
fn place(kind: CacheKind, is_hit: bool) -> usize {
    2 * kind as usize + usize::from(is_hit)
}

impl CacheUses {
    /// Counts a use.
    pub(crate) fn count(&self, kind: CacheKind, is_hit: bool) {
        self.0.count(place(kind, is_hit));
    }

    /// Returns the uses of each cache by its name.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&'static str, CacheUse)> {
        let sum = |kind, is_hit| self.0.sum(place(kind, is_hit));
        KINDS
            .iter()
            .map(move |(kind, name)| (*name, CacheUse { hits: sum(*kind, true), misses: sum(*kind, false) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: u64 = 32;

    #[test]
    fn uses_of_all_threads_add_up() {
        let uses = CacheUses::default();
        uses.count(CacheKind::Layouts, false);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| uses.count(CacheKind::Names, true));
            }
        });
        let sums: Vec<_> = uses.sums().filter(|(_, used)| *used != CacheUse::default()).collect();
        let names = CacheUse { hits: THREADS, misses: 0 };
        assert_eq!(sums, [("names", names), ("layouts", CacheUse { hits: 0, misses: 1 })]);
    }

    #[test]
    fn each_kind_has_its_own_place() {
        for (at, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, at);
        }
    }
}
