//! Waits until the adapter has begun with every release that the kernel had at a moment.
//!
//! close(2) returns before the adapter hears of the last close: the kernel sends RELEASE in the background. The locks of flock(2) and of
//! open file descriptions go with it. So whoever has to know whether such a lock is still held opens the root of the mount
//! and closes it: RELEASEDIR goes through the queues of RELEASE, behind all that were there before. When it arrives, a session thread has taken
//! each of these. A thread that has taken one and not begun with it runs, or waits for a processor (`threads`).
//!
//! The thread asks by the path of the mount, as `ring/kick` does and for the reasons given there. If something else is mounted
//! there, or the root cannot be opened, there is no answer.
//!
//! # Concurrency
//! One thread, started at the first question. Questions that come while it asks are answered together by the next round.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fuser::{FileHandle, FopenFlags};
use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::{Mode, OFlags, open},
    thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity},
};

use super::{
    placement,
    session::{descriptors::close_all, threads::Threads},
};

/// The handle of the root as this thread opens it. No other one is as large.
const HANDLE: u64 = u64::MAX;
/// Upper bound of one wait. After it the barrier has no answer, and a try-lock of another mount may
/// fail for a lock whose release is on its way.
const LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
struct State {
    /// Rounds that were asked for, that are over, and the last one that came to an answer.
    asked: u64,
    over: u64,
    passed: u64,
    /// The root was opened through this mount.
    opened: bool,
    /// How often it was closed.
    closed: u64,
    running: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// Of the thread, as the kernel says it in requests; 0 before there is one.
    tid: AtomicU32,
    state: Mutex<State>,
    moved: Condvar,
    threads: Threads,
    /// The path of the mount.
    point: OnceLock<PathBuf>,
    /// Requests have a queue for each core.
    by_core: AtomicBool,
}

/// The barrier of a mount.
#[derive(Debug, Default)]
pub(in crate::fuse) struct Barrier(Arc<Shared>);

impl Barrier {
    /// Says where the mount is.
    pub(super) fn mounted_on(&self, point: PathBuf, by_core: bool) {
        self.0.by_core.store(by_core, Ordering::Relaxed);
        self.0.point.set(point).ok();
    }

    /// The session threads.
    pub(in crate::fuse) fn threads(&self) -> &Threads {
        &self.0.threads
    }

    /// A directory is opened by a thread: how, if that is the barrier's own doing.
    pub(super) fn opens(&self, thread: u32) -> Option<(FileHandle, FopenFlags)> {
        if thread == 0 || self.0.tid.load(Ordering::Relaxed) != thread {
            return None;
        }
        self.0.state.lock().opened = true;
        Some((FileHandle(HANDLE), FopenFlags::FOPEN_KEEP_CACHE))
    }

    /// A directory is closed. Returns true if it was the barrier's.
    pub(super) fn closes(&self, handle: FileHandle) -> bool {
        if handle.0 != HANDLE {
            return false;
        }
        self.0.state.lock().closed += 1;
        self.0.moved.notify_all();
        true
    }

    /// Returns when session threads have begun with all releases that the kernel has now. False if that is not known.
    pub(super) fn pass(&self) -> bool {
        let mut state = self.0.state.lock();
        if !state.running {
            let shared = Arc::clone(&self.0);
            if let Err(e) = thread::Builder::new().name("barrier".into()).spawn(move || shared.run()) {
                log::error!("cannot start the thread that waits for releases: {e}");
                return false;
            }
            state.running = true;
        }
        state.asked += 1;
        let mine = state.asked;
        self.0.moved.notify_all();
        while state.over < mine && !state.stop {
            self.0.moved.wait(&mut state);
        }
        state.passed >= mine
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.moved.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        placement::begin_unbound();
        let cores = cores();
        if let Err(e) = close_all() {
            log::warn!("a thread keeps the mount from ending if this process is killed: {e}");
        }
        self.tid.store(gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Relaxed);
        loop {
            let round = {
                let mut state = self.state.lock();
                while state.over == state.asked && !state.stop {
                    self.moved.wait(&mut state);
                }
                if state.stop {
                    return;
                }
                state.asked
            };
            let passed = self.round(&cores);
            let mut state = self.state.lock();
            state.over = round;
            if passed {
                state.passed = round;
            }
            self.moved.notify_all();
        }
    }

    fn round(&self, cores: &[usize]) -> bool {
        let Some(point) = self.point.get() else { return false };
        let asked = match self.by_core.load(Ordering::Relaxed) {
            false => self.ask(point),
            // Each of them, as a release is in the queue of the core that the file was closed on.
            true => cores.iter().all(|core| stay_on(*core) && self.ask(point)),
        };
        asked && self.threads.settle(Instant::now() + LIMIT)
    }

    /// Has a RELEASEDIR come by.
    fn ask(&self, point: &Path) -> bool {
        let before = {
            let mut state = self.state.lock();
            state.opened = false;
            state.closed
        };
        let root = open(point, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        if root.map(drop).is_err() {
            return false;
        }
        let mut state = self.state.lock();
        if !state.opened {
            return false;
        }
        let limit = Instant::now() + LIMIT;
        while state.closed == before && !state.stop {
            if self.moved.wait_until(&mut state, limit).timed_out() {
                return false;
            }
        }
        !state.stop
    }
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let usable = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect()
}

/// Moves the calling thread to a core. False if it may not be there.
fn stay_on(core: usize) -> bool {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).is_ok()
}
