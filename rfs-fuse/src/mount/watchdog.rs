//! The watchdog: a process that ends a mount whose process was killed.
//!
//! A killed process cannot unmount, so every call on its mount fails with ENOTCONN. A killed
//! process may also hang: its thread may wait for a page lock that the kernel holds over a
//! request of this mount (`fuse/kernel/notify`). The watchdog has no FUSE device. It aborts the
//! connection ([`Abort`]) and then unmounts. It learns of the main process's end in two ways: EOF
//! on its standard input, and the death signal of the thread that started it. It locks the
//! directory below the mount. The next mount there waits for the lock, so the watchdog never
//! unmounts a later mount.
//!
//! # Concurrency
//! The main thread of each process. The main process has a thread `watchdog`, which reaps the
//! watchdog and reports its end.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    mem,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{FlockOperation, Mode, OFlags},
    process::{Pid, Signal, getppid},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::{
    active_mount::{ActiveMount, Maker},
    connection::abort::Abort,
    error::MountError,
};
use rfs_client::DetachParams;
use rfs_status::logging::{self, SYSLOG};

/// Name of the watchdog process. Its first argument is `MARK`, which no user gives.
const NAME: &str = "rfs-watchdog";
const MARK: &str = "--take-care";
/// Message to the watchdog: the mount has ended, and nothing is left to do.
const DISMISSED: u8 = b'.';
/// Message to the watchdog: the main process has detached the mount and is about to end, but may
/// hang.
const LEAVING: u8 = b',';
/// Environment variable with the detach request. Only the user and root can read it there.
const DETACH: &str = "RFS_DETACH";
/// Time limit for the detach request.
const DETACH_LIMIT: Duration = Duration::from_secs(10);
/// Time to wait for the watchdog of a previous mount on the same directory. A watchdog that takes
/// longer hangs.
const PREVIOUS_WATCHDOG_LIMIT: Duration = Duration::from_secs(3);
/// Number of consecutive lives shorter than `SHORT_LIFE` after which the watchdog is not
/// restarted.
const SHORT_LIVES: u32 = 8;
const SHORT_LIFE: Duration = Duration::from_secs(60);

/// The directory below a mount, locked for the watchdog if this user can lock it.
#[derive(Debug)]
pub(crate) struct CoveredDirectory {
    /// Reference to the directory below the mount, without a lock.
    place: Option<OwnedFd>,
    locked: Option<File>,
}

impl CoveredDirectory {
    /// Returns no directory, for a mount that no watchdog unmounts.
    pub(crate) fn none() -> CoveredDirectory {
        CoveredDirectory { place: None, locked: None }
    }

    /// Locks a directory before a mount there, once the watchdog of a previous mount has released
    /// it. Leaves the directory unlocked if this user cannot lock it.
    ///
    /// # Errors
    /// The directory stays locked: a previous watchdog hangs, or another process is mounting there.
    pub(crate) fn lock(point: &Path) -> Result<CoveredDirectory, MountError> {
        let place = rustix::fs::open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let Ok(directory) = File::open(point) else { return Ok(CoveredDirectory { place, locked: None }) };
        let end = Instant::now() + PREVIOUS_WATCHDOG_LIMIT;
        loop {
            match lock_now(&directory) {
                Ok(()) => return Ok(CoveredDirectory { place, locked: Some(directory) }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let why = "another process is mounting there, or ending a mount".into();
                    return Err(MountError::Point { path: point.to_owned(), why });
                }
                Err(_) => return Ok(CoveredDirectory { place, locked: None }),
            }
        }
    }

    /// Returns the lock of the directory, if this process has it.
    pub(crate) fn lock_file(&self) -> Option<&File> {
        self.locked.as_ref()
    }

    /// Returns the locked directory for the next watchdog. This process does not keep the lock,
    /// because it may hang.
    fn take_lock(&mut self) -> Option<File> {
        self.locked.take().or_else(|| {
            let place = self.place.as_ref()?.as_raw_fd();
            File::open(format!("/proc/self/fd/{place}")).ok().filter(|again| lock_now(again).is_ok())
        })
    }
}

fn lock_now(directory: &File) -> rustix::io::Result<()> {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive)
}

/// Action of the watchdog on the mount of a killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterKill {
    /// Take it out of the tree.
    Unmount,
    /// Leave it in the tree, without a connection.
    Leave,
}

impl AfterKill {
    const ALL: [AfterKill; 2] = [AfterKill::Unmount, AfterKill::Leave];

    fn name(self) -> &'static str {
        match self {
            AfterKill::Unmount => "unmount",
            AfterKill::Leave => "leave",
        }
    }
}

/// The watchdog of a mount, seen from the main process.
pub(crate) struct Watchdog {
    arguments: Arguments,
    process: Option<Process>,
    short_lives: u32,
    /// Runs when the watchdog has ended.
    ended: Arc<dyn Fn() + Send + Sync>,
}

/// Arguments of a watchdog.
#[derive(Debug)]
struct Arguments {
    mounted: ActiveMount,
    covered: CoveredDirectory,
    after_kill: AfterKill,
    /// Log file of the watchdog.
    log: Option<PathBuf>,
    /// Detach request that the watchdog sends to the server after a kill.
    detach: Option<String>,
}

#[derive(Debug)]
struct Process {
    pipe: ChildStdin,
    reaper: JoinHandle<()>,
    started_at: Instant,
}

impl Watchdog {
    /// Starts a watchdog. The kernel signals it at the end of the calling thread. A separate thread
    /// calls `ended` after the watchdog's end. After a kill of this process, the watchdog appends
    /// lines to `log` and detaches the mount by `detach`.
    ///
    /// # Errors
    /// The watchdog cannot be started.
    pub(crate) fn start(
        mounted: &ActiveMount,
        covered: CoveredDirectory,
        after_kill: AfterKill,
        log: Option<&Path>,
        detach: Option<&DetachParams>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Watchdog> {
        let arguments = Arguments {
            mounted: mounted.clone(),
            covered,
            after_kill,
            log: log.map(std::path::absolute).transpose()?,
            detach: detach.and_then(DetachParams::to_text),
        };
        let mut watchdog = Watchdog { arguments, process: None, short_lives: 0, ended: Arc::new(ended) };
        watchdog.process = Some(watchdog.arguments.start(&watchdog.ended)?);
        Ok(watchdog)
    }

    /// Starts another watchdog after the unexpected end of the last one. The kernel signals it at
    /// the end of the calling thread.
    ///
    /// # Errors
    /// The watchdog cannot be started, or [`SHORT_LIVES`] watchdogs in a row ended early.
    pub(crate) fn restart(&mut self) -> io::Result<()> {
        let was_short = self.process.take().is_some_and(|last| last.started_at.elapsed() < SHORT_LIFE);
        self.short_lives = if was_short { self.short_lives + 1 } else { 0 };
        if self.short_lives == SHORT_LIVES {
            return Err(io::Error::other("the watchdog ends again and again"));
        }
        self.process = Some(self.arguments.start(&self.ended)?);
        Ok(())
    }

    /// Ends the watchdog after the end of the mount, and waits for it.
    pub(crate) fn dismiss(self) {
        let Some(Process { mut pipe, reaper, .. }) = self.process else { return };
        pipe.write_all(&[DISMISSED]).ok();
        drop(pipe);
        reaper.join().ok();
    }

    /// Leaves the watchdog to abort the connection at the end of this process, which may hang.
    pub(crate) fn leave(self) {
        let Some(Process { mut pipe, .. }) = self.process else { return };
        pipe.write_all(&[LEAVING]).ok();
        // The pipe stays open until this process ends: the watchdog waits for EOF.
        mem::forget(pipe);
    }
}

impl Arguments {
    fn start(&mut self, ended: &Arc<dyn Fn() + Send + Sync>) -> io::Result<Process> {
        let device = self.mounted.device.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let mut child = Command::new("/proc/self/exe")
            .envs(self.detach.as_ref().map(|text| (DETACH, text)))
            .arg0(NAME)
            .arg(MARK)
            .arg(device)
            .arg(self.mounted.maker.name())
            .arg(self.after_kill.name())
            .arg(&self.mounted.path)
            .args(&self.log)
            // The watchdog keeps no directory busy, and no terminal sends it signals.
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(self.covered.take_lock().map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()?;
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let ended = Arc::clone(ended);
        let reaper = thread::Builder::new().name("watchdog".into()).spawn(move || {
            child.wait().ok();
            ended();
        })?;
        Ok(Process { pipe, reaper, started_at: Instant::now() })
    }
}

/// Parsed arguments of a watchdog.
struct ParsedArguments {
    mounted: ActiveMount,
    after_kill: AfterKill,
    log: Option<PathBuf>,
}

/// Runs the watchdog and returns its exit code, if this process was started as one.
pub(super) fn run_if_asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let device = Some(arguments.next()?.into_string().ok()?);
    let maker = Maker::named(arguments.next()?.to_str()?)?;
    let after_kill = arguments.next()?;
    let after_kill = AfterKill::ALL.into_iter().find(|what| after_kill == what.name())?;
    let mounted = ActiveMount { path: PathBuf::from(arguments.next()?), device, maker };
    let log = arguments.next().map(PathBuf::from);
    Some(match watch(&ParsedArguments { mounted, after_kill, log }) {
        Ok(()) => 0,
        Err(_) => 1,
    })
}

fn watch(parsed: &ParsedArguments) -> io::Result<()> {
    rustix::thread::set_name(c"rfs-watchdog").ok();
    let parent = getppid();
    let (mut signalled, by_signal) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGUSR1, by_signal)?;
    // A service manager sends these signals to both processes. The main process handles them, and
    // then sends `DISMISSED` or `LEAVING`.
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    // Opened while the mount exists. The open file stays usable when the mount has left the tree.
    let abort = parsed.mounted.device.as_deref().ok_or(io::ErrorKind::NotFound.into()).and_then(Abort::of);
    let messages = listen(parent, &mut signalled)?;
    if messages.contains(&DISMISSED) {
        return Ok(());
    }
    let ended = match &abort {
        Ok(abort) => abort.abort(),
        Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
    };
    if messages.contains(&LEAVING) {
        return ended;
    }
    let (done_sending, sent) = mpsc::channel();
    let detach = std::env::var(DETACH).ok().and_then(|text| DetachParams::from_text(&text));
    thread::Builder::new().spawn(move || {
        detach.inspect(DetachParams::detach);
        done_sending.send(())
    })?;
    if let Some(path) = parsed.mounted.control_path() {
        // The killed process has left its control socket, unless it had none.
        std::fs::remove_file(path).ok();
    }
    let done = match parsed.after_kill {
        AfterKill::Unmount => parsed.mounted.detach_by_force(),
        AfterKill::Leave => Ok(()),
    };
    let reported = parsed.log.as_deref().map_or(Ok(()), |log| parsed.report(log, &ended, &done));
    // Releases the lock of the directory: the next mount there need not wait for the server.
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null)?;
    sent.recv_timeout(DETACH_LIMIT).ok();
    done.and(reported)
}

/// Aborts the connection of a mount whose process is dead. Unmounts, unless `leaves`.
pub(crate) fn end_by_force(mounted: &ActiveMount, leaves: bool) -> io::Result<()> {
    let aborted = mounted.device.as_deref().ok_or(io::ErrorKind::NotFound.into()).and_then(Abort::of);
    // Without a device the connection has ended already.
    aborted.and_then(|abort| abort.abort()).ok();
    if leaves { Ok(()) } else { mounted.detach_by_force() }
}

/// Blocks until the main process ends, and returns its messages.
fn listen(parent: Option<Pid>, signalled: &mut UnixStream) -> io::Result<Vec<u8>> {
    let pipe = io::stdin();
    rustix::io::ioctl_fionbio(&pipe, true)?;
    signalled.set_nonblocking(true)?;
    let (mut pipe, mut messages) = (pipe.lock(), Vec::new());
    loop {
        let ready = {
            let mut both =
                [pipe.as_fd(), signalled.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut both, None) {
                Ok(_) => both[1].revents(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
        };
        // Messages from before the signal have arrived by now.
        let over = match pipe.read_to_end(&mut messages) {
            Ok(_) => true,
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        };
        if over {
            return Ok(messages);
        }
        if !ready.is_empty() {
            // Another process may have sent the signal.
            if getppid() != parent {
                return Ok(messages);
            }
            // One byte for each signal.
            while signalled.read(&mut [0; 16]).is_ok_and(|len| len > 0) {}
        }
    }
}

impl ParsedArguments {
    /// Appends the outcome to the log.
    fn report(&self, log: &Path, ended: &io::Result<()>, done: &io::Result<()>) -> io::Result<()> {
        let path = self.mounted.path.display();
        let mut lines = vec![match (done, self.after_kill) {
            (Ok(()), AfterKill::Unmount) => format!("rfs-fuse was killed: {path} is unmounted"),
            (Ok(()), AfterKill::Leave) => {
                format!("rfs-fuse was killed: {path} stays mounted, and calls there fail")
            }
            (Err(e), _) => format!("rfs-fuse was killed, and {path} cannot be unmounted: {e}"),
        }];
        lines.extend(
            ended.as_ref().err().map(|e| {
                format!("cannot abort the connection, so calls that wait for a reply may hang: {e}")
            }),
        );
        if log == Path::new(SYSLOG) {
            return lines.iter().try_for_each(|line| logging::send(NAME, log::Level::Error, line));
        }
        let mut log = OpenOptions::new().append(true).create(true).open(log)?;
        lines.iter().try_for_each(|line| writeln!(log, "{NAME}: {line}"))
    }
}
