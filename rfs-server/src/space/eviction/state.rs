//! The candidates for eviction under their lock, the counters, and the signal of the evictor.
//!
//! # Concurrency
//! Any thread. The lock of the candidates is a leaf: a transaction takes it under its shards. The
//! eviction lock is taken with no other lock, and held while one file goes, so evictions follow
//! each other. The signal has a lock of its own, which is a leaf, too.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{candidates::Candidates, policy::EvictionPolicy};

/// Why a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Space or inodes are short.
    Space,
    /// It is too old.
    Age,
}

/// Counters of an export's evictions since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionCounts {
    /// Files that went because space or inodes were short.
    pub evicted_files: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Files that went because they were too old.
    pub expired_files: u64,
    /// Their bytes.
    pub expired_bytes: u64,
    /// Requests that found no space, and waited for files to go.
    pub waits: u64,
    /// Such requests that failed with ENOSPC all the same.
    pub failures: u64,
    /// Time of the last eviction in nanoseconds since 1970; 0 if there was none.
    pub last: i64,
    /// Files that may go now.
    pub candidate_files: u64,
    /// Their bytes.
    pub candidate_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    evicted: [AtomicU64; 2],
    expired: [AtomicU64; 2],
    waits: AtomicU64,
    failures: AtomicU64,
    last: AtomicI64,
}

#[derive(Debug, Default)]
struct Signal {
    woken: bool,
    stop: bool,
}

/// Held by the thread that waits for space, of whichever export.
static WAITER: Mutex<()> = Mutex::new(());

/// Eviction of an export.
#[derive(Debug, Default)]
pub struct Eviction {
    policy: EvictionPolicy,
    candidates: Mutex<Candidates>,
    /// Held while one file goes.
    lock: Mutex<()>,
    counters: Counters,
    /// The counters as the log has them, and the time of its last line.
    logged: Mutex<(Option<Instant>, EvictionCounts)>,
    signal: Mutex<Signal>,
    changed: Condvar,
    /// The evictor has been woken, and has not begun since.
    is_woken: AtomicBool,
}

impl Eviction {
    /// Returns an eviction without candidates.
    pub fn new(policy: EvictionPolicy) -> Eviction {
        let ttl = policy.ttl.map(|ttl| i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX));
        Eviction { policy, candidates: Mutex::new(Candidates::new(ttl)), ..Eviction::default() }
    }

    /// Returns the rules.
    pub fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    /// Locks the candidates. The holder takes no other lock.
    pub fn candidates(&self) -> MutexGuard<'_, Candidates> {
        self.candidates.lock()
    }

    /// Blocks until no other thread evicts a file, and keeps others from it.
    pub fn begin(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// Blocks until no eviction is under way that began before this call.
    pub fn settle(&self) {
        drop(self.lock.lock());
    }

    /// Returns the right to wait for space, which one thread of the process has at a time. A server
    /// has two call threads or more, so one of them always receives acknowledgements.
    pub fn try_wait() -> Option<MutexGuard<'static, ()>> {
        WAITER.try_lock()
    }

    /// Counts a file that went.
    pub fn count(&self, reason: Reason, bytes: u64, now: i64) {
        let [files, sum] = match reason {
            Reason::Space => &self.counters.evicted,
            Reason::Age => &self.counters.expired,
        };
        files.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
        self.counters.last.store(now, Ordering::Relaxed);
    }

    /// Counts a request that waits for space.
    pub fn count_wait(&self) {
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that waited for space and got none.
    pub fn count_failure(&self) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub fn counts(&self) -> EvictionCounts {
        let (candidate_files, candidate_bytes) = self.candidates().totals();
        let Counters { evicted, expired, waits, failures, last } = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EvictionCounts {
            evicted_files: load(&evicted[0]),
            evicted_bytes: load(&evicted[1]),
            expired_files: load(&expired[0]),
            expired_bytes: load(&expired[1]),
            waits: load(waits),
            failures: load(failures),
            last: last.load(Ordering::Relaxed),
            candidate_files,
            candidate_bytes,
        }
    }

    /// Logs the files that went since the last line, unless that line is younger than `pause`.
    /// Returns the time until the next line is due, if there is something to log.
    pub fn log_counts(&self, pause: Duration) -> Option<Duration> {
        let (counts, mut logged) = (self.counts(), self.logged.lock());
        let (last, before) = *logged;
        let files = counts.evicted_files - before.evicted_files;
        let expired = counts.expired_files - before.expired_files;
        if files + expired == 0 {
            return None;
        }
        if let Some(left) = last.and_then(|last| pause.checked_sub(last.elapsed())) {
            return Some(left);
        }
        log::info!(
            "evicted {files} unused files ({}) and {expired} files older than their time ({})",
            byte_size::show(counts.evicted_bytes - before.evicted_bytes),
            byte_size::show(counts.expired_bytes - before.expired_bytes),
        );
        *logged = (Some(Instant::now()), counts);
        None
    }

    /// Wakes the evictor, which looks how full the export is.
    pub fn wake(&self) {
        // Most requests above the high mark find the evictor woken.
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.signal.lock().woken = true;
            self.changed.notify_one();
        }
    }

    /// Sleeps until the evictor is woken, or for `pause`. Returns false when the server stops.
    pub(super) fn sleep(&self, pause: Option<Duration>) -> bool {
        let mut signal = self.signal.lock();
        if !signal.woken && !signal.stop {
            match pause {
                Some(pause) => _ = self.changed.wait_for(&mut signal, pause),
                None => self.changed.wait(&mut signal),
            }
        }
        signal.woken = false;
        // Before the look: a request that fills the export after it wakes the evictor again.
        self.is_woken.store(false, Ordering::Release);
        !signal.stop
    }

    /// Returns true if the server stops.
    pub fn is_stopping(&self) -> bool {
        self.signal.lock().stop
    }

    pub(super) fn stop(&self) {
        self.signal.lock().stop = true;
        self.changed.notify_all();
    }
}
