//! Detects local clients that still map the memory of a previous server, and ends them.
//!
//! The connections of such clients hold the tethers of [`Tethers`](super::Tethers). The server
//! kills the process that a tether names. If that process has ended, or the tether has no name,
//! another process holds the tether. The server then searches `/proc`, as far as its rights reach.
//!
//! # Concurrency
//! Any thread. One lock over the tethers, and one over the reports, which is taken first.

use std::{
    collections::BTreeSet,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::ConnectedProcess;
use rustix::process::getpid;
use seeded_faults::seeded;

use super::tethers::{Process, Tether};

/// Least time between two attempts to kill processes.
const KILL_INTERVAL: Duration = Duration::from_secs(1);

/// Clients of previous servers that may still access memory.
#[derive(Debug, Default)]
pub struct PreviousClients {
    tethers: Mutex<Vec<Tether>>,
    reported: Mutex<Reported>,
}

#[derive(Debug, Default)]
struct Reported {
    /// Time of the last attempt to kill processes.
    tried: Option<Instant>,
    /// The log says that a client is not killed.
    is_stuck: bool,
}

impl PreviousClients {
    pub(super) fn new(tethers: Vec<Tether>) -> PreviousClients {
        PreviousClients { tethers: Mutex::new(tethers), reported: Mutex::default() }
    }

    /// Returns true if a client of a previous server may still access memory.
    pub fn is_held(&self) -> bool {
        let mut tethers = self.tethers.lock();
        tethers.retain(|tether| {
            let is_held = tether.is_held();
            if !is_held {
                tether.remove();
            }
            is_held
        });
        !tethers.is_empty() && !seeded!(PreviousForgotten)
    }

    /// Returns whether a process is among these clients; `None` if that cannot be known.
    pub fn is_held_by(&self, pid: i32) -> Option<bool> {
        let (process, _) = open(pid)?;
        let tethers = self.tethers.lock();
        let held: Vec<&Tether> = tethers.iter().filter(|tether| tether.is_held()).collect();
        // Its number may be another one in another namespace.
        let is_named = |tether: &&Tether| {
            tether.process.zip(process).is_some_and(|(named, now)| named.inode == now.inode)
        };
        if held.iter().any(is_named) {
            return Some(true);
        }
        if process.is_some() && held.iter().all(|tether| tether.process.is_some()) {
            return Some(false);
        }
        let mut unknown = false;
        for tether in held {
            match has_open(pid, &tether.path) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => unknown = true,
            }
        }
        (!unknown).then_some(false)
    }

    /// Kills these clients, if `kill` is set, at most once a second. Returns true if none is left.
    pub fn ends(&self, kill: bool) -> bool {
        if !self.is_held() {
            return true;
        }
        // Another thread is about to try.
        let Some(mut reported) = self.reported.try_lock() else { return false };
        if reported.tried.is_some_and(|tried| tried.elapsed() < KILL_INTERVAL) {
            return false;
        }
        reported.tried = Some(Instant::now());
        let killed = if kill { self.kill_holders() } else { 0 };
        if killed == 0 && !reported.is_stuck {
            reported.is_stuck = true;
            log::warn!(
                "a client of a previous server does not react and still maps memory ({}), and {}: the files that \
                 such clients had open stay taken until it ends or unmaps",
                self.tethers.lock().first().map_or("gone".into(), |tether| tether.path.display().to_string()),
                if kill { "cannot be found or killed" } else { "is not to be killed (yet)" }
            );
        }
        reported.is_stuck &= kill;
        !self.is_held()
    }

    /// Returns the number of processes that it has killed.
    fn kill_holders(&self) -> usize {
        let tethers = self.tethers.lock();
        let mut done = BTreeSet::new();
        let mut killed = 0;
        for tether in tethers.iter() {
            if let Some(process) = tether.process
                && (done.contains(&process.pid) || kill(process.pid, |now| now == Some(process)))
            {
                killed += usize::from(done.insert(process.pid));
                continue;
            }
            for pid in processes() {
                // Looked at again with a pidfd, as the number may be another process's by now.
                if has_open(pid, &tether.path) == Some(true)
                    && kill(pid, |_| has_open(pid, &tether.path) == Some(true))
                {
                    killed += usize::from(done.insert(pid));
                }
            }
        }
        killed
    }
}

/// Returns the process that has a number now, and its identity if the kernel tells it.
fn open(pid: i32) -> Option<(Option<Process>, ConnectedProcess)> {
    let process = ConnectedProcess::open(pid)?;
    Some((Process::of(pid, &process.pidfd), process))
}

/// Kills a process if it is the right one and has not ended. Returns true if it was killed. The
/// server never kills itself.
fn kill(pid: i32, is_right: impl FnOnce(Option<Process>) -> bool) -> bool {
    let Some((identity, process)) = open(pid) else { return false };
    if pid == getpid().as_raw_nonzero().get() || process.has_ended() || !is_right(identity) {
        return false;
    }
    match process.kill() {
        Ok(()) => {
            log::warn!("killed client {pid}: unresponsive, and still maps memory of the previous server");
            true
        }
        Err(e) => {
            log::debug!("process {pid} cannot be killed: {e}");
            false
        }
    }
}

/// Returns all processes that `/proc` shows; none if `/proc` is that of another pid namespace.
fn processes() -> Vec<i32> {
    let own = getpid().as_raw_nonzero().get();
    if fs::read_link("/proc/self").is_ok_and(|link| link != Path::new(&own.to_string())) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.filter_map(number).filter(|pid| *pid != own).collect()
}

/// Returns whether a process has a FIFO open; `None` if its descriptors cannot be read. Only the
/// links are read: a file behind one may be on a mount that does not answer.
fn has_open(pid: i32, fifo: &Path) -> Option<bool> {
    let (name, directory) = (fifo.file_name()?, fifo.parent()?.file_name()?);
    let tail = Path::new(directory).join(name);
    let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(descriptors.any(|descriptor| {
        descriptor.and_then(|it| fs::read_link(it.path())).is_ok_and(|target| target.ends_with(&tail))
    }))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use rustix::process::{Pid, Signal};

    use super::*;

    #[test]
    fn a_process_that_got_the_number_of_a_holder_is_not_killed() {
        if open(getpid().as_raw_nonzero().get()).unwrap().0.is_none() {
            return eprintln!("not run: before Linux 6.9 tethers have no names");
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let now = open(pid).unwrap().0.unwrap();
        let other = Process { inode: now.inode + 1, ..now };
        assert!(!kill(pid, |process| process == Some(other)));
        assert!(child.try_wait().unwrap().is_none());
        assert!(kill(pid, |process| process == Some(now)));
        // Now it is a zombie, whether or not it has ended already.
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_raw(pid).unwrap()),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        assert!(!kill(pid, |_| true));
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}
