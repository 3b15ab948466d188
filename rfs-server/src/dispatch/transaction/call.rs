//! A request in progress: its transactions, and the recalls that it waits for.
//!
//! # Concurrency
//! A call belongs to one thread. Each of its transactions locks and unlocks its own shards; the
//! call holds no lock between two of them.

use std::cell::RefCell;

use rfs_proto::{Errno, Reply};

use super::{
    locked_inodes::{Plan, Stop},
    view::{ReadView, WriteView},
};
use crate::{
    coherence::recall_queue::Need,
    dispatch::state::{journal::Number, store::Store},
    metadata::clock::Clock,
    session::registry::Session,
    space::account::Space,
};

/// A request in progress.
pub(in crate::dispatch) struct Call<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) space: &'a Space,
    pub(in crate::dispatch) clock: &'a dyn Clock,
    /// The session that sent the request.
    pub(in crate::dispatch) asker: &'a Session,
    /// Its slot and sequence number, if the log records its reply.
    pub(in crate::dispatch) number: Option<Number>,
    needs: RefCell<Vec<Need>>,
}

impl<'a> Call<'a> {
    pub(in crate::dispatch) fn new(
        store: &'a Store,
        clock: &'a dyn Clock,
        asker: &'a Session,
        number: Option<Number>,
    ) -> Call<'a> {
        let number = number.filter(|_| store.journal.is_some());
        Call { store, space: &store.space, clock, asker, number, needs: RefCell::default() }
    }

    /// Runs a transaction that changes these inodes, and logs its reply.
    pub(in crate::dispatch) fn answered(
        &self,
        inos: &[u64],
        step: impl FnOnce(&mut WriteView<'_>) -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        self.locked(inos, |meta| {
            let reply = step(meta)?;
            meta.set_reply(self.number, &reply);
            Ok(reply)
        })
    }

    /// Runs a transaction that changes these inodes and locks more as it goes, and logs its reply.
    /// The transaction may run several times.
    pub(in crate::dispatch) fn answered_changing(
        &self,
        inos: &[u64],
        mut step: impl FnMut(&mut WriteView<'_>) -> Result<Reply, Stop>,
    ) -> Result<Reply, Errno> {
        self.changing(inos, |meta| {
            let reply = step(meta)?;
            meta.set_reply(self.number, &reply);
            Ok(reply)
        })
    }

    /// Runs a transaction that changes these inodes.
    pub(in crate::dispatch) fn locked<T>(
        &self,
        inos: &[u64],
        step: impl FnOnce(&mut WriteView<'_>) -> T,
    ) -> T {
        self.collect_needs(self.store.transact(Plan::new(inos), Some(self.asker), step))
    }

    /// Runs a transaction that changes these inodes, and others that it locks as it goes. It may
    /// run several times until it has all locks.
    pub(in crate::dispatch) fn changing<T>(
        &self,
        inos: &[u64],
        step: impl FnMut(&mut WriteView<'_>) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        self.collect_needs(self.store.transact_retrying(Plan::new(inos), Some(self.asker), step))
    }

    /// Runs a transaction that reads these inodes.
    pub(in crate::dispatch) fn look<T>(&self, inos: &[u64], step: impl FnOnce(&ReadView<'_>) -> T) -> T {
        self.collect_needs(self.store.transact(
            Plan::new(inos),
            Some(self.asker),
            |look: &mut ReadView<'_>| step(look),
        ))
    }

    /// Runs a transaction that reads these inodes, and others that it locks as it goes. It may run
    /// several times until it has all locks.
    pub(in crate::dispatch) fn looking<T>(
        &self,
        inos: &[u64],
        step: impl FnMut(&mut ReadView<'_>) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        self.collect_needs(self.store.transact_retrying(Plan::new(inos), Some(self.asker), step))
    }

    /// Returns the recalls that the reply waits for, without duplicates.
    pub(in crate::dispatch) fn into_needs(self) -> Vec<Need> {
        let mut needs = self.needs.into_inner();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    fn collect_needs<T>(&self, (result, needs): (T, Vec<Need>)) -> T {
        if !needs.is_empty() {
            self.needs.borrow_mut().extend(needs);
        }
        result
    }
}
