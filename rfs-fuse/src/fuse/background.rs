//! A thread beside the session threads, for what one of those must not wait for.

use std::{
    io,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::placement;

/// Started when there is something to do for the first time.
pub(super) struct Background {
    name: &'static str,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    pub(super) fn new(name: &'static str) -> Background {
        Background { name, thread: Mutex::new(None) }
    }

    /// Starts it, if it was not before.
    pub(super) fn start(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let run = || {
                placement::begin_unbound();
                run();
            };
            *thread = Some(thread::Builder::new().name(self.name.into()).spawn(run)?);
        }
        Ok(())
    }

    /// Waits for its end, which it has been told of.
    pub(super) fn join(&self) {
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            log::error!("the thread for {} had panicked", self.name);
        }
    }
}
