//! Detection of threads in an uninterruptible wait.

use std::{fs, path::Path, time::Duration};

use crate::testbed::time_until;

/// Threshold for a stuck thread. Waits for a disk or a kernel lock are shorter.
const STUCK: Duration = Duration::from_secs(1);

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
