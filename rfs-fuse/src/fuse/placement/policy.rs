//! How the kernel schedules threads of this process.
//!
//! Here, in `reply`, `session::descriptors` and `session::ring` is the `unsafe` of this crate: rustix has no sched_setscheduler.

use std::{fs::File, io, os::unix::fs::FileExt, thread};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// What the guard and the seats ask of the kernel.
pub(super) trait Scheduler: Send + 'static {
    /// The core that a thread of any process runs on, or ran on last. `None`: it is not to be seen, or threads of this process are
    /// kept from that core.
    fn core_of(&mut self, tid: u32) -> Option<usize>;

    /// True if a thread has something to do, whether it is given a core or not.
    fn is_runnable(&mut self, tid: u32) -> bool;

    /// Has a thread of this process run on one core, and only while nobody else wants it.
    fn bind(&mut self, tid: Pid, core: usize) -> io::Result<()>;

    /// The core that the calling thread runs on.
    fn own_core(&self) -> usize;

    /// Has a thread that is bound run on another core, and one that is not on that core only.
    fn shift(&mut self, tid: Pid, core: usize) -> io::Result<()>;

    /// Has a thread run on any cores but those of another one, if it is bound to the same. Moves it at once if it runs, and not at all if it sleeps.
    fn part(&mut self, tid: Pid, other: Pid) -> io::Result<()>;

    /// Lets a thread run as the process does.
    fn lift(&mut self, tid: Pid) -> io::Result<()>;

    /// Lifts all threads of this process that are bound back to where they were, but for these: seats, and threads that
    /// they have started.
    fn lift_all_but(&mut self, bound: &[Pid]);
}

/// The cores of the process: those of its first thread, which serves nobody and is never bound.
fn cores() -> io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(rustix::process::getpid()))?)
}

fn set_policy(tid: Pid, policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter within the call. (The C library's function does nothing on some systems.)
    let done = unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, tid.as_raw_nonzero().get(), policy, &raw const param)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn policy(tid: Pid) -> io::Result<i32> {
    // SAFETY: numbers only.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid.as_raw_nonzero().get()) };
    i32::try_from(policy).ok().filter(|policy| *policy >= 0).ok_or_else(io::Error::last_os_error)
}

fn lift(tid: Pid) -> io::Result<()> {
    // Last the policy, by which it is known whether that has come about.
    sched_setaffinity(Some(tid), &cores()?)?;
    set_policy(tid, libc::SCHED_OTHER)
}

/// Lifts the calling thread if it was started by one that is bound, or stays on a core: a thread is scheduled as the one that starts
/// it.
pub(crate) fn begin_unbound() {
    let tid = gettid();
    // Where the calls are refused, nobody is bound.
    let lifted = match policy(tid) {
        Ok(libc::SCHED_IDLE) => lift(tid),
        Ok(_) => cores().and_then(|cores| Ok(sched_setaffinity(Some(tid), &cores)?)),
        Err(_) => Ok(()),
    };
    if let Err(e) = lifted {
        log::warn!("a thread is scheduled as the one that started it: {e}");
    }
}

/// The kernel.
#[derive(Debug, Default)]
pub(super) struct System {
    /// What was asked last about a caller.
    caller: Option<(u32, File)>,
}

impl System {
    /// Finds out whether there is anything to gain, and whether this process may do it.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on one core, and in a process that somebody has given a policy; or the kernel's refusal. Who
    /// is not root may become SCHED_IDLE, but not come back from it, unless RLIMIT_NICE is at least 20.
    pub(super) fn probe() -> io::Result<System> {
        if cores()?.count() < 2 || policy(gettid())? != libc::SCHED_OTHER {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // On a thread that may stay where it gets to.
        let probe = || {
            set_policy(gettid(), libc::SCHED_IDLE)?;
            lift(gettid())
        };
        let outcome = thread::Builder::new().name("probe".into()).spawn(probe)?.join();
        outcome.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(System::default())
    }

    /// `/proc/TID/task/TID/stat`. The one of a caller is kept open: reading it takes about 2 us, opening it several times that.
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

    fn bind(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        set_policy(tid, libc::SCHED_IDLE)?;
        self.shift(tid, core)
    }

    fn own_core(&self) -> usize {
        sched_getcpu()
    }

    fn shift(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        let mut only = CpuSet::new();
        only.set(core);
        Ok(sched_setaffinity(Some(tid), &only)?)
    }

    fn part(&mut self, tid: Pid, other: Pid) -> io::Result<()> {
        let bound = sched_getaffinity(Some(tid))?;
        if bound != sched_getaffinity(Some(other))? {
            return Ok(());
        }
        let mut others = cores()?;
        (0..CpuSet::MAX_CPU).filter(|core| bound.is_set(*core)).for_each(|core| others.unset(core));
        Ok(sched_setaffinity(Some(tid), &others)?)
    }

    fn lift(&mut self, tid: Pid) -> io::Result<()> {
        lift(tid)
    }

    fn lift_all_but(&mut self, bound: &[Pid]) {
        let tasks = match std::fs::read_dir("/proc/self/task") {
            Ok(tasks) => tasks,
            Err(e) => return log::warn!("/proc/self/task: {e}"),
        };
        let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        for tid in tids.filter_map(Pid::from_raw).filter(|tid| !bound.contains(tid)) {
            // One that is gone is not bound.
            if policy(tid).is_ok_and(|policy| policy == libc::SCHED_IDLE)
                && let Err(e) = lift(tid)
                && e.raw_os_error() != Some(libc::ESRCH)
            {
                log::warn!("a thread stays on its core: {e}");
            }
        }
    }
}

/// Of the fields that follow the name, which may contain anything, the first is this.
const STATE: usize = 0;
/// And this one the core.
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
    fn this_thread_runs_somewhere() {
        let mut system = System::default();
        let tid = gettid().as_raw_nonzero().get() as u32;
        for _ in 0..2 {
            assert!(system.core_of(tid).is_some() && system.is_runnable(tid));
        }
        assert!(system.core_of(u32::MAX).is_none() && !system.is_runnable(u32::MAX));
    }

    /// Where it is allowed.
    #[test]
    fn who_is_bound_can_be_lifted_and_so_can_whom_it_starts() {
        let Ok(mut system) = System::probe() else {
            return eprintln!("binding is refused here, or of no use");
        };
        let before = cores().expect("cores");
        let bound = thread::spawn(move || {
            let tid = gettid();
            let core = system.core_of(tid.as_raw_nonzero().get() as u32).expect("a core");
            system.bind(tid, core).expect("bound");
            let on = sched_getaffinity(None).expect("cores");
            assert!(on.count() == 1 && on.is_set(core) && system.own_core() == core);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_IDLE);
            let started = thread::spawn(|| {
                begin_unbound();
                (policy(gettid()).expect("policy"), sched_getaffinity(None).expect("cores"))
            });
            assert!(started.join().expect("no panic") == (libc::SCHED_OTHER, before));
            system.lift_all_but(&[tid]);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_IDLE);
            // From one that may run anywhere it need not.
            system.part(tid, rustix::process::getpid()).expect("no need");
            assert!(sched_getaffinity(None).expect("cores") == on);
            system.part(tid, tid).expect("parted");
            let on = sched_getaffinity(None).expect("cores");
            assert!(on.count() == before.count() - 1 && !on.is_set(core) && system.own_core() != core);
            system.lift_all_but(&[]);
            assert_eq!(policy(tid).expect("policy"), libc::SCHED_OTHER);
            assert!(sched_getaffinity(None).expect("cores") == before);
        });
        bound.join().expect("no panic");
    }
}
