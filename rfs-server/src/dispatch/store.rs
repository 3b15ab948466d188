//! What a dispatcher keeps, each part with its lock, and the steps in which requests work on it.
//!
//! Threading: as the dispatcher. A step has the shards of its inodes, from its beginning to its end; the recalls that it causes
//! are queued meanwhile. Replies that became due are sent afterwards, when nothing is held.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rfs_proto::Errno;
use smallvec::SmallVec;

use super::{
    held::{Held, Lack, Plan, Stop},
    idle::{Idle, Returned},
    journal::{Journal, Said},
    meta::{Caused, Freed, Meta, View},
    order::{Guard, Ordered, Rank, assert_nothing_held},
    outcome::Sender,
    pending::{Due, Pending},
    quota::Quota,
    room::Room,
    shards::{Mode, Shards},
    tape::Tape,
};
use crate::{
    durable::op::Op,
    grants::Grants,
    locks::{Answer, Locks},
    namespace::Namespace,
    patience::Alarm,
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
    pub(super) tape: Tape,
    /// Whoever moves a directory to another one: until he is done, all others stay where they are.
    tree: Ordered<()>,
    locks: Ordered<Locks>,
    /// Somebody has had the file locks since their answers were taken last.
    locks_touched: AtomicBool,
    pub(super) grants: Ordered<Grants<Sender>>,
    pub(super) pending: Pending,
    pub(super) table: Table,
    pub(super) space: Arc<Space>,
    /// Unlinked inodes that no session has open.
    pub(super) idle: Idle,
    /// Sessions of the server before, which may use any inode that there was then.
    pub(super) returned: Returned,
    /// Memory that extended attributes take.
    pub(super) xattrs: Quota,
    pub(super) alarm: Arc<Alarm>,
}

impl Store {
    /// One of these inodes, which have their slots in the table. What changes goes to the journal, if there is one; the locks are those
    /// that are kept with it.
    pub(super) fn new(
        shards: Shards,
        table: Table,
        space: Arc<Space>,
        kept: Option<(Journal, Locks)>,
    ) -> Store {
        let (journal, locks) = match kept {
            Some((journal, mut locks)) => {
                locks.begin_noting();
                locks.limit_to(Room::locks(journal.log().room_for_sessions()));
                (Some(journal), locks)
            }
            None => (None, Locks::default()),
        };
        Store {
            shards,
            journal,
            tape: Tape::default(),
            tree: Ordered::new(Rank::Tree, ()),
            locks: Ordered::new(Rank::Locks, locks),
            locks_touched: AtomicBool::new(false),
            grants: Ordered::new(Rank::Grants, Grants::default()),
            pending: Pending::default(),
            table,
            space,
            idle: Idle::default(),
            returned: Returned::default(),
            xattrs: Quota::default(),
            alarm: Arc::default(),
        }
    }

    /// File locks. Nothing else is asked for while they are had.
    pub(super) fn locks(&self) -> Guard<'_, Locks> {
        let locks = self.locks.lock();
        // Under the lock, so that who takes the answers after this takes those to what is done now.
        self.locks_touched.store(true, Ordering::Release);
        locks
    }

    /// Changes file locks, and logs that.
    pub(super) fn change_locks<T>(&self, change: impl FnOnce(&mut Locks) -> T) -> T {
        let mut locks = self.locks();
        let result = change(&mut locks);
        self.note_locks(&mut locks, &mut None);
        result
    }

    /// Logs how file locks have been changed, before anybody else has them; with that what the step has come to, if they have.
    pub(super) fn note_locks(&self, locks: &mut Locks, said: &mut Option<Said<'_>>) {
        if let Some(journal) = &self.journal {
            let changes = locks.take_noted();
            if !changes.is_empty() && journal.note_locks(&changes, said.take()).is_err() {
                log::debug!("{} changes of locks are not in the log", changes.len());
            }
        }
    }

    /// Keeps the beginning of a value for the request that brings the rest.
    pub(super) fn keep_part(&self, session: &Session, value: &[u8]) -> Result<(), Errno> {
        let mut part = session.part();
        let journal = self.journal.as_ref().filter(|_| session.comes_back());
        if journal.is_some_and(|journal| !journal.room.take_part(session.told(), value.len())) {
            return Err(Errno::ENOSPC);
        }
        part.clear();
        part.extend_from_slice(value);
        match journal {
            Some(journal) => journal.tell(&Op::Part(session.id(), &part)).map_err(|_| Errno::ENOSPC),
            _ => Ok(()),
        }
    }

    /// What has become of those who wait for file locks, if that is known of any since this was asked last.
    pub(super) fn take_answers(&self) -> Vec<Answer> {
        let touched = &self.locks_touched;
        match touched.load(Ordering::Acquire) && touched.swap(false, Ordering::AcqRel) {
            true => self.locks.lock().take_answers(),
            false => Vec::new(),
        }
    }

    /// A step that needs no more than its plan says, and the recalls that it caused.
    #[inline]
    pub(super) fn once<M: Mode, T>(
        &self,
        mut plan: Plan,
        asker: Option<&Session>,
        step: impl FnOnce(&mut View<'_, M>) -> T,
    ) -> (T, Vec<Need>) {
        assert_nothing_held();
        let mut view = self.view(&mut plan, asker);
        let result = step(&mut view);
        M::settle(&mut view);
        let (caused, due) = view.into_outcome();
        (result, self.settle(caused, due))
    }

    /// A step that may find that it needs more, and then begins again, and the recalls that it caused.
    pub(super) fn again<M: Mode, T>(
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
            let (caused, due) = view.into_outcome();
            let result = match result {
                Ok(result) => Ok(result),
                Err(Stop::Errno(errno)) => Err(errno),
                Err(Stop::Again(lack)) => {
                    debug_assert!(caused.is_empty() && due.is_empty(), "begins again after a change");
                    if let (Lack::Lineage(_), None) = (&lack, &tree) {
                        tree = Some(self.tree.lock());
                    }
                    plan.add(lack, &self.shards);
                    continue;
                }
            };
            drop(tree);
            return (result, self.settle(caused, due));
        }
    }

    #[inline]
    fn view<'a, M: Mode>(&'a self, plan: &'a mut Plan, asker: Option<&'a Session>) -> View<'a, M> {
        View {
            namespace: Namespace::new(Held::new(
                &self.shards,
                plan,
                self.journal.is_some() || self.tape.is_there(),
            )),
            table: &self.table,
            space: &self.space,
            xattrs: &self.xattrs,
            store: self,
            pending: &self.pending,
            asker,
            needs: Vec::new(),
            heard: SmallVec::new(),
            unlinked: None,
            due: Vec::new(),
            freed: Freed::default(),
            unpublished: None,
            lost: SmallVec::new(),
            said: None,
        }
    }

    /// Tells those who ask for recalls of those that a step caused, and sends what has become due.
    #[inline]
    fn settle(&self, caused: Caused, mut due: Due) -> Vec<Need> {
        if !caused.is_empty() {
            let told = caused.needs.iter().map(|need| need.session).chain(caused.heard);
            self.pending.locked(|state| told.for_each(|session| state.answer_asker(session, &mut due)));
        }
        if !caused.needs.is_empty() {
            self.alarm.recalled();
        }
        self.send(due);
        caused.needs
    }

    /// Sends replies that have become due.
    #[inline]
    pub(super) fn send(&self, due: Due) {
        assert_nothing_held();
        for (sender, reply) in due {
            if let Some(ino) = sender.sweeps() {
                self.once(Plan::new(&[ino]), None, |meta: &mut Meta<'_>| meta.sweep_tail(ino));
            }
            sender.send(reply);
        }
    }
}
