//! The state of a dispatcher, each part with its lock. Transactions (`transaction`) run on it.
//!
//! # Concurrency
//! As the dispatcher. `lock_order` has the order of the locks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rfs_proto::Errno;

use super::{
    change_log::ChangeLog,
    idle::{Idle, PreviousSessions},
    journal::{Journal, LoggedReply},
    lock_order::{Guard, Ordered, Rank},
    outcome::Sender,
    pending::Pending,
    quota::Quota,
    shards::Shards,
};
use crate::{
    coherence::alarm::Alarm,
    locks::{Answer, Locks, grant_queue::Grants},
    memory_object::op::Op,
    metadata::attr_table::Table,
    session::{log_quota::LogQuota, registry::Session},
    space::{account::Space, eviction::Eviction},
};

/// The metadata of an export.
#[derive(Debug)]
pub(crate) struct Store {
    pub(in crate::dispatch) shards: Shards,
    pub(in crate::dispatch) journal: Option<Journal>,
    pub(in crate::dispatch) change_log: ChangeLog,
    /// Held while a directory moves to another parent: until then all directories stay where they
    /// are.
    pub(in crate::dispatch) tree: Ordered<()>,
    locks: Ordered<Locks>,
    /// True if the file locks may have changed since the last call of `take_answers`.
    locks_touched: AtomicBool,
    pub(in crate::dispatch) grants: Ordered<Grants<Sender>>,
    pub(in crate::dispatch) pending: Pending,
    pub(in crate::dispatch) table: Table,
    pub(in crate::dispatch) space: Arc<Space>,
    /// Unlinked inodes that no session has open.
    pub(in crate::dispatch) idle: Idle,
    /// Sessions of the previous server, which may use any inode that existed then.
    pub(in crate::dispatch) previous_sessions: PreviousSessions,
    /// Memory of all extended attributes, in bytes.
    pub(in crate::dispatch) xattrs: Quota,
    pub(in crate::dispatch) alarm: Arc<Alarm>,
    /// Eviction, if the export has it.
    pub(in crate::dispatch) eviction: Option<Arc<Eviction>>,
}

impl Store {
    /// Creates a store of these inodes, which have their slots in the table. `kept` holds the
    /// journal for changes and the file locks of the previous server, if there is a memory object.
    pub(in crate::dispatch) fn new(
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
            previous_sessions: PreviousSessions::default(),
            xattrs: Quota::default(),
            alarm: Arc::default(),
            eviction: None,
        }
    }

    /// Locks the file locks. The holder asks for no further inode.
    pub(in crate::dispatch) fn locks(&self) -> Guard<'_, Locks> {
        let locks = self.locks.lock();
        // Set under the lock: a thread that takes the answers later also takes the answers to this
        // change.
        self.locks_touched.store(true, Ordering::Release);
        locks
    }

    /// Reads the file locks. The reader holds the lock for a moment.
    pub(in crate::dispatch) fn look_at_locks<T>(&self, look: impl FnOnce(&Locks) -> T) -> T {
        look(&self.locks.lock())
    }

    /// Changes file locks, and logs the changes.
    pub(in crate::dispatch) fn change_locks<T>(&self, change: impl FnOnce(&mut Locks) -> T) -> T {
        let mut locks = self.locks();
        let result = change(&mut locks);
        self.log_lock_changes(&mut locks, &mut None);
        result
    }

    /// Logs the changes of file locks before another thread sees them. If there are any, the reply
    /// of the transaction is logged with them.
    pub(in crate::dispatch) fn log_lock_changes(
        &self,
        locks: &mut Locks,
        logged_reply: &mut Option<LoggedReply<'_>>,
    ) {
        if let Some(journal) = &self.journal {
            let changes = locks.take_changes();
            if !changes.is_empty() && journal.log_lock_changes(&changes, logged_reply.take()).is_err() {
                log::debug!("{} lock changes are not in the log", changes.len());
            }
        }
    }

    /// Stores the first part of an extended attribute's value for the request that brings the rest.
    pub(in crate::dispatch) fn keep_part(&self, session: &Session, value: &[u8]) -> Result<(), Errno> {
        let mut part = session.part();
        let journal = self.journal.as_ref().filter(|_| session.reconnects());
        if journal.is_some_and(|journal| !journal.quota.take_part(session.log_quota(), value.len())) {
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
    pub(in crate::dispatch) fn take_answers(&self) -> Vec<Answer> {
        let touched = &self.locks_touched;
        match touched.load(Ordering::Acquire) && touched.swap(false, Ordering::AcqRel) {
            true => self.locks.lock().take_answers(),
            false => Vec::new(),
        }
    }
}
