//! The measured part of a load that does not pause before it.
//!
//! A modelled card with many requests has states that keep themselves up. Requests that all threads
//! start at the same instant merge, and merged requests leave room on the card. So a pause after
//! the warm-up would measure a start of its own. With a window the load goes on, and only
//! completions in the window count.
//!
//! # Concurrency
//! Any thread.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the load is measured now.
#[derive(Debug, Default)]
pub struct Window(AtomicBool);

impl Window {
    /// Begins the measured part.
    pub fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Ends the measured part.
    pub fn close(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Returns true in the measured part.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
