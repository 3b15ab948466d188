//! An amount in use, with a limit.
//!
//! # Concurrency
//! Any thread; no locks.

use std::sync::atomic::{AtomicU64, Ordering};

/// An amount in use.
#[derive(Debug, Default)]
pub(crate) struct Quota(AtomicU64);

impl Quota {
    /// Adds to the amount, unless it would exceed `limit`. Returns false if it would.
    pub(in crate::dispatch) fn try_add(&self, amount: u64, limit: u64) -> bool {
        let sum = |used: u64| used.checked_add(amount).filter(|&sum| sum <= limit);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    /// Adds to the amount without a limit.
    pub(in crate::dispatch) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts an amount that was added.
    pub(in crate::dispatch) fn give_back(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// Returns the amount in use.
    #[cfg(test)]
    pub(in crate::dispatch) fn used(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit() {
        let quota = Quota::default();
        assert!(quota.try_add(7, 10) && !quota.try_add(4, 10) && quota.try_add(3, 10));
        assert!(!quota.try_add(u64::MAX, u64::MAX));
        quota.give_back(9);
        assert_eq!(quota.used(), 1);
        quota.add(100);
        assert_eq!((quota.used(), quota.try_add(0, 10)), (101, false));
    }
}
