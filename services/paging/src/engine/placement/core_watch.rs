//! The thread that binds the fault thread to a core and releases it.
//!
//! On a shared core the fault thread runs only while no other thread wants the core. So it cannot
//! be the one that leaves: a thread of the program that computes there would keep it from that.
//!
//! # Concurrency
//! One thread for a pager that follows. It sleeps while no core is shared, and looks every 4 ms at
//! the faults otherwise. The fault thread never waits for it, except at the end. Takes no locks.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{CpuSet, Pid, gettid},
};

use crate::{
    engine::Events,
    kernel::{cores, uffd::Uffd},
};

/// Time without a fault after which a shared core is left.
const QUIET: Duration = Duration::from_millis(4);
/// Looks after which threads are searched that the fault thread has started meanwhile.
const LOOKS: u32 = 64;

#[derive(Debug, Default)]
struct Shared {
    /// The core to share, and one more; 0 for none.
    wanted: AtomicUsize,
    /// Faults so far.
    faults: AtomicU64,
    /// A fault waited when the watcher released the fault thread.
    starved: AtomicBool,
    stop: AtomicBool,
}

/// The end of the fault thread. Dropping it releases that thread and stops the watcher.
#[derive(Debug)]
pub(super) struct CoreWatch {
    shared: Arc<Shared>,
    watcher: Option<JoinHandle<()>>,
}

impl CoreWatch {
    /// Watches the calling thread.
    pub(super) fn start(cores: CpuSet, uffd: &Uffd, events: &Events) -> io::Result<CoreWatch> {
        let shared = Arc::<Shared>::default();
        let watcher = Watcher {
            shared: Arc::clone(&shared),
            thread: gettid(),
            cores,
            uffd: uffd.duplicate()?,
            events: events.clone(),
        };
        let thread = thread::Builder::new().name("rfs-paging-core".into());
        let watcher = Some(thread.spawn(move || watcher.run())?);
        Ok(CoreWatch { shared, watcher })
    }

    /// Counts faults. Returns the number of all.
    pub(super) fn count(&self, faults: u64) -> u64 {
        self.shared.faults.fetch_add(faults, Ordering::Relaxed) + faults
    }

    /// Returns `None` while a core is shared, or is about to be. Otherwise returns true if a fault
    /// had to wait when the watcher ended it.
    pub(super) fn ended(&self) -> Option<bool> {
        let has_ended = self.shared.wanted.load(Ordering::Acquire) == 0;
        has_ended.then(|| self.shared.starved.swap(false, Ordering::Relaxed))
    }

    pub(super) fn share(&self, core: usize) {
        self.set(core + 1);
    }

    pub(super) fn leave(&self) {
        self.set(0);
    }

    fn set(&self, wanted: usize) {
        self.shared.wanted.store(wanted, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        if let Some(watcher) = &self.watcher {
            watcher.thread().unpark();
        }
    }
}

impl Drop for CoreWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        // Its panic has been reported, and has no further effect.
        self.watcher.take().map(JoinHandle::join);
    }
}

/// The state of the watcher.
struct Watcher {
    shared: Arc<Shared>,
    /// The fault thread.
    thread: Pid,
    /// Its cores at the start.
    cores: CpuSet,
    uffd: OwnedFd,
    events: Events,
}

impl Watcher {
    fn run(self) {
        let (mut applied, mut looks) = (0, 0);
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let is_stopping = self.shared.stop.load(Ordering::Acquire);
            let wanted = if is_stopping { 0 } else { self.shared.wanted.load(Ordering::Acquire) };
            if wanted != applied {
                self.apply(wanted);
                (applied, looks) = (wanted, 0);
                (last, since) = (self.shared.faults.load(Ordering::Relaxed), Instant::now());
            }
            if is_stopping {
                return;
            }
            if applied == 0 {
                thread::park();
                continue;
            }
            thread::park_timeout(QUIET.saturating_sub(since.elapsed()));
            if since.elapsed() < QUIET {
                continue;
            }
            let faults = self.shared.faults.load(Ordering::Relaxed);
            if faults == last {
                self.end(applied);
            }
            (last, since, looks) = (faults, Instant::now(), looks + 1);
            if looks % LOOKS == 0 {
                cores::release_started(self.thread, &self.cores);
            }
        }
    }

    /// Has the fault thread share a core, or leave it.
    fn apply(&self, wanted: usize) {
        if wanted > 0 {
            if cores::share_core(self.thread, wanted - 1).is_ok() {
                return;
            }
            // The core may be offline. Another core may be wanted by now.
            self.shared.wanted.compare_exchange(wanted, 0, Ordering::AcqRel, Ordering::Relaxed).ok();
        }
        if let Err(error) = cores::leave_core(self.thread, &self.cores) {
            self.events.log(format!("the fault thread stays on one core: {error}"));
        }
        cores::release_started(self.thread, &self.cores);
    }

    /// Ends the sharing of a core, unless the fault thread wants another one meanwhile.
    fn end(&self, applied: usize) {
        self.shared.starved.store(self.has_waiting_fault(), Ordering::Relaxed);
        self.shared.wanted.compare_exchange(applied, 0, Ordering::AcqRel, Ordering::Relaxed).ok();
    }

    /// Returns true if a fault has not been read yet.
    fn has_waiting_fault(&self) -> bool {
        let mut fds = [PollFd::new(&self.uffd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
