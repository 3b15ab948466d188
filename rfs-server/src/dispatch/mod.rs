//! From a decoded request to a reply, for any transport or none.
//!
//! Threading: [`Dispatcher::handle`] runs on any number of threads at once. One lock protects the metadata; it is
//! taken in one place, held for one step of a request, and never while large ranges are
//! zeroed or messages are encoded. The arena's account has a lock of its own, taken after this one. Nobody waits in here: a reply
//! that others have to agree to first is promised, and sent by whoever agrees last, after the lock.
//!
//! It does not decode, encode, or move file data.

mod call;
mod data;
mod extents;
mod keeping;
mod locks;
mod meta;
mod names;
mod outcome;
#[cfg(test)]
mod tests;
mod xattr;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::Memory;
use rfs_proto::{Attached, Errno, FileKind, Reply, Request, ServerStats, StatFs, VERSION};

use crate::{
    clock::Clock,
    grants::Grants,
    keepers::Keepers,
    leases::Leases,
    locks::Locks,
    namespace::{Namespace, New},
    patience::Alarm,
    recalls::{Need, Queues},
    scrub::Space,
    sessions::{Regions, Sessions},
    stats::{Counters, request_name},
    table::Table,
    waits::Waits,
};
use call::Call;
use meta::Meta;
use outcome::Debt;
pub use outcome::{Outcome, Promise, Sender};

/// The root directory of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Handles requests.
pub struct Dispatcher {
    meta: Mutex<Meta>,
    space: Arc<Space>,
    counters: Counters,
    clock: Arc<dyn Clock>,
    alarm: Arc<Alarm>,
    started: i64,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("space", &self.space.totals()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// An empty file system over `space`, with its attribute records in `table`: zeroed memory of at least one record.
    pub fn new(
        space: Arc<Space>,
        table: Arc<Memory>,
        root: Root,
        clock: Arc<dyn Clock>,
    ) -> Result<Dispatcher, Errno> {
        let started = clock.now();
        let mut table = Table::new(table);
        let slot = table.take().ok_or(Errno::ENOSPC)?;
        let root = New {
            kind: FileKind::Directory,
            perm: root.perm,
            umask: 0,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            target: b"",
            slot,
        };
        let namespace = Namespace::new(root, started);
        let meta = Meta {
            namespace,
            table,
            leases: Leases::default(),
            locks: Locks::default(),
            grants: Grants::default(),
            sessions: Sessions::default(),
            space: Arc::clone(&space),
            xattr_bytes: 0,
            keepers: Keepers::default(),
            recalls: Queues::default(),
            waits: Waits::default(),
            fresh: Vec::new(),
            due: Vec::new(),
        };
        meta.publish_new(rfs_proto::ROOT_INO);
        let (meta, counters, alarm) = (Mutex::new(meta), Counters::default(), Arc::default());
        Ok(Dispatcher { meta, space, counters, clock, alarm, started })
    }

    /// Has something to wake when anything is recalled.
    #[must_use]
    pub fn with_alarm(self, alarm: Arc<Alarm>) -> Dispatcher {
        Dispatcher { alarm, ..self }
    }

    /// A session came up.
    pub fn session_began(&self, session: u64, regions: Regions) {
        self.locked(|meta| meta.sessions.begin(session, regions));
    }

    /// A session is gone, and none of its one-sided operations can arrive any more: everything it had open is
    /// closed.
    pub fn session_ended(&self, session: u64) {
        self.locked(|meta| {
            meta.keeps_no_longer(session);
            meta.end_grants(session);
            meta.sessions.end(session);
            for (ino, last) in meta.leases.end_session(session) {
                meta.lease_ended(session, ino, last);
            }
        });
        self.space.tidy();
    }

    /// Handles a request of a session. Errors are there at once; the reply to a change is owed while others keep what it changed,
    /// and that to [`Request::Recalls`] and [`Request::Grants`] until there is one.
    pub fn handle(&self, session: u64, request: Request<'_>) -> Outcome {
        let outcome = self.handle_one(session, request);
        // Whoever finds it counted finds it done.
        self.counters.count(&request);
        outcome
    }

    fn handle_one(&self, session: u64, request: Request<'_>) -> Outcome {
        if let Request::Recalls { done } = request {
            return self.answer_recalls(session, done);
        }
        if let Request::Grants = request {
            return self.answer_grants(session);
        }
        let call = Call::new(self);
        // Whoever closes does not wait for others: he holds nothing that they would have to see.
        let waits = !matches!(request, Request::Close { .. });
        let reply = self.answer(&call, session, request);
        self.space.tidy();
        match (reply, call.into_needs()) {
            (Ok(reply), needs) if needs.is_empty() || !waits => Outcome::Now(reply),
            (Ok(reply), needs) => Outcome::Later(Promise(Debt::Held(reply, needs))),
            (Err(errno), _) => {
                log::trace!("session {session}: {}: {errno}", request_name(&request));
                Outcome::Now(Reply::Error(errno))
            }
        }
    }

    /// Sends the reply that is owed to `sender`: now, if it has become due meanwhile, or when it does.
    pub fn redeem(&self, promise: Promise, sender: Sender) {
        self.locked(|meta| match promise.0 {
            Debt::Held(reply, mut needs) => {
                needs.retain(|&need| meta.recalls.is_open(need));
                match needs.is_empty() {
                    true => meta.due.push((sender, reply)),
                    false => meta.waits.hold(&needs, (sender, reply)),
                }
            }
            Debt::Recalls(session) => {
                let before = meta.recalls.wait(session, sender);
                meta.due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
                meta.answer_asker(session);
            }
            Debt::Grants(session) => meta.asks_for_grants(session, sender),
        });
    }

    /// When the first session runs out of `patience`, unless it acknowledges before.
    pub fn deadline(&self, patience: Duration) -> Option<Instant> {
        self.locked(|meta| meta.recalls.deadline(patience))
    }

    /// Gives up on the sessions that have not acknowledged a recall for longer than `patience`: nobody waits for them any more, and
    /// nothing is answered to them. They have to be ended, which frees what they have open.
    pub fn give_up(&self, patience: Duration, now: Instant) -> Vec<u64> {
        self.locked(|meta| {
            let overdue = meta.recalls.overdue(patience, now);
            for &session in &overdue {
                meta.keeps_no_longer(session);
                meta.sessions.detach(session);
            }
            overdue
        })
    }

    /// Counters.
    pub fn stats(&self) -> ServerStats {
        let elapsed = self.clock.now().saturating_sub(self.started);
        ServerStats {
            calls: self.counters.calls(),
            sessions: self.locked(|meta| meta.sessions.attached()),
            uptime_secs: u64::try_from(elapsed / 1_000_000_000).unwrap_or(0),
        }
    }

    /// Totals.
    pub fn statfs(&self) -> StatFs {
        let totals = self.space.totals();
        let (inodes, inodes_free) =
            self.locked(|meta| (u64::from(meta.table.slots()), u64::from(meta.table.free_slots())));
        StatFs {
            blocks: totals.len / rfs_proto::BLOCK,
            blocks_free: totals.available() / rfs_proto::BLOCK,
            inodes,
            inodes_free,
        }
    }

    fn answer(&self, call: &Call<'_>, session: u64, request: Request<'_>) -> Result<Reply, Errno> {
        if let Request::Attach { version, client, keeps, .. } = request {
            return self.attach(session, version, client, keeps);
        }
        if !self.locked(|meta| meta.sessions.is_attached(session)) {
            return Err(Errno::EPROTO);
        }
        match request {
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
            | Request::TestLock { .. } => call.answer_locks(session, request),
            Request::Fallocate { .. } | Request::Copy { .. } => call.answer_extents(session, request),
            Request::Open { .. }
            | Request::Close { .. }
            | Request::Layout { .. }
            | Request::Allocate { .. }
            | Request::SetAttr { .. } => call.answer_data(session, request),
            _ => call.answer_names(session, request),
        }
    }

    fn answer_recalls(&self, session: u64, done: u64) -> Outcome {
        self.locked(|meta| {
            let Ok(first) = meta.recalls.acknowledge(session, done) else {
                return Outcome::Now(Reply::Error(Errno::EPROTO));
            };
            let released = meta.waits.acknowledged(session, first);
            meta.due.extend(released);
            match meta.recalls.next(session) {
                Some(recalls) => Outcome::Now(Reply::Recalls(recalls)),
                None => Outcome::Later(Promise(Debt::Recalls(session))),
            }
        })
    }

    fn attach(&self, session: u64, version: u32, client: &str, keeps: bool) -> Result<Reply, Errno> {
        if version != VERSION {
            log::warn!("session {session}: {client:?} speaks version {version}, this is version {VERSION}");
            return Err(Errno::EPROTO);
        }
        let regions = self.locked(|meta| meta.attach(session, keeps)).ok_or(Errno::EPROTO)?;
        log::debug!("session {session}: {client:?} attached");
        let Regions { arena, table } = regions;
        Ok(Reply::Attached(Attached { arena, table, now: self.clock.now(), session }))
    }

    fn locked<T>(&self, step: impl FnOnce(&mut Meta) -> T) -> T {
        self.step(step).0
    }

    /// One step under the lock, and the recalls that it caused. Replies that became due are sent after the lock.
    fn step<T>(&self, step: impl FnOnce(&mut Meta) -> T) -> (T, Vec<Need>) {
        let mut meta = self.meta.lock();
        let result = step(&mut meta);
        meta.tell_of_locks();
        let fresh = std::mem::take(&mut meta.fresh);
        for need in &fresh {
            meta.answer_asker(need.session);
        }
        let due = std::mem::take(&mut meta.due);
        drop(meta);
        if !fresh.is_empty() {
            self.alarm.recalled();
        }
        for (sender, reply) in due {
            sender.send(reply);
        }
        (result, fresh)
    }
}
