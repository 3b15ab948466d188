//! Sets how the kernel schedules threads of this process.
//!
//! This crate has `unsafe` code here, in `adapter::data`, in `descriptors` and in
//! `session::ring`. rustix does not have sched_setscheduler.
//!
//! # Concurrency
//! The monitor and session threads, each with a [`System`] of its own. Takes no locks.

use std::{fs::File, io, os::unix::fs::FileExt, thread};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

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

fn set_policy(tid: Pid, policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter within the call. The C library's function does nothing
    // on some systems.
    let done = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, tid.as_raw_nonzero().get(), policy, &raw const param)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn policy(tid: Pid) -> io::Result<i32> {
    // SAFETY: the arguments are numbers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid.as_raw_nonzero().get()) };
    i32::try_from(policy).ok().filter(|policy| *policy >= 0).ok_or_else(io::Error::last_os_error)
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
pub(super) struct System {
    /// The last thread that was read, with its open file.
    caller: Option<(u32, File)>,
}

impl System {
    /// Checks that pinning is useful, and that this process may pin threads.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a single core, and if the process has another policy than
    /// SCHED_OTHER. Otherwise the kernel's error: other users than root may become SCHED_IDLE, but
    /// leave that policy only with RLIMIT_NICE of at least 20.
    pub(super) fn probe() -> io::Result<System> {
        if cores()?.count() < 2 || policy(gettid())? != libc::SCHED_OTHER {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // On a separate thread, which ends if the policy cannot be restored.
        let probe = || {
            set_policy(gettid(), libc::SCHED_IDLE)?;
            unpin(gettid())
        };
        let outcome = thread::Builder::new().name("probe".into()).spawn(probe)?.join();
        outcome.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(System::default())
    }

    /// Reads `/proc/TID/task/TID/stat`. The file stays open for the next call, because opening it
    /// takes several times as long as reading it.
    fn stat(&mut self, tid: u32) -> io::Result<String> {
        let file = match self.caller.take() {
            Some((known, file)) if known == tid => file,
            _ => File::open(format!("/proc/{tid}/task/{tid}/stat"))?,
        };
        let mut bytes = [0; 1024];
        let len = file.read_at(&mut bytes, 0)?;
        self.caller = Some((tid, file));
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }
}

impl Scheduler for System {
    fn core_of(&mut self, tid: u32) -> Option<usize> {
        let core = core(&self.stat(tid).ok()?)?;
        (core < CpuSet::MAX_CPU && cores().is_ok_and(|cores| cores.is_set(core))).then_some(core)
    }

    fn is_runnable(&mut self, tid: u32) -> bool {
        self.stat(tid).is_ok_and(|stat| field(&stat, STATE) == Some("R"))
    }

    fn pin(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        set_policy(tid, libc::SCHED_IDLE)?;
        self.move_to(tid, core)
    }

    fn own_core(&self) -> usize {
        sched_getcpu()
    }

    fn move_to(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        let mut only = CpuSet::new();
        only.set(core);
        Ok(sched_setaffinity(Some(tid), &only)?)
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
        let tasks = match std::fs::read_dir("/proc/self/task") {
            Ok(tasks) => tasks,
            Err(e) => return log::warn!("/proc/self/task: {e}"),
        };
        let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        for tid in tids.filter_map(Pid::from_raw).filter(|tid| !pinned.contains(tid)) {
            // A thread that has ended is not pinned.
            if policy(tid).is_ok_and(|policy| policy == libc::SCHED_IDLE)
                && let Err(e) = unpin(tid)
                && e.raw_os_error() != Some(libc::ESRCH)
            {
                log::warn!("cannot unpin a thread: {e}");
            }
        }
    }
}

/// Index of the thread's state among the fields behind its name. The name may contain any
/// character.
const STATE: usize = 0;
/// Index of the core.
const CORE: usize = 36;

fn field(stat: &str, index: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(index)
}

fn core(stat: &str) -> Option<usize> {
    field(stat, CORE)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_the_name() {
        let rest = (4..=52).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let stat = format!("17 (a) R (b) S {rest}\n");
        assert_eq!((field(&stat, STATE), core(&stat)), (Some("S"), Some(39)));
        assert_eq!((field("17 a S", STATE), core("")), (None, None));
    }

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
