//! Waits until session threads have begun with every RELEASE that the kernel has queued.
//!
//! close(2) returns before the kernel sends RELEASE, which drops locks of flock(2) and of open
//! file descriptions. To learn whether such a lock is held, the barrier opens and closes the root
//! of the mount. RELEASEDIR passes through the same queues behind all earlier RELEASEs. When it
//! arrives, a session thread has taken each of them. A thread that has taken a RELEASE without
//! beginning it runs, or waits for a processor (`threads`). The barrier opens the path of the
//! mount, for the reasons in `ring/kick`. If another file system is mounted there, or the root
//! cannot be opened, the barrier has no answer.
//!
//! # Concurrency
//! One thread, which starts with the first question. One round answers all questions that arrived
//! before it. One lock over the state.

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

use crate::fuse::{affinity, descriptors::close_all, session::threads::Threads};

/// Handle of the root directory that the barrier's thread opens. All other handles are smaller.
const HANDLE: u64 = u64::MAX;
/// Time limit of one wait. After it the barrier has no answer. A try-lock of another mount may
/// then fail for a lock whose RELEASE is queued.
const LIMIT: Duration = Duration::from_secs(4);

#[derive(Debug, Default)]
struct State {
    /// Number of requested rounds, of finished rounds, and of the last round with an answer.
    asked: u64,
    over: u64,
    passed: u64,
    /// True once a session thread has seen the open of this round.
    opened: bool,
    /// Number of closes that session threads have seen.
    closed: u64,
    running: bool,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// Thread ID of the barrier's thread, as in requests; 0 before the thread runs.
    tid: AtomicU32,
    state: Mutex<State>,
    moved: Condvar,
    threads: Threads,
    /// Path of the mount.
    point: OnceLock<PathBuf>,
    /// True if each core has its own request queue.
    by_core: AtomicBool,
}

/// The barrier of a mount.
#[derive(Debug, Default)]
pub(in crate::fuse) struct Barrier(Arc<Shared>);

impl Barrier {
    /// Sets the path of the mount.
    pub(super) fn mounted_on(&self, point: PathBuf, by_core: bool) {
        self.0.by_core.store(by_core, Ordering::Relaxed);
        self.0.point.set(point).ok();
    }

    /// Returns true if each core has its own request queue.
    pub(super) fn is_by_core(&self) -> bool {
        self.0.by_core.load(Ordering::Relaxed)
    }

    /// Returns the states of the session threads.
    pub(in crate::fuse) fn threads(&self) -> &Threads {
        &self.0.threads
    }

    /// Returns the reply to an OPENDIR of the barrier's own thread, or `None` for other threads.
    pub(in crate::fuse) fn intercept_opendir(&self, thread: u32) -> Option<(FileHandle, FopenFlags)> {
        if thread == 0 || self.0.tid.load(Ordering::Relaxed) != thread {
            return None;
        }
        self.0.state.lock().opened = true;
        Some((FileHandle(HANDLE), FopenFlags::FOPEN_KEEP_CACHE))
    }

    /// Counts a RELEASEDIR of the barrier. Returns false for other handles.
    pub(in crate::fuse) fn intercept_releasedir(&self, handle: FileHandle) -> bool {
        if handle.0 != HANDLE {
            return false;
        }
        self.0.state.lock().closed += 1;
        self.0.moved.notify_all();
        true
    }

    /// Blocks until session threads have begun with all RELEASEs that the kernel has now. Returns
    /// false if that is unknown.
    pub(in crate::fuse) fn pass(&self) -> bool {
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
        affinity::reset_affinity();
        let cores = cores();
        if let Err(e) = close_all() {
            log::warn!(
                "a thread cannot close its descriptors, and may keep the mount alive if this process is killed: {e}"
            );
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
            false => self.pass_releasedir(point),
            // A RELEASE is in the queue of the core on which the file was closed.
            true => cores.iter().all(|core| bind_to_core(*core) && self.pass_releasedir(point)),
        };
        asked && self.threads.settle(Instant::now() + LIMIT)
    }

    /// Opens and closes the root, and waits for its RELEASEDIR.
    fn pass_releasedir(&self, point: &Path) -> bool {
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

/// Returns the cores that this process may use.
fn cores() -> Vec<usize> {
    let usable = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect()
}

/// Moves the calling thread to a core. Returns false if the thread may not run there.
fn bind_to_core(core: usize) -> bool {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).is_ok()
}
