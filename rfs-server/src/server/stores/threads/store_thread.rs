//! A thread for the stores of a pool, which stops when its owner is dropped.
//!
//! # Concurrency
//! The owner starts and joins the thread. No locks.

use std::{
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

/// The thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(in crate::server) struct StoreThread {
    /// Words for the log: "the thread that JOB".
    job: &'static str,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreThread {
    /// Starts a thread. `work` ends when its receiver is disconnected.
    pub(super) fn start(
        name: &str,
        job: &'static str,
        work: impl FnOnce(&Receiver<()>) + Send + 'static,
    ) -> io::Result<StoreThread> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&stopped))?;
        Ok(StoreThread { job, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that {} panicked", self.job);
        }
    }
}
