//! The cores of threads of this process, and how the kernel schedules them.
//!
//! # Concurrency
//! Any thread calls the functions.

use std::{fs, io};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use thread_placement::{idle_threads, restrict, set_policy};

/// Returns the cores that the calling thread may run on.
///
/// # Errors
/// As [`thread_placement::probe`].
pub(crate) fn probe() -> io::Result<CpuSet> {
    let cores = sched_getaffinity(None)?;
    thread_placement::probe(&cores, "rfs-paging-probe", |thread| set_policy(thread, libc::SCHED_OTHER))?;
    Ok(cores)
}

/// Has a thread run on one core only, and only while no other thread wants it. The kernel takes a
/// core with such threads only for an idle one, so a thread that is woken stays there.
pub(crate) fn share_core(thread: Pid, core: usize) -> io::Result<()> {
    restrict(thread, core)?;
    set_policy(thread, libc::SCHED_IDLE)
}

/// Has a thread run on any of `cores`, like other threads.
pub(crate) fn leave_core(thread: Pid, cores: &CpuSet) -> io::Result<()> {
    // The policy comes first: it matters more, and the cores of the process may have changed.
    set_policy(thread, libc::SCHED_OTHER)?;
    Ok(sched_setaffinity(Some(thread), cores)?)
}

/// Has the threads of the runtime leave the core that `sharing` shares. Such a thread has the
/// policy and the core of the thread that has started it.
pub(crate) fn release_started(sharing: Pid, cores: &CpuSet) {
    let Ok(threads) = idle_threads() else { return };
    for thread in threads.filter(|thread| *thread != sharing) {
        let name = fs::read(format!("/proc/self/task/{}/comm", thread.as_raw_nonzero()));
        if name.is_ok_and(|name| name.starts_with(b"rdmabox")) {
            // The thread may have ended.
            leave_core(thread, cores).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::gettid;
    use thread_placement::{StatReader, policy};

    use super::*;

    #[test]
    fn a_thread_shares_a_core_and_leaves_it_and_so_does_one_that_it_starts() {
        // Without the right to come back there is nothing to test.
        let Ok(before) = probe() else { return println!("not run: no right to leave SCHED_IDLE") };
        let core = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).expect("a core");
        let here = gettid();
        share_core(here, core).expect("shared");
        assert!(probe().is_err());
        thread::yield_now();
        assert_eq!(StatReader::default().core_of(here.as_raw_nonzero().get() as u32), Some(core));
        let (started, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            let run = || {
                let inherited = policy(gettid()).expect("a policy");
                started.wait();
                end.wait();
                (inherited, policy(gettid()).expect("a policy"), sched_getaffinity(None).expect("cores"))
            };
            let thread = thread::Builder::new().name("rdmabox-x".into());
            let thread = thread.spawn_scoped(scope, run).expect("a thread");
            started.wait();
            release_started(here, &before);
            end.wait();
            assert_eq!(thread.join().expect("no panic"), (libc::SCHED_IDLE, libc::SCHED_OTHER, before));
        });
        assert_eq!(policy(here).expect("a policy"), libc::SCHED_IDLE);
        leave_core(here, &before).expect("left");
        assert_eq!(sched_getaffinity(None).expect("cores"), before);
        assert_eq!(StatReader::default().core_of(u32::MAX), None);
        assert!(share_core(here, usize::MAX).is_err());
    }
}
