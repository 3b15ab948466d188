//! Processes that wait where no signal reaches them.

use std::{fs, path::Path, time::Duration};

use crate::stand::time_until;

/// Waiting for so long is no short wait for a disk or a lock any more.
const STUCK: Duration = Duration::from_secs(1);

/// The threads of these processes that wait uninterruptibly, and go on doing so for a second. Processes that have ended have none.
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
    // It may have ended meanwhile.
    fs::read_to_string(thread.join("stat")).is_ok_and(|stat| state(&stat) == Some('D'))
}

/// The state in a line of `/proc/PID/stat`: behind the name, which may have any character in it.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_behind_the_name() {
        assert_eq!(state("12 (rfs) D fuse) S 1 12 12 0"), Some('S'));
        assert_eq!(state("13 (dd) D 1 12 12 0"), Some('D'));
        assert_eq!(state(""), None);
    }

    #[test]
    fn a_process_that_sleeps_is_not_stuck() {
        assert_eq!(stuck(&[std::process::id(), u32::MAX]), Vec::<String>::new());
    }
}
