//! The thread that looks which stores can be reached, and reports lost data.
//!
//! # Concurrency
//! One thread for a pool.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::pool_stores::PoolStores;
use crate::dispatch::Dispatcher;

/// Interval at which stores are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(in crate::server) struct StoreWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreWatch {
    /// Starts the thread.
    pub(in crate::server) fn start(
        stores: &Arc<PoolStores>,
        dispatcher: &Arc<Dispatcher>,
    ) -> io::Result<StoreWatch> {
        let (stores, dispatcher) = (Arc::clone(stores), Arc::clone(dispatcher));
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                look(&stores, &dispatcher);
            }
        };
        let thread = std::thread::Builder::new().name("rfs-stores".into()).spawn(watch)?;
        Ok(StoreWatch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that watches the stores panicked");
        }
    }
}

/// Opens stores of the space that can be reached, and closes the others.
fn look(stores: &PoolStores, dispatcher: &Dispatcher) {
    for store in stores.members() {
        match store.look() {
            true => dispatcher.space().open_store(store.number()),
            false => dispatcher.space().close_store(store.number()),
        }
        // A store that was removed meanwhile is not lost.
        if store.is_lost() && stores.has(store.number()) {
            store.report_lost(dispatcher);
        }
    }
}
