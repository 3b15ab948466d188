//! Turns a decoded request into a reply, without a transport.
//!
//! [`Dispatcher`] owns the metadata of one export. A request runs as one or more transactions
//! (`store`): a transaction locks the shards of its inodes, changes them, logs the changes, and
//! unlocks them. If other sessions cache state that a request changes, the reply is deferred
//! until they have acknowledged the recall. Decoding, encoding and file data are not handled
//! here.
//!
//! # Concurrency
//! Any number of threads call [`Dispatcher::handle`] at once. Transactions lock shards in order;
//! other state has small locks (`lock_order` has the ranks). No lock is held while large ranges
//! are zeroed, messages are encoded or replies are sent. No thread blocks here for another
//! session.

mod cache_rules;
mod call;
mod change_log;
mod checksums;
mod data;
mod exactly_once;
mod extents;
mod idle;
mod journal;
mod listing;
mod lock_order;
mod locked_inodes;
mod locks;
mod log_quota;
mod meta;
mod names;
mod outcome;
mod pending;
mod permission;
mod prior_sessions;
mod quota;
mod recovery;
mod session_log;
mod shards;
mod snapshot;
mod store;
#[cfg(test)]
mod tests;
mod xattr;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::Memory;
use rfs_proto::{
    Attr, Errno, FileKind, Identity, ROOT_INO, Recall, Recalls, Reply, Request, ServerStats, SetAttr, StatFs,
    VERSION,
};
use seeded_faults::{Fault, seeded};

use crate::{
    access_mode::{AccessMode, changes},
    clock::Clock,
    namespace::{Inode, New},
    recall_timeout::Alarm,
    run_clock,
    sessions::{AttachOptions, Credentials, Refused, Regions, Sessions},
    space::Space,
    squash::Squash,
    stats::{Counters, request_name},
    table::Table,
};
use call::Call;
pub use change_log::{Told, Written};
pub use exactly_once::KeptReply;
use journal::Number;
use locked_inodes::Plan;
pub(crate) use log_quota::SessionQuota;
use meta::WriteView;
use outcome::DeferredReply;
pub use outcome::{Outcome, Promise, Sender};
pub use prior_sessions::Awaited;
pub(crate) use recovery::BEFORE;
pub use recovery::{Damage, Kept};
use shards::{SHARDS, Shards};
use store::Store;

/// The number of no session.
const NO_SESSION: u64 = 0;

/// The owner and permissions of an export's root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Root {
    /// Creates the inode of the root directory and publishes its record.
    fn begin(self, table: &Table, now: i64) -> Result<Inode, Errno> {
        let slot = table.take().ok_or(Errno::ENOSPC)?;
        let Root { perm, uid, gid } = self;
        let kind = FileKind::Directory;
        let root =
            Inode::new(New { kind, perm, umask: 0, uid, gid, rdev: 0, target: b"", slot }, ROOT_INO, now);
        table.publish_all(&root.attr(ROOT_INO), &root.space());
        Ok(root)
    }
}

/// Returns the file that a request may have truncated.
fn shortened(request: &Request<'_>) -> Option<u64> {
    match *request {
        Request::SetAttr { ino, changes: SetAttr { size: Some(_), .. } } => Some(ino),
        _ => None,
    }
}

/// The metadata of an export, and the requests on it.
pub struct Dispatcher {
    store: Store,
    sessions: Sessions,
    counters: Counters,
    clock: Arc<dyn Clock>,
    started: i64,
    /// Identity of the memory, and the number of servers that have served it.
    memory: (Identity, u64),
    /// Sessions of previous servers that do not reconnect, while their clients may still access
    /// memory.
    orphaned_sessions: Mutex<Vec<u64>>,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("space", &self.store.space.totals()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// Creates an empty file system over `space`. Its attribute records lie in `table`, which is
    /// zeroed memory of at least one record.
    pub fn new(
        space: Arc<Space>,
        table: Arc<Memory>,
        root: Root,
        clock: Arc<dyn Clock>,
    ) -> Result<Dispatcher, Errno> {
        let table = Table::new(table);
        let started = clock.now();
        let root = root.begin(&table, started)?;
        let shards = Shards::filled([(ROOT_INO, root)].into_iter().collect(), ROOT_INO);
        Ok(Dispatcher::over(Store::new(shards, table, space, None), clock, started))
    }

    fn over(store: Store, clock: Arc<dyn Clock>, started: i64) -> Dispatcher {
        let (sessions, counters, memory) = (Sessions::default(), Counters::default(), (Identity([0; 16]), 1));
        Dispatcher { store, sessions, counters, clock, started, memory, orphaned_sessions: Mutex::default() }
    }

    /// Sets the alarm to ring when a recall is queued.
    #[must_use]
    pub fn with_alarm(mut self, alarm: Arc<Alarm>) -> Dispatcher {
        self.store.alarm = alarm;
        self
    }

    /// Sets the identity of the memory, and the number of its servers including this one.
    #[must_use]
    pub fn with_memory(mut self, memory: Identity, starts: u64) -> Dispatcher {
        self.memory = (memory, starts);
        self
    }

    /// Enables snapshots.
    #[must_use]
    pub fn with_snapshots(mut self) -> Dispatcher {
        self.store.change_log.enable();
        self
    }

    /// Registers a new session that has no key and may write.
    pub fn session_began(&self, session: u64, regions: Regions) {
        self.session_began_as(session, regions, Credentials { key: None, rights: AccessMode::Write });
    }

    /// Registers a new session.
    pub fn session_began_as(&self, session: u64, regions: Regions, credentials: Credentials) {
        self.sessions.begin(session, regions, credentials);
    }

    /// Sets the squash of a session, before its first request.
    pub fn squash(&self, session: u64, squash: Squash) {
        if let Some(session) = self.sessions.get(session) {
            session.squash_as(squash);
        }
    }

    /// Ends a session and closes its files. The caller guarantees that no one-sided operation of
    /// the session can arrive any more.
    pub fn session_ended(&self, session: u64) {
        let ended = self.sessions.get(session);
        self.sessions.end(session);
        // The end is logged first. A session that has lost some of its locks or space must not
        // reconnect.
        if let Some(ended) = &ended {
            self.log_detach(ended);
        }
        self.drop_caches(session);
        self.store.prior_sessions.end(session);
        self.drop_grants(session);
        self.each_shard(|meta| {
            let shard = meta.namespace.inodes_mut().only();
            for ino in shard.orphans.end_session(session) {
                meta.orphan_released(session, ino);
            }
            let shard = meta.namespace.inodes_mut().only();
            for (ino, last) in shard.open_files.end_session(session) {
                meta.lease_ended(session, ino, last);
                if !last {
                    // The session may have ended between the bytes of a write and the new size.
                    meta.sweep_tail(ino);
                }
            }
        });
        self.send_grants();
        self.store.space.tidy();
        if let (Some(journal), Some(ended)) = (&self.store.journal, &ended) {
            journal.quota.end(ended.told());
        }
    }

    /// Handles a request of a session.
    ///
    /// Errors are returned at once. The reply to a change is deferred while other sessions cache
    /// the old state. The replies to [`Request::Recalls`] and [`Request::Grants`] are deferred
    /// until there is a recall or a grant.
    pub fn handle(&self, session: u64, request: Request<'_>) -> Outcome {
        self.handle_numbered(session, request, None)
    }

    fn handle_numbered(&self, session: u64, request: Request<'_>, number: Option<Number>) -> Outcome {
        let outcome = match request {
            Request::Recalls { done } => Ok(self.answer_recalls(session, done)),
            Request::Grants => Ok(self.answer_grants(session)),
            Request::Attach { version, client, keeps, alone, mount, .. } => {
                let options = AttachOptions { keeps, alone, mount };
                self.attach(session, (version, client), options).map(Outcome::Now)
            }
            _ => self.answer(session, request, number),
        };
        // Counted last: a counted request is a completed request.
        self.counters.count(session, &request);
        outcome.unwrap_or_else(|errno| {
            log::trace!("session {session}: {}: {errno}", request_name(&request));
            Outcome::Now(Reply::Error(errno))
        })
    }

    /// Returns the attributes of a directory in which a session has just changed a name, if the
    /// session caches them. The session usually asks for them next. They are current, so that
    /// changes of other sessions are recalled as usual.
    pub fn directory_after(&self, session: u64, request: &Request<'_>) -> Option<Attr> {
        let directory = request.directory()?;
        let asker = self.sessions.get(session).filter(|session| session.is_attached())?;
        let call = Call::new(&self.store, &*self.clock, &asker, None);
        call.look(&[directory], |look| look.cached_attrs(session, directory))
    }

    /// Sends a deferred reply to `sender`: at once if it is due already, else when it becomes due.
    pub fn redeem(&self, promise: Promise, sender: Sender) {
        if let DeferredReply::Grants(session) = promise.0 {
            return self.wait_for_grants(session, sender);
        }
        let mut due = Vec::new();
        self.store.pending.locked(|state| match promise.0 {
            DeferredReply::Change(reply, mut needs, sweeps) => {
                let sender = sender.sweeping(sweeps);
                needs.retain(|&need| state.recalls.is_open(need));
                match needs.is_empty() {
                    true => due.push((sender, reply)),
                    false => state.held_replies.hold(&needs, (sender, reply)),
                }
            }
            DeferredReply::Recalls(session) => {
                let before = state.recalls.wait(session, sender);
                due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
                state.answer_asker(session, &mut due);
            }
            // Handled above.
            DeferredReply::Grants(_) => {}
        });
        self.store.send(due);
    }

    /// Returns the time at which the first session exceeds `timeout`, unless it acknowledges its
    /// recalls before.
    pub fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.store.pending.locked(|state| state.recalls.deadline(timeout))
    }

    /// Records that a session has lost its connection. The session stays, because its mount may
    /// reconnect.
    pub fn disconnect(&self, session: u64) {
        self.store.pending.locked(|state| state.recalls.disconnect(session));
    }

    /// Detaches the sessions that have not acknowledged a recall for longer than `timeout`. No
    /// request waits for them any more, and they get no replies. The caller has to end them, which
    /// closes their files.
    pub fn give_up(&self, timeout: Duration, now: Instant) -> Vec<u64> {
        let overdue = self.store.pending.locked(|state| state.recalls.overdue(timeout, now));
        for &session in &overdue {
            if let Some(session) = self.sessions.get(session) {
                session.detach();
            }
            self.drop_caches(session);
        }
        overdue
    }

    /// Returns the request counters.
    pub fn stats(&self) -> ServerStats {
        let elapsed = self.clock.now().saturating_sub(self.started);
        ServerStats {
            calls: self.counters.calls(),
            sessions: self.sessions.attached(),
            uptime_secs: u64::try_from(elapsed / 1_000_000_000).unwrap_or(0),
        }
    }

    /// Returns the number of requests handled so far, without those that carry data.
    pub(crate) fn calls_about_names(&self) -> u64 {
        self.counters.about_names()
    }

    /// Returns the total and free space and inodes.
    pub fn statfs(&self) -> StatFs {
        let totals = self.store.space.totals();
        StatFs {
            blocks: totals.len / rfs_proto::BLOCK,
            blocks_free: (totals.available() + self.store.idle.bytes()).min(totals.len) / rfs_proto::BLOCK,
            inodes: u64::from(self.store.table.slots()),
            inodes_free: u64::from(self.store.table.free_slots()) + self.store.idle.inodes(),
        }
    }

    /// Returns the number of unlinked inodes that no session has open but that sessions may still
    /// use.
    pub fn idle_inodes(&self) -> u64 {
        self.store.idle.inodes()
    }

    fn answer(&self, session: u64, request: Request<'_>, number: Option<Number>) -> Result<Outcome, Errno> {
        let asker =
            self.sessions.get(session).filter(|session| session.is_attached()).ok_or(Errno::EPROTO)?;
        let journal = self.store.journal.as_ref();
        if journal.is_some_and(|journal| journal.refuses(&request)) {
            return Err(Errno::ENOSPC);
        }
        if journal.is_some_and(|journal| journal.is_behind()) && changes(&request) {
            return Err(Errno::EIO);
        }
        permission::may_ask(asker.squash(), &request)?;
        // A session of the previous server sends Recalls by itself.
        if matches!(request, Request::Forget { .. }) && !asker.is_restored() {
            self.start_recalls(session);
        }
        let call = Call::new(&self.store, &*self.clock, &asker, number);
        let mut reply = self.reply(&call, session, request);
        if reply == Err(Errno::ENOSPC) && self.free_idle() {
            reply = self.reply(&call, session, request);
        }
        let logged = number.is_some() || changes(&request);
        if journal.is_some_and(|journal| journal.is_behind()) && logged {
            // The change of this request may be the one that is not logged.
            reply = Err(Errno::EIO);
        }
        self.send_grants();
        self.store.space.tidy();
        let (reply, needs) = (reply?, call.into_needs());
        // A session that closes or forgets changes nothing that other sessions have to see, so it
        // does not wait for them.
        let waits = !needs.is_empty() && !seeded(Fault::RecallNotAwaited);
        // A session that returns names does not wait for itself.
        let at_once =
            matches!(request, Request::Close { .. } | Request::Forget { .. } | Request::ReturnNames { .. });
        match !waits || at_once {
            true => Ok(Outcome::Now(reply)),
            false => Ok(Outcome::Later(Promise(DeferredReply::Change(reply, needs, shortened(&request))))),
        }
    }

    /// Frees the unlinked inodes that no session has open, when space or inodes have run out.
    /// Returns true if there were any. A session that was about to open such an inode gets ESTALE.
    fn free_idle(&self) -> bool {
        if self.store.idle.inodes() == 0 {
            return false;
        }
        let mut freed = 0;
        self.each_shard(|meta| {
            for ino in meta.namespace.inodes_mut().only().orphans.idle() {
                meta.orphan_released(NO_SESSION, ino);
                freed += 1;
            }
        });
        self.store.space.tidy();
        log::debug!("out of space: freed {freed} unlinked inodes that no session had open");
        freed > 0
    }

    fn reply(&self, call: &Call<'_>, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            // The service makes sure that the mount does not reconnect.
            Request::Detach => Ok(Reply::Done),
            Request::StatFs => Ok(Reply::StatFs(self.statfs())),
            Request::Stats => Ok(Reply::Stats(self.stats())),
            Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::XattrPart { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => call.answer_xattr(session, request),
            Request::Lock { .. }
            | Request::StopWaiting { .. }
            | Request::Insist { .. }
            | Request::ConfirmLocks { .. }
            | Request::TestLock { .. } => call.answer_locks(session, request),
            Request::Fallocate { .. } | Request::Copy { .. } => call.answer_extents(session, request),
            Request::ReturnNames { ino } => {
                call.locked(&[ino], |meta| meta.names_returned(session, ino));
                Ok(Reply::Done)
            }
            Request::HoldPages { ino } => {
                call.look(&[ino], |look| look.cache_pages(session, ino));
                Ok(Reply::Done)
            }
            Request::DropPages { ino } => {
                call.locked(&[ino], |meta| meta.drop_pages(session, ino)).map(Reply::Attr)
            }
            Request::Write { .. } | Request::Verify { .. } => call.answer_sums(session, request),
            Request::Open { .. }
            | Request::Close { .. }
            | Request::Layout { .. }
            | Request::Allocate { .. }
            | Request::SetAttr { .. }
            | Request::Accessed { .. } => call.answer_data(session, request),
            _ => call.answer_names(session, request),
        }
    }

    fn answer_recalls(&self, session: u64, done: u64) -> Outcome {
        let mut due = Vec::new();
        self.start_recalls(session);
        let outcome = self.store.pending.locked(|state| {
            let is_first = state.recalls.is_first(session);
            // Under the lock: a thread that sees the acknowledgement also sees the space released.
            let space = &self.store.space;
            let Ok(first) =
                state.recalls.acknowledge(session, done, |recall| space.acknowledged(session, recall))
            else {
                return Outcome::Now(Reply::Error(Errno::EPROTO));
            };
            due = state.held_replies.acknowledged(session, first);
            match state.recalls.next(session) {
                Some(recalls) => Outcome::Now(Reply::Recalls(recalls)),
                // From now on the session receives layout recalls, so it may rely on sizes that it
                // has seen.
                None if is_first => {
                    Outcome::Now(Reply::Recalls(Recalls { number: done, recalls: Vec::new() }))
                }
                None => Outcome::Later(Promise(DeferredReply::Recalls(session))),
            }
        });
        self.store.send(due);
        self.store.space.tidy();
        outcome
    }

    /// Starts recalls for a session, if they have not started. From now on the session receives
    /// layout recalls and unlinked inodes, even if it caches nothing. The end of the session takes
    /// the lock of the recalls after this.
    fn start_recalls(&self, session: u64) {
        let Some(session) = self.sessions.get(session).filter(|session| session.is_attached()) else {
            return;
        };
        if session.holds_numbers() {
            return;
        }
        self.store.pending.locked(|state| {
            if state.recalls.asks(session.id()) && session.is_restored() {
                let mut push = |recall| state.recalls.push(session.id(), recall, run_clock::now());
                push(Recall::All);
                // Files gave up this space before the session could receive a recall.
                for (ino, generation) in self.store.space.quarantined_for(session.id()) {
                    push(Recall::Layout { ino, generation });
                }
            }
            session.asks_for_recalls();
            if session.is_restored() {
                self.store.prior_sessions.asks(session.id());
            }
        });
        if session.is_restored() {
            self.queue_unlinked(session.id());
        }
    }

    /// Queues the unlinked inodes that a session of the previous server may use. The session may
    /// receive an inode twice if it is unlinked at the same time.
    fn queue_unlinked(&self, session: u64) {
        let mut unlinked = Vec::new();
        self.each_shard(|meta| unlinked.extend(meta.namespace.inodes_mut().only().orphans.held_by(session)));
        self.store.pending.locked(|state| {
            for ino in unlinked {
                state.recalls.push(session, Recall::Unlinked { ino }, run_clock::now());
            }
        });
    }

    fn attach(
        &self,
        session: u64,
        (version, client): (u32, &str),
        options: AttachOptions,
    ) -> Result<Reply, Errno> {
        if version != VERSION {
            log::warn!("session {session}: {client:?} uses protocol version {version}, the server {VERSION}");
            return Err(Errno::EPROTO);
        }
        let asker = self.sessions.get(session).ok_or(Errno::EPROTO)?;
        // The end of the session ends its recall queue after this, and so finds the queue.
        let attached = self.store.pending.locked(|state| {
            let attached = self.sessions.attach(&asker, options);
            if attached.is_ok() && options.keeps {
                state.recalls.begin(session);
            }
            attached
        });
        let regions = match attached {
            Ok(regions) => regions,
            Err(Refused::OutOfTurn) => return Err(Errno::EPROTO),
            Err(Refused::InUse(others)) => {
                log::debug!("session {session}: {client:?} refused: the export is in use: {others:?}");
                return Ok(Reply::InUse(others));
            }
        };
        if self.log_attach(&asker).is_err() {
            asker.detach();
            self.drop_caches(session);
            return Err(Errno::ENOSPC);
        }
        log::debug!("session {session}: {client:?} attached{}", if options.alone { ", alone" } else { "" });
        Ok(Reply::Attached(self.attached(session, regions, false)))
    }

    /// Drops all cache state of a session that is marked as ended, so that no request waits for it.
    fn drop_caches(&self, session: u64) {
        let mut due = Vec::new();
        let kept = self.store.pending.locked(|state| state.drop_recalls(session, &mut due));
        if kept {
            self.each_shard(|meta| {
                meta.namespace.inodes_mut().only().cache_holders.get_mut().end_session(session);
            });
        }
        self.store.send(due);
    }

    /// Runs a transaction on each shard, one after the other.
    fn each_shard(&self, mut step: impl FnMut(&mut WriteView<'_>)) {
        for at in 0..SHARDS {
            self.store.transact(Plan::shard(at), None, &mut step);
        }
    }
}
