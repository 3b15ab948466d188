//! Turns a decoded request into a reply, without a transport.
//!
//! [`Dispatcher`] owns the metadata of one export. A request runs as one or more transactions
//! (`transaction`). Each locks the shards of its inodes, changes them, logs the changes, and
//! unlocks them. If other sessions cache state that a request changes, the reply is deferred
//! until they have acknowledged the recall. Decoding, encoding and file data are not handled
//! here.
//!
//! # Concurrency
//! Any number of threads call [`Dispatcher::handle`] at once. Transactions lock shards in order;
//! other state has small locks (`lock_order` has the ranks). No lock is held while large ranges
//! are zeroed, messages are encoded or replies are sent. No thread blocks here for another
//! session.

mod answer;

use std::sync::Arc;

use parking_lot::Mutex;
use rdmabox::Memory;
use rfs_proto::{Attr, Errno, Identity, ROOT_INO, Reply, Request, ServerStats, StatFs};

use super::{
    attachment::Attachments,
    delivery::{grants::GrantDelivery, recalls::RecallDelivery},
    exactly_once::{ExactlyOnce, Repeats},
    persistence::{
        log_upkeep::LogUpkeep,
        previous_mounts::PreviousMounts,
        recovery::{Damage, RecoveredState, recover},
        session_log::SessionLog,
        snapshot::SnapshotSource,
    },
    placement::{Placement, eviction::Evictions},
    state::{
        export::ExportState,
        journal::Number,
        outcome::{DeferredReply, HeldReply, Outcome, Sender},
        shards::Shards,
        store::Store,
    },
    stats::{Activity, CallLatencies, Counters, Scrubs, request_name},
    transaction::call::Call,
};
use crate::{
    coherence::alarm::Alarm,
    metadata::{attr_table::Table, clock::Clock, root::Root},
    session::registry::{AttachOptions, Sessions},
    space::{
        account::{Space, Zeroing},
        bytes::Bytes,
        eviction::{Eviction, EvictionPolicy},
    },
};

/// Bits of a session number that have the connection's number. An appender's word holds 48 bits
/// of a session number; the others have the number of the server start.
const CONNECTION_BITS: u32 = 32;
const START_BITS: u32 = 16;

/// The metadata of an export, and the requests on it.
pub struct Dispatcher {
    pub(super) store: Store,
    pub(super) sessions: Sessions,
    pub(super) counters: Counters,
    scrubs: Scrubs,
    latencies: Arc<CallLatencies>,
    repeats: Repeats,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) started: i64,
    /// Identity of the memory, and the number of servers that have served it.
    pub(super) memory: (Identity, u64),
    /// Sessions of previous servers that do not reconnect, while their clients may still access
    /// memory.
    abandoned: Mutex<Vec<u64>>,
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
        let export = ExportState::new(Store::new(shards, table, space, None));
        Ok(Dispatcher::over(export, clock, started))
    }

    /// Restores the file system of a memory object, or creates a file system in a new object.
    /// `mode` says how dirty space is zeroed.
    pub fn kept(
        (bytes, table): (impl Into<Bytes>, Arc<Memory>),
        mode: Zeroing,
        root: Root,
        clock: Arc<dyn Clock>,
        kept: RecoveredState,
    ) -> Result<Dispatcher, Damage> {
        let started = clock.now();
        let export = recover((bytes.into(), table), mode, root, started, kept)?;
        Ok(Dispatcher::over(export, clock, started))
    }

    fn over(export: ExportState, clock: Arc<dyn Clock>, started: i64) -> Dispatcher {
        let ExportState { store, sessions, abandoned } = export;
        let (counters, scrubs, latencies, repeats) = Default::default();
        let memory = (Identity([0; 16]), 1);
        Dispatcher {
            store,
            sessions,
            counters,
            scrubs,
            latencies,
            repeats,
            clock,
            started,
            memory,
            abandoned,
        }
    }

    /// Sets the alarm that goes off when a recall is queued.
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

    /// Has files leave by these rules.
    #[must_use]
    pub fn with_eviction(mut self, policy: EvictionPolicy) -> Dispatcher {
        if policy.is_on() {
            self.store.eviction = Some(Arc::new(Eviction::new(policy)));
            self.evictions().collect();
        }
        self
    }

    /// Handles a request of a session.
    ///
    /// Errors are returned at once. The reply to a change is deferred while other sessions cache
    /// the old state. The replies to [`Request::Recalls`] and [`Request::Grants`] are deferred
    /// until there is a recall or a grant.
    pub fn handle(&self, session: u64, request: Request<'_>) -> Outcome {
        self.handle_numbered(session, request, None)
    }

    /// Handles a request of a mount that reconnects. If a request with this slot and sequence
    /// number was handled before, returns the outcome of that request.
    pub fn handle_once(&self, session: u64, number: Number, request: Request<'_>) -> Outcome {
        self.exactly_once()
            .handle(session, number, &request, || self.handle_numbered(session, request, Some(number)))
    }

    /// Sends a deferred reply to `sender`: at once if it is due already, else when it becomes due.
    pub fn redeem(&self, HeldReply(held): HeldReply, sender: Sender) {
        match held {
            DeferredReply::Grants(session) => self.grants().wait(session, sender),
            DeferredReply::Repeated(session, number) => self.exactly_once().redeem(session, number, sender),
            held => self.recalls().hold(held, sender),
        }
    }

    /// Returns the job that handles each numbered request once.
    pub(in crate::dispatch) fn exactly_once(&self) -> ExactlyOnce<'_> {
        let Dispatcher { store, sessions, repeats, .. } = self;
        ExactlyOnce { store, sessions, repeats, recalls: self.recalls() }
    }

    /// Returns the job that begins, attaches and ends sessions.
    pub fn attachments(&self) -> Attachments<'_> {
        let Dispatcher { store, sessions, abandoned, memory, .. } = self;
        Attachments {
            store,
            sessions,
            clock: &*self.clock,
            memory: *memory,
            recalls: self.recalls(),
            grants: self.grants(),
            log: SessionLog { store, sessions, abandoned },
        }
    }

    /// Returns the job that delivers recalls.
    pub fn recalls(&self) -> RecallDelivery<'_> {
        RecallDelivery { store: &self.store, sessions: &self.sessions }
    }

    fn grants(&self) -> GrantDelivery<'_> {
        GrantDelivery { store: &self.store, sessions: &self.sessions }
    }

    /// Returns the job that keeps the log short and complete.
    pub fn log_upkeep(&self) -> LogUpkeep<'_> {
        LogUpkeep { store: &self.store, sessions: &self.sessions, abandoned: &self.abandoned }
    }

    /// Returns the sessions of the previous server.
    pub fn previous_mounts(&self) -> PreviousMounts<'_> {
        PreviousMounts { store: &self.store, sessions: &self.sessions, abandoned: &self.abandoned }
    }

    /// Returns the job that looks at the places of files.
    pub fn placement(&self) -> Placement<'_> {
        Placement { store: &self.store, sessions: &self.sessions }
    }

    /// Returns the job that evicts files.
    pub fn evictions(&self) -> Evictions<'_> {
        Evictions { store: &self.store, clock: &*self.clock }
    }

    /// Returns the eviction of the export, if it has one.
    pub(crate) fn eviction(&self) -> Option<&Arc<Eviction>> {
        self.store.eviction.as_ref()
    }

    /// Returns the state that a snapshot reads.
    pub(crate) fn snapshot_source(&self) -> SnapshotSource<'_> {
        SnapshotSource { store: &self.store }
    }

    fn handle_numbered(&self, session: u64, request: Request<'_>, number: Option<Number>) -> Outcome {
        let outcome = match request {
            Request::Recalls { done } => Ok(self.recalls().answer(session, done)),
            Request::Grants => Ok(self.grants().answer(session)),
            Request::Attach { version, client, keeps, alone, mount, .. } => {
                let options = AttachOptions { keeps, alone, mount };
                self.attachments().attach(session, (version, client), options).map(Outcome::Now)
            }
            _ => self.answer(session, request, number),
        };
        // Counted last: a counted request is a completed request.
        self.counters.count(session, &request);
        if let (Request::Verify { ino, offset }, Ok(Outcome::Now(Reply::Verified(part)))) =
            (&request, &outcome)
        {
            self.scrubs.record(session, (*ino, *offset), part);
        }
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

    /// Returns the request counters.
    pub fn stats(&self) -> ServerStats {
        let elapsed = self.clock.now().saturating_sub(self.started);
        ServerStats {
            calls: self.counters.calls(),
            sessions: self.sessions.attached(),
            uptime_secs: u64::try_from(elapsed / 1_000_000_000).unwrap_or(0),
        }
    }

    /// Returns the recorder of the latencies of requests.
    pub fn latencies(&self) -> &Arc<CallLatencies> {
        &self.latencies
    }

    /// Returns the waits of sessions, and the figures of the status. Takes short locks only: none
    /// that a thread holds over a request.
    pub fn activity(&self) -> Activity {
        Activity::now(&self.store, &self.sessions, self.scrubs.newest())
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

    /// Returns the session number of a connection. No session of a previous server has it.
    pub fn session_number(&self, connection: u64) -> u64 {
        let start = self.memory.1.wrapping_sub(1) & ((1 << START_BITS) - 1);
        start << CONNECTION_BITS | connection
    }

    /// Returns the connection number of a session that has come to this server.
    pub fn connection_of(session: u64) -> u64 {
        session & ((1 << CONNECTION_BITS) - 1)
    }

    /// Returns the identity of the memory.
    pub(crate) fn identity(&self) -> Identity {
        self.memory.0
    }

    /// Returns the number of requests so far if no client can change anything without a request.
    /// This is so if no session is attached, and no client of a previous server is left.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        let stats = self.stats();
        (stats.sessions == 0 && !self.store.space.has_previous_sessions())
            .then(|| stats.calls.iter().map(|(_, count)| count).sum())
    }

    /// Returns the account of the arena.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.store.space
    }
}
