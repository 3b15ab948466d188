//! Collects the status of a running server.
//!
//! # Concurrency
//! Any thread. Takes short locks, one after the other, and none that a thread holds while it waits
//! for a client.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use rdmabox::{Address, HostHandle, PeerProcess, stats::Histogram};
use rfs_proto::{BLOCK, LockClass, LockKind, VERSION};
use rfs_status::{latency::Latency, logging, process::ProcessStatus};

use super::{
    EvictionStatus, ExportStatus, LockWaitStatus, PoolStatus, ScrubStatus, ServerStatus, SessionState,
    SessionStatus, SnapshotStatus, collect_pool::pool_status,
};
use crate::{
    dispatch::{
        Dispatcher, EvictionActivity,
        stats::{Activity, HeldBack, LockWait, Scrub, SessionActivity},
    },
    server::{
        running_export::{ExportSize, resize_one},
        stores::PoolStores,
    },
    service::FileService,
    session::{access_mode::AccessMode, client_table::SessionClient},
    snapshots::record::{NewestSnapshot, SnapshotHistory, SnapshotRecord},
    space::account::Space,
};

/// An export as the status sees it.
#[derive(Debug)]
pub(in crate::server) struct ObservedExport {
    pub(in crate::server) name: String,
    pub(in crate::server) dispatcher: Arc<Dispatcher>,
    pub(in crate::server) size: ExportSize,
    pub(in crate::server) snapshots: Option<SnapshotRecord>,
}

/// Answer of a server that cannot have stores.
pub const NO_POOL: &str = "it has no stores: start it with --pool, --store-at or --registry";

/// Where the status of a server comes from. Drop it before the server shuts down.
#[derive(Debug)]
pub struct StatusSource {
    pub(in crate::server) start: Instant,
    pub(in crate::server) addresses: Vec<String>,
    pub(in crate::server) exports: Vec<ObservedExport>,
    pub(in crate::server) service: Arc<FileService>,
    /// Does not keep the host from ending.
    pub(in crate::server) host: Weak<HostHandle>,
    /// Stores of the first export.
    pub(in crate::server) pool: Option<Arc<PoolStores>>,
}

impl StatusSource {
    /// Returns the current status.
    pub fn status(&self) -> ServerStatus {
        let mut status = ServerStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: VERSION,
            process: ProcessStatus::now(self.start),
            addresses: self.addresses.clone(),
            log: logging::counts(),
            runtime: self.host.upgrade().map(|host| runtime(&host)).unwrap_or_default(),
            ..ServerStatus::default()
        };
        status.pool = self.pool();
        for (at, export) in self.exports.iter().enumerate() {
            let activity = export.dispatcher.activity();
            let clients = self.service.clients_of(at);
            status.exports.push(export.status(&activity));
            let held_back = |session: &SessionActivity| {
                activity.held_back.iter().find(|held| held.session == session.session)
            };
            let session = |session: &SessionActivity| {
                session_status(&export.name, session, clients.get(&session.session), held_back(session))
            };
            let mut sessions: Vec<_> = activity.sessions.iter().map(session).collect();
            sessions.sort_by_key(|session| session.session);
            status.sessions.extend(sessions);
            status.lock_waits.extend(activity.waits.iter().map(|wait| lock_wait(&export.name, wait)));
        }
        status
    }

    /// Takes a store over, and makes its memory usable. Returns its number.
    ///
    /// # Errors
    /// Why not, in words for people. The pool is as it was.
    pub fn add_store(&self, address: &Address) -> Result<u16, String> {
        let (pool, space) = self.pool_and_space().ok_or(NO_POOL)?;
        pool.add(address, space).map_err(|error| error.to_string())
    }

    /// Moves the data of a store away, or ends that. Returns its number, and false if that was so.
    ///
    /// # Errors
    /// Why not, in words for people.
    pub fn drain_store(&self, name: &str, is_on: bool) -> Result<(u16, bool), String> {
        let (pool, space) = self.pool_and_space().ok_or(NO_POOL)?;
        let number = pool.find(name).map_err(|error| error.to_string())?;
        let changed = pool.drain(number, is_on, space).map_err(|error| error.to_string())?;
        Ok((number, changed))
    }

    /// Removes a store without data. Returns its number.
    ///
    /// # Errors
    /// Why not, in words for people. The pool is as it was.
    pub fn remove_store(&self, name: &str) -> Result<u16, String> {
        let (pool, space) = self.pool_and_space().ok_or(NO_POOL)?;
        let number = pool.find(name).map_err(|error| error.to_string())?;
        pool.remove(number, space).map(|()| number).map_err(|error| error.to_string())
    }

    /// Removes a store that will not come back, with its data. Returns its number, and the number
    /// of files that have lost data.
    ///
    /// # Errors
    /// Why not, in words for people. The pool is as it was.
    pub fn give_up_store(&self, name: &str) -> Result<(u16, u64), String> {
        let (pool, export) = self.pool.as_ref().zip(self.exports.first()).ok_or(NO_POOL)?;
        let number = pool.find(name).map_err(|error| error.to_string())?;
        let lost = pool.give_up(number, &export.dispatcher).map_err(|error| error.to_string())?;
        Ok((number, lost.files))
    }

    /// Changes the size of an export. Returns the old and the new size.
    ///
    /// # Errors
    /// Why not, in words for people. The size is unchanged.
    pub fn resize(&self, export: &str, size: u64) -> Result<(u64, u64), String> {
        let exports = self.exports.iter().map(|export| (export.name.as_str(), &export.size));
        resize_one(exports, export, size).map_err(|error| error.to_string())
    }

    fn pool_and_space(&self) -> Option<(&PoolStores, &Space)> {
        Some((self.pool.as_deref()?, self.exports.first()?.dispatcher.space()))
    }

    /// Returns the stores, if the server has some.
    pub fn pool(&self) -> Option<PoolStatus> {
        let (pool, space) = self.pool_and_space()?;
        Some(pool_status(pool, &space.usage()))
    }
}

impl ObservedExport {
    fn status(&self, activity: &Activity) -> ExportStatus {
        let totals = self.dispatcher.statfs();
        let count = |count: usize| count as u64;
        ExportStatus {
            name: self.name.clone(),
            size_bytes: totals.blocks * BLOCK,
            max_bytes: self.size.max(),
            free_bytes: totals.blocks_free * BLOCK,
            quarantined_bytes: activity.space.quarantined,
            dirty_bytes: activity.space.dirty,
            inodes: totals.inodes,
            free_inodes: totals.inodes_free,
            idle_inodes: self.dispatcher.idle_inodes(),
            sessions: count(activity.sessions.len()),
            requests: self.dispatcher.stats().calls.into_iter().collect(),
            latencies: self.dispatcher.latencies().snapshot().into_iter().map(latency).collect(),
            locks: count(activity.locks.0),
            waiting_locks: count(activity.locks.1),
            waiting_recalls: count(activity.held_replies),
            snapshots: self.snapshots.as_ref().map(|record| snapshots(record.history())),
            scrub: activity.scrub.map(scrub),
            eviction: self.dispatcher.evictions().activity().map(eviction),
        }
    }
}

/// Returns the counters of the runtime by name. One-sided operations do not pass the host.
fn runtime(host: &HostHandle) -> BTreeMap<String, u64> {
    let answers = host.answers();
    let counters = [
        ("answer_messages", answers.messages),
        ("answers_in_memory", answers.in_memory),
        ("answers_written", answers.written),
    ];
    counters.map(|(name, count)| (name.to_owned(), count)).into()
}

fn latency((name, times): (&str, Histogram)) -> (String, Latency) {
    (name.to_owned(), Latency::from(&times))
}

fn eviction(EvictionActivity { policy, counts, last_age }: EvictionActivity) -> EvictionStatus {
    EvictionStatus {
        lru: policy.by_use,
        ttl_seconds: policy.ttl.map(|ttl| ttl.as_secs()),
        evicted_files: counts.evicted_files,
        evicted_bytes: counts.evicted_bytes,
        expired_files: counts.expired_files,
        expired_bytes: counts.expired_bytes,
        waits: counts.waits,
        failures: counts.failures,
        last_seconds: last_age.map(|age| age.as_secs_f64()),
        candidate_files: counts.candidate_files,
        candidate_bytes: counts.candidate_bytes,
    }
}

fn session_status(
    export: &str,
    activity: &SessionActivity,
    client: Option<&SessionClient>,
    held_back: Option<&HeldBack>,
) -> SessionStatus {
    let options = activity.options;
    let cache = match (options.keeps, options.alone) {
        (_, true) => "writeback",
        (true, false) => "auto",
        (false, false) => "none",
    };
    let status = SessionStatus {
        export: export.to_owned(),
        session: activity.session,
        state: SessionState::Restored,
        cache: cache.into(),
        read_only: activity.credentials.rights == AccessMode::Read,
        key: activity.credentials.key.map(|key| key.to_string()),
        squash: Some(activity.squash.to_string().trim().to_owned()).filter(|squash| !squash.is_empty()),
        requests: activity.requests,
        locks: activity.locks as u64,
        recalls: held_back.map_or(0, |held| held.recalls as u64),
        oldest_recall_seconds: held_back.map(|held| held.oldest.as_secs_f64()),
        holds_back: held_back.map_or(0, |held| held.replies as u64),
        ..SessionStatus::default()
    };
    match client {
        Some(client) => with_client(status, client),
        None => status,
    }
}

/// Adds the known facts about the client of a session.
fn with_client(status: SessionStatus, client: &SessionClient) -> SessionStatus {
    let SessionClient { connection, description, lost } = client;
    let filled = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let process = connection.process.as_ref();
    // The kernel knows better than the client.
    let pid = process.and_then(|process| u32::try_from(process.id()).ok());
    let is_connected = lost.is_none();
    let heartbeat = &connection.heartbeat;
    let since = |age: Duration| is_connected.then_some(age.as_secs_f64());
    SessionStatus {
        state: if is_connected { SessionState::Connected } else { SessionState::Disconnected },
        host: filled(&description.host).unwrap_or_else(|| connection.address.clone()),
        address: connection.address.clone(),
        pid: pid.or(description.pid),
        user: process.and_then(user_of).or(description.user),
        mount_point: filled(&description.mount_point),
        program: description.program.clone(),
        provider: connection.provider.to_string(),
        transport: filled(&description.transport),
        connected_seconds: since(heartbeat.connected()),
        silent_seconds: since(heartbeat.age()),
        disconnected_seconds: lost.map(|lost| lost.elapsed().as_secs_f64()),
        ..status
    }
}

/// Returns the user of a process that has not ended, if `/proc` shows it.
fn user_of(process: &PeerProcess) -> Option<u32> {
    let user = std::fs::metadata(format!("/proc/{}", process.id())).ok()?.uid();
    (!process.has_ended()).then_some(user)
}

fn lock_wait(export: &str, LockWait { ino, wanted, holder }: &LockWait) -> LockWaitStatus {
    let class = match wanted.class {
        LockClass::Record => "record",
        LockClass::Flock => "flock",
    };
    LockWaitStatus {
        export: export.to_owned(),
        inode: *ino,
        session: wanted.owner.0,
        pid: wanted.pid,
        exclusive: wanted.kind == LockKind::Exclusive,
        class: class.into(),
        first: wanted.range.first,
        last: wanted.range.last,
        holder_session: holder.map(|holder| holder.owner.0),
        holder_pid: holder.map(|holder| holder.pid),
    }
}

fn snapshots(history: SnapshotHistory) -> SnapshotStatus {
    let age = |time: SystemTime| time.elapsed().unwrap_or_default().as_secs_f64();
    let NewestSnapshot { bytes, took, .. } = history.newest.unwrap_or(NewestSnapshot {
        number: 0,
        time: SystemTime::now(),
        bytes: 0,
        took: Duration::ZERO,
    });
    SnapshotStatus {
        newest: history.newest.map(|newest| newest.number),
        age_seconds: history.newest.map(|newest| age(newest.time)),
        size_bytes: bytes,
        took_seconds: took.as_secs_f64(),
        running_seconds: history.running_since.map(age),
        made: history.made,
        failed: history.failed,
        failure: history.failure,
    }
}

fn scrub(Scrub { begin, last, blocks, bad, is_complete }: Scrub) -> ScrubStatus {
    ScrubStatus {
        age_seconds: last.elapsed().as_secs_f64(),
        took_seconds: last.duration_since(begin).as_secs_f64(),
        compared_bytes: blocks * BLOCK,
        bad_blocks: bad,
        complete: is_complete,
    }
}
