//! A thread for work that must not block a session thread.
//!
//! # Concurrency
//! Any thread starts it. One lock over its handle.

use std::{
    io,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::affinity;

/// A thread that starts when the first work arrives.
#[derive(Debug)]
pub(super) struct Background {
    name: &'static str,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    pub(super) fn new(name: &'static str) -> Background {
        Background { name, thread: Mutex::new(None) }
    }

    /// Starts the thread unless it runs.
    pub(super) fn start(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let run = || {
                affinity::reset_affinity();
                run();
            };
            *thread = Some(thread::Builder::new().name(self.name.into()).spawn(run)?);
        }
        Ok(())
    }

    /// Waits for the end of the thread. The caller has told it to end.
    pub(super) fn join(&self) {
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("thread {} has panicked", self.name);
        }
    }
}
