//! Memory that the machine has at hand.
//!
//! A virtual machine may give free memory back to its host (Linux: free page reporting), and gets it from there again when somebody touches it:
//! 4 KiB at a time, that can take five times as long as the rest of a page fault. Whoever is measured first, or touches most, would pay for
//! that. So what a run is going to take is touched before, and freed: what was freed last is handed out first, and is not given back
//! for a second or two. Where memory is the machine's own this takes a moment and changes nothing.

use std::hint::black_box;

use crate::{Result, interrupt::Interrupt, machine};

/// What the kernel hands out at once, or less.
const PAGE: usize = 4096;
/// What is taken at once.
const PIECE: usize = 64 << 20;

/// Has the machine have so many bytes at hand, or half of what is available if that is less. For the moment before a run, when all that it
/// is to measure has been started: what programs take meanwhile lasts longer than memory stays at hand.
pub fn have_at_hand(bytes: u64, interrupt: &Interrupt) -> Result<()> {
    let bytes = bytes.min(machine::memory_available() / 2);
    let piece = |_| interrupt.check().map(|()| touched(PIECE));
    // All of it, before any of it is freed.
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(PIECE as u64)).map(piece).collect::<Result<_>>()?;
    drop(black_box(pieces));
    Ok(())
}

/// Zeroes come without being touched: only a write has the kernel find memory for them.
fn touched(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_it() {
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
