//! Looks at a mount from a process of its own.
//!
//! Who waits for an answer of a FUSE file system cannot be killed before it has come. If it is a thread of the process that is to
//! answer, that process cannot be killed either: the device stays open as long as the thread lives, and the request as long as the
//! device is open. So the program never looks at its own mount: it starts itself again for that.

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

/// The first argument of such a process, which no user gives.
const MARK: &str = "--look-from-outside";

/// What is asked of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Whether its root is a directory: ENOTDIR if not.
    Directory,
    /// To write back what programs changed in memory that they mapped.
    Sync,
}

impl Look {
    fn name(self) -> &'static str {
        match self {
            Look::Directory => "directory",
            Look::Sync => "sync",
        }
    }

    fn take(self, path: &Path) -> io::Result<()> {
        match self {
            Look::Directory => {
                // What the kernel knows of a mount it says of a dead one, too.
                let found = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::TYPE)?;
                match FileType::from_raw_mode(found.stx_mode.into()) {
                    FileType::Directory => Ok(()),
                    _ => Err(rustix::io::Errno::NOTDIR.into()),
                }
            }
            Look::Sync => Ok(rustix::fs::syncfs(File::open(path)?)?),
        }
    }
}

/// Looks at what is mounted on `path`. `None` if it takes longer than `limit`: then the process is told to end, which it does as
/// soon as the kernel lets it.
pub fn look(path: &Path, what: Look, limit: Duration) -> Option<io::Result<()>> {
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
    // Not its number, which is another process's once it has been reaped.
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
    // It reaps the child whenever that ends; it waits for no file system, so that it cannot hold this process up.
    thread::Builder::new().name("look".into()).spawn(move || done.send(child.wait()).ok()).ok()?;
    let status = wait.recv_timeout(limit).ok()?;
    Some(status.and_then(|status| match status.code() {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other(format!("the process that was to look ended: {status}"))),
    }))
}

/// If this process was started to look: looks, and says with which exit code to end.
pub(super) fn asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let what = arguments.next()?;
    let what = [Look::Directory, Look::Sync].into_iter().find(|look| what == OsStr::new(look.name()))?;
    let path = arguments.next()?;
    Some(match what.take(Path::new(&path)) {
        Ok(()) => 0,
        // Linux has no error numbers that do not fit, and none that is 0.
        Err(e) => e.raw_os_error().and_then(|errno| u8::try_from(errno).ok()).unwrap_or(u8::MAX),
    })
}
