//! An export of a running server, with its threads.
//!
//! # Concurrency
//! As the server.

mod size;

use std::sync::Arc;

use super::{
    log_compactor::LogCompactor,
    prefault::Prefaulter,
    stores::{PoolStores, StoreThread},
};
use crate::{
    dispatch::Dispatcher,
    memory_object::object::Object,
    space::{eviction::Evictor, zeroer::Zeroer},
};

pub(super) use size::{ExportSize, check_bounds, check_limits, differ_in_sizes_only, is_memory, resize_one};

/// An export and its threads.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) size: ExportSize,
    pub(super) evictor: Option<Evictor>,
    pub(super) _prefaulter: Prefaulter,
    pub(super) _zeroer: Zeroer,
    pub(super) _store_watch: Option<StoreThread>,
    pub(super) _fencer: Option<StoreThread>,
    pub(super) _newcomers: Option<StoreThread>,
    pub(super) _drainer: Option<StoreThread>,
    /// Stores that lend memory to the export.
    pub(super) stores: Option<Arc<PoolStores>>,
    pub(super) log_compactor: Option<LogCompactor>,
    pub(super) object: Option<Arc<Object>>,
    pub(super) dispatcher: Arc<Dispatcher>,
}

impl Drop for Export {
    fn drop(&mut self) {
        drop((self.evictor.take(), self.log_compactor.take()));
        // After memory was lost, zeroes replace lost pages, and the log may be damaged.
        let is_whole = self.dispatcher.log_upkeep().is_settled() && !rdmabox::memory::is_lost();
        if let Some(object) = self.object.take_if(|_| is_whole) {
            object.end();
        }
    }
}
