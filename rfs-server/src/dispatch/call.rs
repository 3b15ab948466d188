//! A request under way: the dispatcher's parts as one request uses them, and the recalls that it caused.
//!
//! Threading: a call belongs to one thread. Its steps lock what they need, one after the other; between two of them nothing is held.

use std::cell::RefCell;

use rfs_proto::{Errno, Reply};

use super::{
    held::{Plan, Stop},
    journal::Number,
    meta::{Look, Meta},
    store::Store,
};
use crate::{clock::Clock, recalls::Need, sessions::Session, space::Space};

/// A request under way.
pub(super) struct Call<'a> {
    pub(super) store: &'a Store,
    pub(super) space: &'a Space,
    pub(super) clock: &'a dyn Clock,
    /// Whose it is.
    pub(super) asker: &'a Session,
    /// Its number, where the log has to know that it was carried out.
    pub(super) number: Option<Number>,
    needs: RefCell<Vec<Need>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        store: &'a Store,
        clock: &'a dyn Clock,
        asker: &'a Session,
        number: Option<Number>,
    ) -> Call<'a> {
        let number = number.filter(|_| store.journal.is_some());
        Call { store, space: &store.space, clock, asker, number, needs: RefCell::default() }
    }

    /// The step of a request that changes these inodes and comes to its reply.
    pub(super) fn answered(
        &self,
        inos: &[u64],
        step: impl FnOnce(&mut Meta<'_>) -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        self.locked(inos, |meta| {
            let reply = step(meta)?;
            meta.say(self.number, &reply);
            Ok(reply)
        })
    }

    /// The same for one that asks for more inodes.
    pub(super) fn answered_changing(
        &self,
        inos: &[u64],
        mut step: impl FnMut(&mut Meta<'_>) -> Result<Reply, Stop>,
    ) -> Result<Reply, Errno> {
        self.changing(inos, |meta| {
            let reply = step(meta)?;
            meta.say(self.number, &reply);
            Ok(reply)
        })
    }

    /// A step that changes these inodes.
    pub(super) fn locked<T>(&self, inos: &[u64], step: impl FnOnce(&mut Meta<'_>) -> T) -> T {
        self.noted(self.store.once(Plan::new(inos), Some(self.asker), step))
    }

    /// A step that changes these inodes, and others that it asks for. It may be run several times, until it has got them all.
    pub(super) fn changing<T>(
        &self,
        inos: &[u64],
        step: impl FnMut(&mut Meta<'_>) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        self.noted(self.store.again(Plan::new(inos), Some(self.asker), step))
    }

    /// A step that looks at these inodes.
    pub(super) fn look<T>(&self, inos: &[u64], step: impl FnOnce(&Look<'_>) -> T) -> T {
        self.noted(self.store.once(Plan::new(inos), Some(self.asker), |look: &mut Look<'_>| step(look)))
    }

    /// A step that looks at these inodes, and at others that it asks for. It may be run several times, until it has got them all.
    pub(super) fn looking<T>(
        &self,
        inos: &[u64],
        step: impl FnMut(&mut Look<'_>) -> Result<T, Stop>,
    ) -> Result<T, Errno> {
        self.noted(self.store.again(Plan::new(inos), Some(self.asker), step))
    }

    /// The recalls that it has to wait for, each once.
    pub(super) fn into_needs(self) -> Vec<Need> {
        let mut needs = self.needs.into_inner();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    fn noted<T>(&self, (result, needs): (T, Vec<Need>)) -> T {
        if !needs.is_empty() {
            self.needs.borrow_mut().extend(needs);
        }
        result
    }
}
