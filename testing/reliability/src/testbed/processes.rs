//! Running and killing programs, waiting for events, and detection of threads in an
//! uninterruptible wait.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};

/// Time limit for a process to become ready. Many processes may start at the same time.
pub(super) const START: Duration = Duration::from_secs(60);

/// Threshold for a stuck thread. Waits for a disk or a kernel lock are shorter.
const STUCK: Duration = Duration::from_secs(1);

/// Sends a signal to a program.
pub(super) fn send(program: &Guarded, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(program.id() as i32).ok_or_else(|| Error::Wrong("no process".into()))?;
    kill_process(pid, signal).map_err(|e| Error::io("a signal")(e.into()))
}

/// Kills a program and waits for its end.
pub(super) fn kill(program: &mut Guarded) -> Result<()> {
    send(program, Signal::KILL)?;
    program.wait_end(START)?;
    Ok(())
}

/// Runs a program. Returns an error if it fails.
pub(crate) fn succeed(command: &Invocation) -> Result<()> {
    let mut child = Guarded::spawn(command, Path::new("/"))?;
    child.wait_success(&Interrupt::unset(), START, |_| {})?;
    Ok(())
}

/// Polls `is_so` until it returns true. Returns the elapsed time, or `None` after `limit`.
pub(crate) fn time_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> Option<Duration> {
    let began = Instant::now();
    loop {
        if is_so() {
            return Some(began.elapsed());
        }
        if began.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the threads of these processes that stay in an uninterruptible wait for a second. Ended
/// processes have no threads.
pub(crate) fn stuck(processes: &[u32]) -> Vec<String> {
    let mut left = waiting(processes);
    time_until(STUCK, || {
        let now = waiting(processes);
        left.retain(|thread| now.contains(thread));
        left.is_empty()
    });
    left
}

fn waiting(processes: &[u32]) -> Vec<String> {
    let tasks = |process: &u32| fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let threads = processes.iter().flat_map(tasks).filter_map(|entry| Some(entry.ok()?.path()));
    threads.filter(|thread| is_uninterruptible(thread)).map(|thread| thread.display().to_string()).collect()
}

fn is_uninterruptible(thread: &Path) -> bool {
    // The thread may have ended.
    fs::read_to_string(thread.join("stat")).is_ok_and(|stat| state(&stat) == Some('D'))
}

/// Extracts the state from `/proc/PID/stat`. The state follows the name, which may contain any
/// character.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_after_the_name() {
        assert_eq!(state("12 (rfs) D fuse) S 1 12 12 0"), Some('S'));
        assert_eq!(state("13 (dd) D 1 12 12 0"), Some('D'));
        assert_eq!(state(""), None);
    }

    #[test]
    fn a_sleeping_process_is_not_stuck() {
        assert_eq!(stuck(&[std::process::id(), u32::MAX]), Vec::<String>::new());
    }
}
