//! The cores of threads, and how the kernel schedules them.
//!
//! A program has a helper thread follow a busy thread to its core. The helper runs there as
//! SCHED_IDLE, that is, only while no other thread wants the core. The kernel takes a core with
//! such threads only for an idle one, so a thread that is woken stays there.
//!
//! # Concurrency
//! A [`StatReader`] belongs to one thread. Any thread calls the functions. No locks.

mod stat;

use std::{fs, io, thread};

use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};

pub use self::stat::StatReader;

/// Returns the policy of a thread, such as `SCHED_OTHER`.
///
/// # Errors
/// The error of the kernel: `ESRCH` if there is no such thread.
pub fn policy(thread: Pid) -> io::Result<i32> {
    // SAFETY: the arguments are numbers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    i32::try_from(policy).ok().filter(|policy| *policy >= 0).ok_or_else(io::Error::last_os_error)
}

/// Gives a thread a policy without a priority: `SCHED_OTHER` or `SCHED_IDLE`.
///
/// # Errors
/// The error of the kernel.
pub fn set_policy(thread: Pid, policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: the kernel reads the parameter within the call. The C library's function does nothing
    // on some systems.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const param) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Restricts a thread to one core. Leaves its policy unchanged.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if no kernel has such a core, and otherwise the error of the
/// kernel.
pub fn restrict(thread: Pid, core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(Some(thread), &only)?)
}

/// Checks that sharing one of `cores` is useful, and that this process may end it. For this, a new
/// thread called `name` becomes SCHED_IDLE and comes back with `leave`.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if there is one core only, or if the calling thread has another
/// policy than SCHED_OTHER. Otherwise the error of the kernel: other users than root may become
/// SCHED_IDLE, but leave that policy only with RLIMIT_NICE of at least 20.
pub fn probe(
    cores: &CpuSet,
    name: &str,
    leave: impl FnOnce(Pid) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    if cores.count() < 2 || policy(gettid())? != libc::SCHED_OTHER {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // On a separate thread, which ends if the policy cannot be restored.
    let change = || {
        set_policy(gettid(), libc::SCHED_IDLE)?;
        leave(gettid())
    };
    let outcome = thread::Builder::new().name(name.to_owned()).spawn(change)?.join();
    outcome.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Returns the SCHED_IDLE threads of this process. That includes threads that such threads have
/// started: a thread inherits its policy and its cores.
///
/// # Errors
/// The error of reading `/proc/self/task`.
pub fn idle_threads() -> io::Result<impl Iterator<Item = Pid>> {
    let tasks = fs::read_dir("/proc/self/task")?;
    let threads = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    // A thread that has ended has no policy.
    let is_idle = |thread: &Pid| policy(*thread).is_ok_and(|policy| policy == libc::SCHED_IDLE);
    Ok(threads.filter_map(Pid::from_raw).filter(is_idle))
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;

    #[test]
    fn a_thread_and_one_that_it_starts_become_idle_and_come_back() {
        let before = sched_getaffinity(None).expect("cores");
        let leave = |thread| set_policy(thread, libc::SCHED_OTHER);
        // Without the right to come back there is nothing to test.
        if let Err(e) = probe(&before, "probe", leave) {
            return println!("not run: a core cannot be shared and left here: {e}");
        }
        let run = move || {
            let here = gettid();
            set_policy(here, libc::SCHED_IDLE).expect("idle");
            let again = probe(&before, "probe", leave).expect_err("idle already");
            assert_eq!(again.kind(), io::ErrorKind::Unsupported);
            let started = thread::spawn(|| {
                let own = gettid();
                assert!(idle_threads().expect("threads").any(|thread| thread == own));
                set_policy(own, libc::SCHED_OTHER).expect("back");
                assert!(idle_threads().expect("threads").all(|thread| thread != own));
                policy(own).expect("a policy")
            });
            assert_eq!(started.join().expect("no panic"), libc::SCHED_OTHER);
            assert!(idle_threads().expect("threads").any(|thread| thread == here));
            policy(here).expect("a policy")
        };
        assert_eq!(thread::spawn(run).join().expect("no panic"), libc::SCHED_IDLE);
    }

    #[test]
    fn a_thread_is_restricted_to_one_core_that_exists() {
        let run = || {
            let (here, before) = (gettid(), sched_getaffinity(None).expect("cores"));
            let core = (0..CpuSet::MAX_CPU).rfind(|core| before.is_set(*core)).expect("a core");
            restrict(here, core).expect("restricted");
            let after = sched_getaffinity(None).expect("cores");
            assert!(after.count() == 1 && after.is_set(core));
            let thread = here.as_raw_nonzero().get() as u32;
            assert_eq!(StatReader::default().core_of(thread), Some(core));
            assert_eq!(restrict(here, usize::MAX).expect_err("none").kind(), io::ErrorKind::InvalidInput);
        };
        thread::spawn(run).join().expect("no panic");
    }

    #[test]
    fn one_core_is_nothing_to_share() {
        let mut one = CpuSet::new();
        one.set(0);
        let refused = probe(&one, "probe", |_| Ok(())).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }
}
