//! A number of bytes in flight, and its peak.
//!
//! # Concurrency
//! Any thread may call every method. The numbers are atomics.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes in flight, in whole pages.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    bytes: AtomicU64,
    peak: AtomicU64,
}

impl InFlight {
    /// Returns the bytes in flight.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns the maximum number of bytes in flight so far.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Adds bytes if `admits` accepts them beside those in flight. The decision and the addition
    /// are atomic.
    pub(crate) fn try_add(&self, charge: u64, admits: impl Fn(u64) -> bool) -> bool {
        let mut current = self.bytes.load(Ordering::Relaxed);
        loop {
            if !admits(current) {
                return false;
            }
            let Some(total) = current.checked_add(charge) else { return false };
            match self.bytes.compare_exchange_weak(current, total, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.raise_peak(total);
                    return true;
                }
                Err(now) => current = now,
            }
        }
    }

    /// Adds bytes. Returns the bytes that were in flight before.
    pub(crate) fn add(&self, charge: u64) -> u64 {
        let before = self.bytes.fetch_add(charge, Ordering::AcqRel);
        self.raise_peak(before + charge);
        before
    }

    /// Raises the peak to `total`. Most requests stay below the peak: a read is sufficient then.
    fn raise_peak(&self, total: u64) {
        if total > self.peak() {
            self.peak.fetch_max(total, Ordering::Relaxed);
        }
    }

    /// Removes bytes of completed requests. Returns the bytes that were in flight before.
    pub(crate) fn remove(&self, charge: u64) -> u64 {
        let before = self.bytes.fetch_sub(charge, Ordering::AcqRel);
        debug_assert!(before >= charge, "released {charge} bytes of {before} in flight");
        before
    }
}
