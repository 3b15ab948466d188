//! The target and the state of a running attack.

use std::sync::atomic::{AtomicBool, Ordering};

use rdmabox::{Address, Key};

use crate::flood::target::Flood;

/// The target and the state of a running attack.
pub(super) struct AttackRun<'a> {
    pub(super) flood: &'a Flood,
    pub(super) address: &'a Address,
    pub(super) key: Option<&'a Key>,
    pub(super) begun: AtomicBool,
    pub(super) over: &'a AtomicBool,
}

/// Number of steps that the server accepted and refused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    pub(super) taken: u64,
    pub(super) refused: u64,
}

impl Steps {
    /// Counts a step. Returns its value if the server accepted it.
    pub(super) fn count<T, E>(&mut self, outcome: Result<T, E>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.taken += 1;
                Some(value)
            }
            Err(_) => {
                self.refused += 1;
                None
            }
        }
    }
}

impl AttackRun<'_> {
    /// Returns false when the attack is over. The time of the attack begins with the first call.
    pub(super) fn is_running(&self) -> bool {
        self.begun.store(true, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }
}
