//! Ends a mount whose process was killed.
//!
//! A killed process cannot unmount, and what it leaves answers every call with ENOTCONN. It can even be kept from ending: a thread
//! of it that drops what the kernel has kept may wait for a lock that the kernel holds over a request of this mount, no signal ends
//! that, and the device, with the request, stays open as long as the thread lives. So there is a second process, which has not got
//! the device. It learns of the first one's end in two ways: its standard input ends with the last thread, and the kernel signals
//! the end of the main thread, which comes first where another thread hangs.
//!
//! While it lives it holds a lock on the directory under the mount. Whoever mounts there next waits for that, so that it
//! cannot take a later mount for its own.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::FlockOperation, process::Signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};

use super::{MountError, Mounted};
use crate::client::Farewell;

/// What it is called; its first argument, which no user gives, follows.
const NAME: &str = "rfs-caretaker";
const MARK: &str = "--take-care";
/// What is said to it when there is nothing left to do.
const DISMISSED: u8 = b'.';
/// Where it finds what to tell the server; nobody but the user and root can read it there.
const FAREWELL: &str = "RFS_FAREWELL";
/// It waits no longer for the server.
const FAREWELL_LIMIT: Duration = Duration::from_secs(10);
/// An earlier one at the same place is done in a moment, or hangs itself.
const PATIENCE: Duration = Duration::from_secs(3);

/// The directory under a mount, locked for whoever takes care of that.
#[derive(Debug)]
pub(crate) struct Ground(File);

impl Ground {
    /// Locks a directory on which nothing is mounted yet, when the caretaker of an earlier mount there is done. `None` where
    /// directories cannot be locked, or not by this user.
    ///
    /// # Errors
    /// If that one does not get done: then something hangs there, or another process is mounting.
    pub(crate) fn lock(point: &Path) -> Result<Option<Ground>, MountError> {
        let Ok(directory) = File::open(point) else { return Ok(None) };
        let end = Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Ground(directory))),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let why = "another process is mounting there, or ending a mount".into();
                    return Err(MountError::Point { path: point.to_owned(), why });
                }
                Err(_) => return Ok(None),
            }
        }
    }
}

/// The process that takes care of a mount.
#[derive(Debug)]
pub(crate) struct Caretaker {
    child: Child,
    line: Option<ChildStdin>,
}

impl Caretaker {
    /// Starts it. The calling thread is the one whose end it hears of: the main thread. `log` gets a line if it had to do something, and
    /// the server the farewell.
    pub(crate) fn start(
        mounted: &Mounted,
        ground: Ground,
        log: Option<&Path>,
        farewell: Option<&Farewell>,
    ) -> io::Result<Caretaker> {
        let device = mounted.device.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let mut child = Command::new("/proc/self/exe")
            .envs(farewell.and_then(Farewell::to_text).map(|text| (FAREWELL, text)))
            .arg0(NAME)
            .arg(MARK)
            .arg(device)
            .arg(if mounted.by_helper { "helper" } else { "root" })
            .arg(&mounted.path)
            .args(log.map(std::path::absolute).transpose()?)
            // Neither a directory nor a terminal's signals are its business.
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(ground.0)
            .stderr(Stdio::null())
            .spawn()?;
        let line = child.stdin.take();
        Ok(Caretaker { child, line })
    }

    /// Nothing is left to do. Returns when it has ended.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut line) = self.line.take() {
            line.write_all(&[DISMISSED]).ok();
        }
        self.child.wait().ok();
    }
}

/// If this process was started to take care: does so, and says with which exit code to end.
pub(super) fn asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let device = Some(arguments.next()?.into_string().ok()?);
    let by_helper = arguments.next()? == OsStr::new("helper");
    let mounted = Mounted { path: PathBuf::from(arguments.next()?), device, by_helper };
    let log = arguments.next().map(PathBuf::from);
    Some(match take_care(&mounted, log.as_deref()) {
        Ok(()) => 0,
        Err(_) => 1,
    })
}

fn take_care(mounted: &Mounted, log: Option<&Path>) -> io::Result<()> {
    rustix::thread::set_name(c"rfs-caretaker").ok();
    // What ends a service is for the first process, which then says so here.
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    let (tell, told) = mpsc::channel();
    let by_signal = tell.clone();
    thread::Builder::new().spawn(move || {
        signals.forever().find(|&signal| signal == SIGUSR1);
        by_signal.send(false)
    })?;
    thread::Builder::new().spawn(move || {
        let mut said = Vec::new();
        io::stdin().read_to_end(&mut said).ok();
        tell.send(said.contains(&DISMISSED))
    })?;
    if told.recv().unwrap_or(false) {
        return Ok(());
    }
    let (said, heard) = mpsc::channel();
    let farewell = std::env::var(FAREWELL).ok().and_then(|text| Farewell::from_text(&text));
    thread::Builder::new().spawn(move || {
        farewell.inspect(Farewell::say);
        said.send(())
    })?;
    let done = mounted.abort().and_then(|()| mounted.detach());
    if let Some(log) = log {
        let path = mounted.path.display();
        let mut log = OpenOptions::new().append(true).create(true).open(log)?;
        match &done {
            Ok(()) => writeln!(log, "{NAME}: rfs-fuse was killed: {path} is unmounted")?,
            Err(e) => writeln!(log, "{NAME}: rfs-fuse was killed, and {path} cannot be unmounted: {e}")?,
        }
    }
    heard.recv_timeout(FAREWELL_LIMIT).ok();
    done
}
