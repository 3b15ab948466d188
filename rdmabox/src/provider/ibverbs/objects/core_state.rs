//! The state that the objects of an open device share.
//!
//! # Concurrency
//! Any thread may use it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::watch::{Watch, Watcher};
use crate::{
    provider::ibverbs::{discovery::PortInfo, raw::Opened},
    verbs::DeviceAttr,
};

/// State that the objects of an open device share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) attr: DeviceAttr,
    pub(crate) gid_index: Option<u8>,
    pub(crate) next_qp: AtomicU32,
    /// Declared before `opened`, so that it is dropped before the device is closed.
    pub(crate) watcher: Watcher,
    pub(crate) opened: Arc<Opened>,
}

impl Core {
    pub(crate) fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    pub(crate) fn watch(&self) -> &Watch {
        self.watcher.watch()
    }

    /// Returns the current state of the port that connections use.
    pub(crate) fn port(&self) -> PortInfo {
        self.watch().port()
    }

    /// Returns the GID index that the options select.
    pub(crate) fn gid_index(&self) -> Option<u8> {
        self.gid_index
    }

    /// Returns a number that no other queue pair of this device has. The device reuses its own
    /// numbers.
    pub(crate) fn number(&self) -> u32 {
        self.next_qp.fetch_add(1, Ordering::Relaxed)
    }
}
