//! Detects callers that have several reads or writes in flight.
//!
//! A read or write overlaps in two cases. An earlier request has no answer when a session thread
//! takes it, or the kernel holds a further request. A caller that blocks for each answer causes
//! neither, because an [`Unanswered`] ends before its answer leaves.
//!
//! # Concurrency
//! Each session thread counts its own [`Samples`], which the monitor reads. No locks.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Reads and writes of callers that this process has taken and not answered.
#[derive(Debug, Default)]
pub(super) struct InFlight(Arc<AtomicU32>);

impl InFlight {
    /// Counts one more read or write. Returns true if another read or write is in flight.
    pub(super) fn enter(&self) -> (Unanswered, bool) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        (Unanswered(Some(Arc::clone(&self.0))), before > 0)
    }
}

/// A read or write, unanswered until this is dropped. The default one does not count.
#[derive(Debug, Default)]
pub(in crate::fuse) struct Unanswered(Option<Arc<AtomicU32>>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Counts of a session thread's samples. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Samples {
    pub(super) taken: u32,
    /// Samples in which a read or write overlapped.
    pub(super) overlapping: u32,
}

impl Samples {
    /// Returns the counts after one more sample.
    pub(super) fn after(self, overlaps: bool) -> Samples {
        Samples {
            taken: self.taken.wrapping_add(1),
            overlapping: self.overlapping.wrapping_add(overlaps.into()),
        }
    }

    /// Returns the samples since an earlier state.
    pub(super) fn since(self, earlier: Samples) -> Samples {
        Samples {
            taken: self.taken.wrapping_sub(earlier.taken),
            overlapping: self.overlapping.wrapping_sub(earlier.overlapping),
        }
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.taken) << 32 | u64::from(self.overlapping)
    }

    pub(super) fn unpack(word: u64) -> Samples {
        Samples { taken: (word >> 32) as u32, overlapping: word as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_overlaps_while_an_earlier_one_is_unanswered() {
        let in_flight = InFlight::default();
        for _ in 0..3 {
            let (_blocking, overlaps) = in_flight.enter();
            assert!(!overlaps, "each ends before the next one comes");
        }
        let (first, _) = in_flight.enter();
        let (second, overlaps) = in_flight.enter();
        assert!(overlaps);
        drop((first, Unanswered::default()));
        assert!(in_flight.enter().1);
        drop(second);
        assert!(!in_flight.enter().1);
    }

    #[test]
    fn samples_fit_one_word_and_wrap_around() {
        let end = Samples { taken: u32::MAX, overlapping: u32::MAX };
        assert_eq!(Samples::unpack(end.pack()), end);
        let later = end.after(true).after(false);
        assert_eq!(later, Samples { taken: 1, overlapping: 0 });
        assert_eq!(later.since(end), Samples { taken: 2, overlapping: 1 });
    }
}
