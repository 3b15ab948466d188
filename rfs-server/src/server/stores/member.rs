//! A store of the pool, and the server's knowledge of it.
//!
//! # Concurrency
//! Any thread. Atomics for the state.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use pool::{OwnedStore, OwnerError, StoreReport};

use super::{drain_state::Drain, lost_report::report_lost};
use crate::{
    dispatch::{Dispatcher, LostFiles},
    space::lent_memory::StoreFailure,
};

/// A store of the pool.
#[derive(Debug)]
pub(in crate::server) struct PoolStore {
    pub(in crate::server) owned: OwnedStore,
    /// Epoch of the tickets that it accepts.
    pub(in crate::server) epoch: u64,
    /// The run of the store, if it was registered when the server took it over.
    pub(in crate::server) run: Option<String>,
    /// False after a failure, until the store answers. The first failure is logged.
    is_up: AtomicBool,
    /// True once the store was found to have another incarnation. It never ends.
    is_lost: AtomicBool,
    /// Whether data moves away.
    pub(in crate::server) drain: Drain,
    /// Sessions of clients at the store, when it last answered.
    sessions: AtomicU32,
    /// The files that had data there when the memory was found to be lost.
    pub(in crate::server) lost: OnceLock<LostFiles>,
}

impl PoolStore {
    pub(in crate::server) fn new(owned: OwnedStore, epoch: u64) -> PoolStore {
        PoolStore {
            owned,
            epoch,
            run: None,
            is_up: AtomicBool::new(true),
            is_lost: AtomicBool::new(false),
            drain: Drain::default(),
            sessions: AtomicU32::new(0),
            lost: OnceLock::new(),
        }
    }

    /// Returns the store with the run that was registered.
    pub(in crate::server) fn of_run(self, run: Option<String>) -> PoolStore {
        PoolStore { run, ..self }
    }

    /// Returns the number of the store in places.
    pub(in crate::server) fn number(&self) -> u16 {
        self.owned.id().0
    }

    pub(in crate::server) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    pub(in crate::server) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(in crate::server) fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Asks the store for its numbers. Returns true if it answers.
    pub(in crate::server) fn look(&self) -> bool {
        let report = self.note(self.owned.report());
        let StoreReport { clients, .. } = report.unwrap_or_default();
        self.sessions.store(clients, Ordering::Relaxed);
        report.is_ok()
    }

    /// Returns the files that have lost data with the store. Logs them the first time.
    pub(in crate::server) fn report_lost(&self, dispatcher: &Dispatcher) -> &LostFiles {
        self.lost.get_or_init(|| {
            let files = dispatcher.placement().files_in(self.number());
            report_lost(self.owned.id(), self.owned.address(), &files);
            files
        })
    }

    /// Logs that the store answers, or why not, if that is news.
    pub(in crate::server) fn note<T>(&self, outcome: Result<T, OwnerError>) -> Result<T, StoreFailure> {
        let was_up = self.is_up.swap(outcome.is_ok(), Ordering::AcqRel);
        if matches!(outcome, Err(OwnerError::Lost { .. })) {
            self.is_lost.store(true, Ordering::Release);
        }
        match &outcome {
            Err(error) if was_up => {
                log::error!(
                    "{error}: files that have data there give errors (EIO), and new data goes elsewhere"
                );
            }
            Ok(_) if !was_up => log::info!("{} at {} is back", self.owned.id(), self.owned.address()),
            _ => {}
        }
        outcome.map_err(|_| StoreFailure(self.number()))
    }
}
