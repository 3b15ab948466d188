//! The thread `rfs-fencer`, which ends accesses that are in doubt until the stores have confirmed.
//!
//! # Concurrency
//! One thread for a pool.

use std::{
    io,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::Duration,
};

use super::store_thread::StoreThread;
use crate::dispatch::Dispatcher;

/// Interval at which an access is ended again.
const FENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread. A request of the client has begun the end of an access already.
pub(in crate::server) fn start_fencer(dispatcher: &Arc<Dispatcher>) -> io::Result<StoreThread> {
    let dispatcher = Arc::clone(dispatcher);
    StoreThread::start("rfs-fencer", "ends accesses to stores", move |stopped| {
        while stopped.recv_timeout(FENCE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            dispatcher.space().end_doubts();
        }
    })
}
