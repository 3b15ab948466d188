//! The state of a dispatcher, each part with its lock, and the transactions that run on it.
//!
//! A transaction locks the shards of its inodes, runs a closure on a [`View`] of them, logs the
//! changes, and queues recalls. It releases the locks, and then sends the replies that have
//! become due.
//!
//! # Concurrency
//! As the dispatcher. A transaction takes the locks of `lock_order` in order of their ranks. The
//! log has its own lock, which comes last.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rfs_proto::Errno;
use smallvec::SmallVec;

use super::{
    change_log::ChangeLog,
    idle::{Idle, PriorSessions},
    journal::{Journal, LoggedReply},
    lock_order::{Guard, Ordered, Rank, assert_nothing_held},
    locked_inodes::{LockedInodes, MissingLock, Plan, Stop},
    log_quota::LogQuota,
    meta::{Freed, Messages, View, WriteView},
    outcome::Sender,
    pending::{Due, Pending},
    quota::Quota,
    shards::{Mode, Shards},
};
use crate::{
    durable::op::Op,
    grants::Grants,
    locks::{Answer, Locks},
    namespace::Namespace,
    recall_timeout::Alarm,
    recalls::Need,
    sessions::Session,
    space::Space,
    table::Table,
};

/// The metadata of an export.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) shards: Shards,
    pub(super) journal: Option<Journal>,
    pub(super) change_log: ChangeLog,
    /// Held while a directory moves to another parent: until then all directories stay where they
    /// are.
    tree: Ordered<()>,
    locks: Ordered<Locks>,
    /// True if the file locks may have changed since the last call of `take_answers`.
    locks_touched: AtomicBool,
    pub(super) grants: Ordered<Grants<Sender>>,
    pub(super) pending: Pending,
    pub(super) table: Table,
    pub(super) space: Arc<Space>,
    /// Unlinked inodes that no session has open.
    pub(super) idle: Idle,
    /// Sessions of the previous server, which may use any inode that existed then.
    pub(super) prior_sessions: PriorSessions,
    /// Memory of all extended attributes, in bytes.
    pub(super) xattrs: Quota,
    pub(super) alarm: Arc<Alarm>,
}

impl Store {
    /// Creates a store of these inodes, which have their slots in the table. `kept` holds the
    /// journal for changes and the file locks of the previous server, if there is a memory object.
    pub(super) fn new(
        shards: Shards,
        table: Table,
        space: Arc<Space>,
        kept: Option<(Journal, Locks)>,
    ) -> Store {
        let (journal, locks) = match kept {
            Some((journal, mut locks)) => {
                locks.record_changes();
                locks.limit_to(LogQuota::locks(journal.log().room_for_sessions()));
                (Some(journal), locks)
            }
            None => (None, Locks::default()),
        };
        Store {
            shards,
            journal,
            change_log: ChangeLog::default(),
            tree: Ordered::new(Rank::Tree, ()),
            locks: Ordered::new(Rank::Locks, locks),
            locks_touched: AtomicBool::new(false),
            grants: Ordered::new(Rank::Grants, Grants::default()),
            pending: Pending::default(),
            table,
            space,
            idle: Idle::default(),
            prior_sessions: PriorSessions::default(),
            xattrs: Quota::default(),
            alarm: Arc::default(),
        }
    }

    /// Locks the file locks. The holder asks for no further inode.
    pub(super) fn locks(&self) -> Guard<'_, Locks> {
        let locks = self.locks.lock();
        // Set under the lock: a thread that takes the answers later also takes the answers to this
        // change.
        self.locks_touched.store(true, Ordering::Release);
        locks
    }

    /// Changes file locks, and logs the changes.
    pub(super) fn change_locks<T>(&self, change: impl FnOnce(&mut Locks) -> T) -> T {
        let mut locks = self.locks();
        let result = change(&mut locks);
        self.log_lock_changes(&mut locks, &mut None);
        result
    }

    /// Logs the changes of file locks before another thread sees them. If there are any, the reply
    /// of the transaction is logged with them.
    pub(super) fn log_lock_changes(&self, locks: &mut Locks, logged_reply: &mut Option<LoggedReply<'_>>) {
        if let Some(journal) = &self.journal {
            let changes = locks.take_changes();
            if !changes.is_empty() && journal.log_lock_changes(&changes, logged_reply.take()).is_err() {
                log::debug!("{} lock changes are not in the log", changes.len());
            }
        }
    }

    /// Stores the first part of an extended attribute's value for the request that brings the rest.
    pub(super) fn keep_part(&self, session: &Session, value: &[u8]) -> Result<(), Errno> {
        let mut part = session.part();
        let journal = self.journal.as_ref().filter(|_| session.comes_back());
        if journal.is_some_and(|journal| !journal.quota.take_part(session.told(), value.len())) {
            return Err(Errno::ENOSPC);
        }
        part.clear();
        part.extend_from_slice(value);
        match journal {
            Some(journal) => journal.tell(&Op::Part(session.id(), &part)).map_err(|_| Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// Returns the outcomes of blocked lock requests that are known since the last call.
    pub(super) fn take_answers(&self) -> Vec<Answer> {
        let touched = &self.locks_touched;
        match touched.load(Ordering::Acquire) && touched.swap(false, Ordering::AcqRel) {
            true => self.locks.lock().take_answers(),
            false => Vec::new(),
        }
    }

    /// Runs a transaction that needs no locks beyond its plan. Returns the recalls that it waits
    /// for.
    #[inline]
    pub(super) fn transact<M: Mode, T>(
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
    pub(super) fn transact_retrying<M: Mode, T>(
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
            needs: Vec::new(),
            notified: SmallVec::new(),
            unlinked: None,
            due: Vec::new(),
            freed: Freed::default(),
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
    pub(super) fn send(&self, due: Due) {
        assert_nothing_held();
        for (sender, reply) in due {
            if let Some(ino) = sender.sweeps() {
                self.transact(Plan::new(&[ino]), None, |meta: &mut WriteView<'_>| meta.sweep_tail(ino));
            }
            sender.send(reply);
        }
    }
}
