//! Runs transactions.
//!
//! A transaction locks the shards of its inodes, runs a closure on a [`View`] of them, logs the
//! changes, and queues recalls. It releases the locks, and then sends the replies that have
//! become due.
//!
//! # Concurrency
//! As the dispatcher. A transaction takes the locks of `lock_order` in order of their ranks. The
//! log has its own lock, which comes last.

use rfs_proto::Errno;
use smallvec::SmallVec;

use super::{
    freed_space::FreedSpace,
    locked_inodes::{LockedInodes, MissingLock, Plan, Stop},
    view::{Commit, Messages, View, WriteView},
};
use crate::{
    coherence::recall_queue::Need,
    dispatch::state::{
        lock_order::assert_nothing_held,
        pending::Due,
        shards::{Mode, SHARDS},
        store::Store,
    },
    metadata::namespace::Namespace,
    session::registry::Session,
};

impl Store {
    /// Runs a transaction on each shard, one after the other.
    pub(in crate::dispatch) fn each_shard(&self, mut step: impl FnMut(&mut WriteView<'_>)) {
        for at in 0..SHARDS {
            self.transact(Plan::shard(at), None, &mut step);
        }
    }

    /// Runs a transaction that needs no locks beyond its plan. Returns the recalls that it waits
    /// for.
    #[inline]
    pub(in crate::dispatch) fn transact<M: Commit, T>(
        &self,
        mut plan: Plan,
        asker: Option<&Session>,
        step: impl FnOnce(&mut View<'_, M>) -> T,
    ) -> (T, Vec<Need>) {
        assert_nothing_held();
        let mut view = self.view(&mut plan, asker);
        let result = step(&mut view);
        M::settle(&mut view);
        let (messages, due) = view.into_outcome();
        (result, self.settle(messages, due))
    }

    /// Runs a transaction that may find that it needs more locks, and then runs again. Returns the
    /// recalls that it waits for.
    pub(in crate::dispatch) fn transact_retrying<M: Commit, T>(
        &self,
        mut plan: Plan,
        asker: Option<&Session>,
        mut step: impl FnMut(&mut View<'_, M>) -> Result<T, Stop>,
    ) -> (Result<T, Errno>, Vec<Need>) {
        assert_nothing_held();
        let mut tree = None;
        loop {
            let mut view = self.view(&mut plan, asker);
            let result = step(&mut view);
            M::settle(&mut view);
            let (messages, due) = view.into_outcome();
            let result = match result {
                Ok(result) => Ok(result),
                Err(Stop::Errno(errno)) => Err(errno),
                Err(Stop::Retry(missing)) => {
                    debug_assert!(
                        messages.is_empty() && due.is_empty(),
                        "a transaction retries after a change"
                    );
                    if let (MissingLock::Lineage(_), None) = (&missing, &tree) {
                        tree = Some(self.tree.lock());
                    }
                    plan.add(missing, &self.shards);
                    continue;
                }
            };
            drop(tree);
            return (result, self.settle(messages, due));
        }
    }

    #[inline]
    fn view<'a, M: Mode>(&'a self, plan: &'a mut Plan, asker: Option<&'a Session>) -> View<'a, M> {
        View {
            namespace: Namespace::new(LockedInodes::new(
                &self.shards,
                plan,
                self.journal.is_some() || self.change_log.is_enabled(),
            )),
            table: &self.table,
            space: &self.space,
            xattrs: &self.xattrs,
            store: self,
            pending: &self.pending,
            asker,
            is_awaited: true,
            needs: Vec::new(),
            notified: SmallVec::new(),
            unlinked: None,
            due: Vec::new(),
            freed: FreedSpace::default(),
            unpublished: None,
            lost: SmallVec::new(),
            logged_reply: None,
        }
    }

    /// Delivers the recalls that a transaction queued to sessions that ask for them, and sends the
    /// replies that have become due.
    #[inline]
    fn settle(&self, messages: Messages, mut due: Due) -> Vec<Need> {
        if !messages.is_empty() {
            let sessions = messages.needs.iter().map(|need| need.session).chain(messages.notified);
            self.pending.locked(|state| sessions.for_each(|session| state.answer_asker(session, &mut due)));
        }
        if !messages.needs.is_empty() {
            self.alarm.recalled();
        }
        self.send(due);
        messages.needs
    }

    /// Sends replies that have become due.
    #[inline]
    pub(in crate::dispatch) fn send(&self, due: Due) {
        assert_nothing_held();
        for (sender, reply) in due {
            if let Some(ino) = sender.sweeps() {
                self.transact(Plan::new(&[ino]), None, |meta: &mut WriteView<'_>| meta.sweep_tail(ino));
            }
            sender.send(reply);
        }
    }
}
