//! Prepares free memory before a measurement.
//!
//! A virtual machine may return free memory to its host (free page reporting in Linux). The host
//! gives the memory back on the first touch, 4 KiB at a time. This can take five times as long as
//! the rest of a page fault. The first or largest measurement would pay for this. Therefore the
//! memory of a run is touched and freed before the run. The kernel hands out recently freed memory
//! first, and does not report it for one to two seconds. On other machines this costs a moment and
//! has no effect.

use std::hint::black_box;

use crate::{Result, interrupt::Interrupt, machine};

/// Step of touching: at most the kernel's page size.
const PAGE: usize = 4096;
/// Size of one allocation in bytes.
const PIECE: usize = 64 << 20;

/// Touches and frees `bytes` of memory, or half of the available memory if that is less. Call this
/// immediately before a run, after all programs have started, because the effect lasts only one to
/// two seconds.
pub fn have_at_hand(bytes: u64, interrupt: &Interrupt) -> Result<()> {
    let bytes = bytes.min(machine::memory_available() / 2);
    let piece = |_| interrupt.check().map(|()| touched(PIECE));
    // All pieces are allocated before the first is freed.
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(PIECE as u64)).map(piece).collect::<Result<_>>()?;
    drop(black_box(pieces));
    Ok(())
}

/// Returns memory with a write to each page. Zeroed memory is not allocated until then.
fn touched(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_preparation() {
        let interrupt = Interrupt::unset();
        have_at_hand(1, &interrupt).unwrap();
        interrupt.set(15);
        assert_eq!(have_at_hand(1, &interrupt).unwrap_err().exit_code(), 143);
        have_at_hand(0, &interrupt).unwrap();
    }

    #[test]
    fn each_page_is_touched() {
        let bytes = touched(3 * PAGE + 1);
        assert_eq!(bytes.len(), 3 * PAGE + 1);
        assert_eq!(bytes.iter().filter(|byte| **byte == 1).count(), 4);
        assert!(bytes.chunks(PAGE).all(|page| page[0] == 1));
    }
}
