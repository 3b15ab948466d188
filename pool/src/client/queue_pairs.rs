//! Queue pairs of the sessions of a client.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

/// Largest number of stores to which each session has several queue pairs.
const FEW_STORES: usize = 16;

/// Returns the number of data queue pairs of a client's session to its `number`-th store, counted
/// from 1. `configured` is that of sessions to few stores. Sessions to further stores have one,
/// because a client then has enough of them, and each may need a thread.
pub fn queue_pairs(configured: usize, number: usize) -> usize {
    if number <= FEW_STORES { configured } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a client with many stores whose threads grow with all queue pairs.
    #[test]
    fn sessions_to_many_stores_have_one_each() {
        assert_eq!([1, 16, 17, 1000].map(|number| queue_pairs(4, number)), [4, 4, 1, 1]);
        assert_eq!(queue_pairs(1, 1), 1);
    }
}
