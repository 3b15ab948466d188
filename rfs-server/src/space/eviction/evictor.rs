//! The thread that evicts files.
//!
//! # Concurrency
//! One thread for each export with eviction. It sleeps until a request has filled the export above
//! the high mark, or until it has to look for files that are too old. Dropping [`Evictor`] stops
//! and joins it.

use std::{io, sync::Arc, thread, time::Duration};

use super::state::Eviction;

/// Handle of the thread.
#[derive(Debug)]
pub struct Evictor {
    eviction: Arc<Eviction>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Evictor {
    /// Starts the thread. `run` evicts files, and returns the time until the next run.
    pub fn start(
        eviction: &Arc<Eviction>,
        run: impl Fn() -> Option<Duration> + Send + 'static,
    ) -> io::Result<Evictor> {
        let watched = Arc::clone(eviction);
        let work = move || {
            let mut pause = Some(Duration::ZERO);
            while watched.sleep(pause) {
                pause = run();
            }
        };
        let thread = thread::Builder::new().name("rfs-evict".into()).spawn(work)?;
        Ok(Evictor { eviction: Arc::clone(eviction), thread: Some(thread) })
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.eviction.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the eviction thread panicked");
        }
    }
}
