//! Probes a mount from a separate process.
//!
//! A thread that waits for a reply of a FUSE file system cannot be killed. If that thread belongs
//! to the process that serves the mount, the process cannot be killed either. The thread keeps the
//! device open, and the open device keeps the request alive. So the program never accesses its own
//! mount. It starts itself again as a probe.
//!
//! # Concurrency
//! The probe is a child process. A thread `mount-probe` waits for its end. Takes no locks.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, StatxFlags, statx},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

/// First argument of a probe process.
const MARK: &str = "--mount-probe";

/// Action of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// Checks that the root is a directory. Fails with ENOTDIR otherwise.
    Directory,
    /// Has the kernel write back dirty pages of the mount (syncfs).
    Sync,
}

impl ProbeAction {
    fn name(self) -> &'static str {
        match self {
            ProbeAction::Directory => "directory",
            ProbeAction::Sync => "sync",
        }
    }

    fn run(self, path: &Path) -> io::Result<()> {
        match self {
            ProbeAction::Directory => {
                // Without FORCE_SYNC, the kernel answers from its cache, even for a dead mount.
                let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE)?;
                match FileType::from_raw_mode(found.stx_mode.into()) {
                    FileType::Directory => Ok(()),
                    _ => Err(rustix::io::Errno::NOTDIR.into()),
                }
            }
            ProbeAction::Sync => Ok(rustix::fs::syncfs(File::open(path)?)?),
        }
    }
}

/// Probes the mount on `path`. Returns `None` if the probe takes longer than `limit`. The probe
/// is then killed, and ends when the kernel lets it.
pub fn look(path: &Path, what: ProbeAction, limit: Duration) -> Option<io::Result<()>> {
    let child = Command::new("/proc/self/exe")
        .arg(MARK)
        .arg(what.name())
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let child = match child {
        Ok(child) => child,
        Err(e) => return Some(Err(e)),
    };
    // A PID may name another process after the child was reaped. A pidfd does not.
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let answer = wait_for(child, limit);
    if answer.is_none()
        && let Ok(handle) = handle
    {
        pidfd_send_signal(handle, Signal::KILL).ok();
    }
    answer
}

fn wait_for(mut child: Child, limit: Duration) -> Option<io::Result<()>> {
    let (done, wait) = mpsc::channel();
    // The thread reaps the child. It waits for no file system, so it cannot block the end of this
    // process.
    thread::Builder::new().name("mount-probe".into()).spawn(move || done.send(child.wait()).ok()).ok()?;
    let status = wait.recv_timeout(limit).ok()?;
    Some(status.and_then(|status| match status.code() {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other(format!("the probe process ended: {status}"))),
    }))
}

/// Runs the probe and returns its exit code, if this process was started as one.
pub(super) fn run_if_asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let what = arguments.next()?;
    let what = [ProbeAction::Directory, ProbeAction::Sync]
        .into_iter()
        .find(|look| what == OsStr::new(look.name()))?;
    let path = arguments.next()?;
    Some(match what.run(Path::new(&path)) {
        Ok(()) => 0,
        // Error numbers of Linux fit into a byte, and none is 0.
        Err(e) => e.raw_os_error().and_then(|errno| u8::try_from(errno).ok()).unwrap_or(u8::MAX),
    })
}
