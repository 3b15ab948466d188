//! Sets how the kernel schedules threads of this process.
//!
//! # Concurrency
//! The monitor and session threads, each with a [`System`] of its own. Takes no locks.

use std::io;

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
use thread_placement::{StatReader, idle_threads, policy, probe, restrict, set_policy};

/// Scheduler functions that the monitor and session threads use.
pub(super) trait Scheduler: Send + 'static {
    /// Returns the core that a thread of any process runs on, or ran on last. Returns `None` if the
    /// thread is invisible, or if this process may not use that core.
    fn core_of(&mut self, tid: u32) -> Option<usize>;

    /// Returns true if a thread is runnable, whether it has a core or not.
    fn is_runnable(&mut self, tid: u32) -> bool;

    /// Pins a thread of this process to a core, as SCHED_IDLE.
    fn pin(&mut self, tid: Pid, core: usize) -> io::Result<()>;

    /// Returns the core of the calling thread.
    fn own_core(&self) -> usize;

    /// Restricts a thread to one core. Leaves its policy unchanged.
    fn move_to(&mut self, tid: Pid, core: usize) -> io::Result<()>;

    /// Restricts a thread to the cores that `other` is not pinned to, if both are pinned to the
    /// same core. The kernel moves a running thread at once, and a sleeping one when it wakes.
    fn separate(&mut self, tid: Pid, other: Pid) -> io::Result<()>;

    /// Gives a thread the process's cores and policy.
    fn unpin(&mut self, tid: Pid) -> io::Result<()>;

    /// Unpins all SCHED_IDLE threads of this process but these. That includes threads that pinned
    /// threads have started.
    fn unpin_all_but(&mut self, pinned: &[Pid]);
}

/// Returns the cores of the process: those of its main thread, which is never pinned.
fn cores() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(rustix::process::getpid()))?)
}

fn unpin(tid: Pid) -> io::Result<()> {
    // The policy comes last: it shows that the thread is unpinned.
    sched_setaffinity(Some(tid), &cores()?)?;
    set_policy(tid, libc::SCHED_OTHER)
}

/// Unpins the calling thread if a pinned or separated thread has started it, because a thread
/// inherits its cores and policy.
pub(crate) fn reset_affinity() {
    let tid = gettid();
    // If the kernel refuses these calls, no thread is pinned.
    let unpinned = match policy(tid) {
        Ok(libc::SCHED_IDLE) => unpin(tid),
        Ok(_) => cores().and_then(|cores| Ok(sched_setaffinity(Some(tid), &cores)?)),
        Err(_) => Ok(()),
    };
    if let Err(e) = unpinned {
        log::warn!("cannot unpin a new thread: {e}");
    }
}

/// The kernel's scheduler.
#[derive(Debug, Default)]
pub(super) struct System(StatReader);

impl System {
    /// Checks that pinning is useful, and that this process may pin threads.
    ///
    /// # Errors
    /// As [`probe`].
    pub(super) fn probe() -> io::Result<System> {
        probe(&cores()?, "probe", unpin)?;
        Ok(System::default())
    }
}

impl Scheduler for System {
    fn core_of(&mut self, tid: u32) -> Option<usize> {
        let core = self.0.core_of(tid)?;
        (core < CpuSet::MAX_CPU && cores().is_ok_and(|cores| cores.is_set(core))).then_some(core)
    }

    fn is_runnable(&mut self, tid: u32) -> bool {
        self.0.is_runnable(tid)
    }

    fn pin(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        set_policy(tid, libc::SCHED_IDLE)?;
        self.move_to(tid, core)
    }

    fn own_core(&self) -> usize {
        sched_getcpu()
    }

    fn move_to(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        restrict(tid, core)
    }

    fn separate(&mut self, tid: Pid, other: Pid) -> io::Result<()> {
        let pinned = sched_getaffinity(Some(tid))?;
        if pinned != sched_getaffinity(Some(other))? {
            return Ok(());
        }
        let mut others = cores()?;
        (0..CpuSet::MAX_CPU).filter(|core| pinned.is_set(*core)).for_each(|core| others.unset(core));
        Ok(sched_setaffinity(Some(tid), &others)?)
    }

    fn unpin(&mut self, tid: Pid) -> io::Result<()> {
        unpin(tid)
    }

    fn unpin_all_but(&mut self, pinned: &[Pid]) {
        let threads = match idle_threads() {
            Ok(threads) => threads,
            Err(e) => return log::warn!("/proc/self/task: {e}"),
        };
        for tid in threads.filter(|tid| !pinned.contains(tid)) {
            // A thread that has ended is not pinned.
            if let Err(e) = unpin(tid)
                && e.raw_os_error() != Some(libc::ESRCH)
            {
                log::warn!("cannot unpin a thread: {e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_calling_thread_has_a_core_and_is_runnable() {
        let mut system = System::default();
        let tid = gettid().as_raw_nonzero().get() as u32;
        for _ in 0..2 {
            assert!(system.core_of(tid).is_some() && system.is_runnable(tid));
        }
        assert!(system.core_of(u32::MAX).is_none() && !system.is_runnable(u32::MAX));
    }

    /// Runs only where the kernel allows pinning.
    #[test]
    fn a_pinned_thread_and_threads_that_it_starts_can_be_unpinned() {
        let Ok(mut system) = System::probe() else {
            return eprintln!("pinning is refused here, or useless");
        };
        let before = cores().expect("cores");
        let pinned = thread::spawn(move || {
            let tid = gettid();
            let core = system.core_of(tid.as_raw_nonzero().get() as u32).expect("a core");
            system.pin(tid, core).expect("pinned");
            let on = sched_getaffinity(None).expect("cores");
            assert!(on.count() == 1 && on.is_set(core) && system.own_core() == core);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_IDLE);
            let started = thread::spawn(|| {
                reset_affinity();
                (policy(gettid()).expect("policy"), sched_getaffinity(None).expect("cores"))
            });
            assert!(started.join().expect("no panic") == (libc::SCHED_OTHER, before));
            system.unpin_all_but(&[tid]);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_IDLE);
            // The main thread is not pinned, so no separation is needed.
            system.separate(tid, rustix::process::getpid()).expect("no need");
            assert!(sched_getaffinity(None).expect("cores") == on);
            system.separate(tid, tid).expect("separated");
            let on = sched_getaffinity(None).expect("cores");
            assert!(on.count() == before.count() - 1 && !on.is_set(core) && system.own_core() != core);
            system.unpin_all_but(&[]);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_OTHER);
            assert!(sched_getaffinity(None).expect("cores") == before);
        });
        pinned.join().expect("no panic");
    }
}
