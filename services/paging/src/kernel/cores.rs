//! The cores of threads of this process, and how the kernel schedules them.
//!
//! # Concurrency
//! A [`CoreReader`] belongs to one thread. Any thread calls the functions.

use std::{fs, fs::File, io, os::unix::fs::FileExt, thread};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

/// Reads the core of a thread, and keeps the file of the last one open.
#[derive(Debug, Default)]
pub(crate) struct CoreReader(Option<(u32, File)>);

impl CoreReader {
    /// Returns the core that a thread of this process runs on, or ran on last. Returns `None` if
    /// there is no such thread.
    pub(crate) fn core_of(&mut self, thread: u32) -> Option<usize> {
        if self.0.as_ref().is_none_or(|(last, _)| *last != thread) {
            self.0 = None;
            let file = File::open(format!("/proc/self/task/{thread}/stat")).ok()?;
            self.0 = Some((thread, file));
        }
        let mut line = [0; 1024];
        let read = self.0.as_ref().and_then(|(_, file)| file.read_at(&mut line, 0).ok());
        let core = read.and_then(|len| parse_core(&line[..len]));
        if core.is_none() {
            self.0 = None;
        }
        core
    }
}

/// Returns the field "processor" of a line of `/proc/PID/stat`: the 39th, or the 37th behind the
/// name, which may have blanks and parentheses.
fn parse_core(line: &[u8]) -> Option<usize> {
    let behind = line.iter().rposition(|byte| *byte == b')')? + 1;
    str::from_utf8(&line[behind..]).ok()?.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Returns the cores that the calling thread may run on.
///
/// # Errors
/// The error of the kernel. `Unsupported` if there is one core only, or if the thread has another
/// policy than SCHED_OTHER. Other users than root may become SCHED_IDLE, but leave that policy only
/// with RLIMIT_NICE of at least 20: without that it is the kernel's error.
pub(crate) fn probe() -> io::Result<CpuSet> {
    let cores = sched_getaffinity(None)?;
    if cores.count() < 2 || policy(gettid())? != libc::SCHED_OTHER {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let change = || {
        set_policy(gettid(), libc::SCHED_IDLE)?;
        set_policy(gettid(), libc::SCHED_OTHER)
    };
    // On a separate thread, which ends if the policy cannot be restored.
    let probed = thread::Builder::new().name("rfs-paging-probe".into()).spawn(change)?.join();
    probed.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
    Ok(cores)
}

/// Has a thread run on one core only, and only while no other thread wants it. The kernel takes a
/// core with such threads only for an idle one, so a thread that is woken stays there.
pub(crate) fn share_core(thread: Pid, core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(Some(thread), &only)?;
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
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for entry in threads.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(thread) = number.and_then(Pid::from_raw).filter(|thread| *thread != sharing) else {
            continue;
        };
        let is_own = || fs::read(entry.path().join("comm")).is_ok_and(|name| name.starts_with(b"rdmabox"));
        if policy(thread).is_ok_and(|policy| policy == libc::SCHED_IDLE) && is_own() {
            // The thread may have ended.
            leave_core(thread, cores).ok();
        }
    }
}

fn policy(thread: Pid) -> io::Result<i32> {
    // SAFETY: The arguments are numbers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    i32::try_from(policy).ok().filter(|policy| *policy >= 0).ok_or_else(io::Error::last_os_error)
}

fn set_policy(thread: Pid, policy: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: The kernel reads the parameter within the call. The C library's function does nothing
    // on some systems.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, policy, &raw const param) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_core_is_found_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let line = |name: &str| format!("1 ({name}) {}\n", fields.join(" "));
        for name in ["cat", "a b", "a) 9 (b", ")"] {
            assert_eq!(parse_core(line(name).as_bytes()), Some(39));
        }
        assert_eq!(parse_core(b""), None);
        assert_eq!(parse_core(b"1 (cat) S 1"), None);
    }

    #[test]
    fn a_thread_shares_a_core_and_leaves_it_and_so_does_one_that_it_starts() {
        // Without the right to come back there is nothing to test.
        let Ok(before) = probe() else { return println!("not run: no right to leave SCHED_IDLE") };
        let core = (0..CpuSet::MAX_CPU).find(|core| before.is_set(*core)).expect("a core");
        let here = gettid();
        share_core(here, core).expect("shared");
        assert!(probe().is_err());
        thread::yield_now();
        assert_eq!(CoreReader::default().core_of(here.as_raw_nonzero().get() as u32), Some(core));
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
        assert_eq!(CoreReader::default().core_of(u32::MAX), None);
        assert!(share_core(here, usize::MAX).is_err());
    }
}
