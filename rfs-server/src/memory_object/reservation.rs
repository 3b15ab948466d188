//! Allocates the space of the log's segments in steps, ahead of the end of the log.
//!
//! A segment is long enough for any description, and mostly a hole in the file. Complete allocation
//! at start would take half as much space as the files. So a start reserves one step of each
//! segment, and the log grows by further steps. Reserved space stays reserved.
//!
//! # Concurrency
//! The caller holds the lock of the log's end.

use std::sync::atomic::{AtomicUsize, Ordering};

use rdmabox::{Memory, MemoryError};

use super::header::PAGE;

/// Size of a step in bytes.
pub(super) const STEP: usize = 4 << 20;

/// Bytes of each of the two segments that are reserved.
#[derive(Debug, Default)]
pub(super) struct Reservation([AtomicUsize; 2]);

impl Reservation {
    /// Reserves a segment of `len` bytes at `place` up to `end`, and one more page, which
    /// [`Log::open`](super::Log::open) reads.
    ///
    /// # Errors
    /// The file system has no space. The reservation is unchanged.
    pub(super) fn extend(
        &self,
        memory: &Memory,
        segment: u64,
        (place, len): (usize, usize),
        end: usize,
    ) -> Result<(), MemoryError> {
        let reserved = &self.0[usize::from(!segment.is_multiple_of(2))];
        let there = reserved.load(Ordering::Relaxed);
        let wanted = end.saturating_add(PAGE).min(len);
        if wanted <= there {
            return Ok(());
        }
        let to = wanted.next_multiple_of(STEP).min(len);
        memory.reserve_range(place + there, to - there)?;
        reserved.store(to, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn segments_grow_by_steps() {
        let memory = Memory::shared("test", 3 * STEP).unwrap();
        let file = File::from(memory.fd().unwrap().try_clone_to_owned().unwrap());
        let taken = || file.metadata().unwrap().blocks() as usize * 512;
        let reservation = Reservation::default();
        let extend = |segment, end| {
            let place = if segment % 2 == 0 { 0 } else { STEP + STEP / 2 };
            reservation.extend(&memory, segment, (place, STEP + STEP / 2), end).unwrap();
        };
        for (segment, end, expected) in [
            (1, 100, STEP),
            (1, STEP - PAGE, STEP),
            (2, 1, 2 * STEP),
            // Up to the end of the segment, but not beyond.
            (3, STEP - PAGE + 1, 2 * STEP + STEP / 2),
            (2, STEP + STEP / 2, 3 * STEP),
        ] {
            extend(segment, end);
            assert_eq!(taken(), expected, "segment {segment} to {end}");
        }
    }
}
