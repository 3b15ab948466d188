//! Whether a process that does not end is dead.
//!
//! When a process is killed, its main thread becomes a zombie. Another thread may wait in the
//! kernel without regard to signals. It ends before it runs code of the program again, so the
//! program changes nothing any more.
//!
//! # Concurrency
//! None; reads procfs.

use std::fs;

/// Returns true if the main thread of a process has ended, and every other thread of it waits in
/// the kernel without regard to signals. Returns false if the kernel does not tell.
pub(super) fn threads_only_wait(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let stat = |path: String| fs::read_to_string(path).ok();
    let main = stat(format!("/proc/{pid}/task/{pid}/stat"));
    let all = tasks.flatten().map(|task| stat(task.path().join("stat").display().to_string()));
    // A thread that has ended meanwhile has no file.
    main.is_some_and(|stat| state(&stat) == Some('Z'))
        && all.flatten().all(|stat| matches!(state(&stat), Some('Z' | 'X' | 'D')))
}

/// Returns the state of a thread from its `stat`.
fn state(stat: &str) -> Option<char> {
    // The name, which may contain anything, then the state.
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_state_follows_the_name() {
        for (stat, found) in [
            ("7 (a) b) D 1 2", Some('D')),
            ("7 (rfs-fuse) Z 1", Some('Z')),
            ("7 (rfs-fuse)", None),
            ("", None),
        ] {
            assert_eq!(state(stat), found, "{stat:?}");
        }
    }

    /// Catches a program that is taken for dead although it runs.
    #[test]
    fn a_process_that_runs_or_sleeps_is_not_dead() {
        assert!(!threads_only_wait(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!threads_only_wait(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!threads_only_wait(child.id()), "there is no such process");
    }
}
