//! The status of running pagers, for `rfs-paging status`.
//!
//! A pager answers on a control socket in the folder of its user. [`running_pagers`] asks all
//! sockets there, and removes those of processes that have ended. The answer is a [`PagerReport`].
//!
//! # Concurrency
//! The socket has a thread of its own, which sleeps between questions. It reads atomics only.

mod folder;
mod status_socket;

use std::{fs, path::Path, time::Duration};

use rfs_status::control::{AskError, STATUS, ask};
use serde::{Deserialize, Serialize};
pub(crate) use status_socket::{StatusSocket, program};

use crate::engine::stats::PagerStats;

/// How long a pager may take to answer.
const LIMIT: Duration = Duration::from_secs(2);
/// How long a new pager waits for the answer of a process that seems to have ended.
const DEAD_LIMIT: Duration = Duration::from_millis(100);

/// The status of a running pager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PagerReport {
    /// The process.
    pub pid: u32,
    /// Name of its program.
    pub program: String,
    /// Addresses of the servers, as they were given to the pager.
    pub servers: Vec<String>,
    /// Bytes of local memory for pages.
    pub local_budget: u64,
    /// Counters since the pager was made.
    pub counters: PagerStats,
}

/// Time in which a pager that has bound its socket listens there.
const START_LIMIT: Duration = Duration::from_millis(100);

/// Asks all running pagers of this user. A pager that does not answer yields an error.
///
/// Pagers of root have their sockets in `/run/rfs-paging`, and those of other users in
/// `$XDG_RUNTIME_DIR/rfs-paging` or `/run/user/UID/rfs-paging`.
pub fn running_pagers() -> Vec<Result<PagerReport, AskError>> {
    let sockets = folder::own().map(|folder| folder::sockets(&folder)).unwrap_or_default();
    sockets.iter().filter_map(|(pid, path)| report(*pid, path)).collect()
}

/// Asks a pager. `None` if its process has ended.
fn report(pid: u32, path: &Path) -> Option<Result<PagerReport, AskError>> {
    let malformed =
        |error: serde_json::Error| AskError::Malformed { path: path.into(), why: error.to_string() };
    let mut document = ask(path, STATUS, LIMIT);
    if matches!(document, Err(AskError::Dead { .. })) && runs(pid) {
        // A pager that starts has bound its socket, and listens in a moment.
        std::thread::sleep(START_LIMIT);
        document = ask(path, STATUS, LIMIT);
    }
    let answer =
        document.and_then(|document| serde_json::from_str::<PagerReport>(&document).map_err(malformed));
    let is_gone = match &answer {
        Err(AskError::Missing { .. } | AskError::Dead { .. }) => true,
        // A child of `fork` keeps the socket open, and does not answer.
        Err(AskError::Hangs { .. }) => !runs(pid),
        _ => false,
    };
    if is_gone {
        // It may have removed the socket itself.
        fs::remove_file(path).ok();
        return None;
    }
    Some(answer)
}

/// Removes the sockets of processes that were killed.
fn remove_dead(folder: &Path) {
    for (pid, path) in folder::sockets(folder) {
        // A process of another namespace answers.
        if !runs(pid) && matches!(ask(&path, STATUS, DEAD_LIMIT), Err(AskError::Dead { .. })) {
            fs::remove_file(path).ok();
        }
    }
}

/// Returns true if this machine has a process with that number.
fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Catches sockets of killed programs that stay forever, or that `status` reports as errors.
    #[test]
    fn the_socket_of_a_killed_process_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pager-1-0.sock");
        // The file of a listener stays after its end.
        drop(UnixListener::bind(&path).expect("a socket"));
        assert_eq!(folder::sockets(folder.path()), [(1, path.clone())]);
        assert!(report(1, &path).is_none() && !path.exists());
        assert!(report(1, &path).is_none());
    }

    /// Catches a folder that grows with each program that is killed.
    #[test]
    fn a_new_pager_removes_the_sockets_of_killed_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        // The largest number is no process; one of them belongs to another namespace.
        let names = ["pager-1-0.sock", "pager-4294967295-0.sock", "pager-4294967295-1.sock"];
        let paths = names.map(|name| folder.path().join(name));
        paths[..2].iter().for_each(|path| drop(UnixListener::bind(path).expect("a socket")));
        let _silent = UnixListener::bind(&paths[2]).expect("a socket");
        remove_dead(folder.path());
        assert_eq!(paths.each_ref().map(|path| path.exists()), [true, false, true]);
    }

    /// Catches a child of `fork` that lets `status` wait, or report its dead parent, each time.
    #[test]
    fn the_socket_that_a_child_of_a_dead_process_holds_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pager-1-0.sock");
        let _silent = UnixListener::bind(&path).expect("a socket");
        assert!(matches!(report(std::process::id(), &path), Some(Err(AskError::Hangs { .. }))));
        assert!(path.exists());
        // No process has such a number.
        assert!(report(u32::MAX, &path).is_none() && !path.exists());
    }
}
