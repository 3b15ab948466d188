//! The thread `rfs-stores`, which looks which stores can be reached, and reports lost data.
//!
//! # Concurrency
//! One thread for a pool.

use std::{
    io,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::Duration,
};

use super::store_thread::StoreThread;
use crate::{dispatch::Dispatcher, server::stores::pool_stores::PoolStores};

/// Interval at which stores are looked at.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(in crate::server) fn start_watcher(
    stores: &Arc<PoolStores>,
    dispatcher: &Arc<Dispatcher>,
) -> io::Result<StoreThread> {
    let (stores, dispatcher) = (Arc::clone(stores), Arc::clone(dispatcher));
    StoreThread::start("rfs-stores", "watches the stores", move |stopped| {
        while stopped.recv_timeout(STORE_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            look(&stores, &dispatcher);
        }
    })
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
