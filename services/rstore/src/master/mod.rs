//! The master: a host that serves clients and stores, around the state machine.
//!
//! Calls become inputs of [`Machine`](crate::machine::Machine), and its outputs become replies and
//! orders. Each input is in the log before its effects leave the process.
//!
//! # Concurrency
//! Threads: those of the host, one for the links, one per store, and one for the time. One lock
//! guards the machine with its log. No thread blocks under it, except for the write to the log.

mod engine;
mod links;
mod log;
mod options;
mod service;

use std::{
    sync::{Arc, mpsc::channel},
    thread::JoinHandle,
    time::Duration,
};

use rdmabox::{Address, HostHandle, Service};

use self::{engine::Engine, links::Links, service::Desk};
pub use self::{
    log::{LogError, repair_checksums, restore_log},
    options::{MasterError, MasterOptions},
};
use crate::{machine::Input, proto::Status};

/// Interval between looks at the clock.
const TICK: Duration = Duration::from_millis(10);

/// A running master. The drop ends it; stores and clients go on with the regions that they have.
#[derive(Debug)]
pub struct Master {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    host: Option<HostHandle>,
}

impl Master {
    /// Restores the state from the log, and listens.
    ///
    /// # Errors
    /// As [`MasterError`] says; nothing is left behind. A retry is safe.
    pub fn listen(addresses: &[Address], options: &MasterOptions) -> Result<Master, MasterError> {
        options.check(addresses)?;
        let host = options.host()?;
        let (sender, receiver) = channel();
        let engine = Engine::open(options, sender)?;
        let desk = Arc::new(Desk::new(engine));
        desk.feed(Input::Restart);
        let links = Links::new(Arc::downgrade(&desk), options.session.clone());
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(work).map_err(MasterError::Thread)
        };
        let mut threads = vec![spawn("rstore-links", Box::new(move || links.run(&receiver)))?];
        let clock = Arc::downgrade(&desk);
        threads.push(spawn(
            "rstore-clock",
            Box::new(move || {
                while let Some(desk) = clock.upgrade().filter(|desk| desk.tick()) {
                    drop(desk);
                    std::thread::sleep(TICK);
                }
            }),
        )?);
        let host = host.listen(addresses, Arc::clone(&desk) as Arc<dyn Service>)?;
        desk.begin(host.ender());
        Ok(Master { desk, threads, host: Some(host) })
    }

    /// Returns the addresses of the master, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        self.host.as_ref().map(HostHandle::addresses).unwrap_or_default()
    }

    /// Returns the state in numbers.
    pub fn status(&self) -> Status {
        self.desk.status()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        // First, so that the ends of sessions are no inputs: clients come back to the next master.
        self.desk.stop();
        drop(self.host.take());
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}
