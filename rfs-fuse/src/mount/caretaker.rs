//! Ends a mount whose process was killed.
//!
//! A killed process cannot unmount, and what it leaves answers every call with ENOTCONN. It can even be kept from ending: a thread
//! of it that drops what the kernel has kept may wait for a lock that the kernel holds over a request of this mount, no signal ends
//! that, and the kernel does not end each request by itself as long as the thread has a device (`fuse/telling`). So there is a second process, which
//! has none, and ends the connection ([`Abort`]). It learns of the first one's end in two ways: its standard input ends with the last
//! thread that has the other end, which those that tell the kernel something have not, and the kernel signals the end of the thread that started it, which comes first where another thread hangs. If it is killed itself,
//! the first process starts another one.
//!
//! While it lives it holds a lock on the directory under the mount. Whoever mounts there next waits for that, so that it
//! cannot take a later mount for its own.

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
    process::Signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::{MountError, Mounted, abort::Abort};
use crate::client::Farewell;

/// What it is called; its first argument, which no user gives, follows.
const NAME: &str = "rfs-caretaker";
const MARK: &str = "--take-care";
/// What is said to it when there is nothing left to do.
const DISMISSED: u8 = b'.';
/// What is said to it by a process that ends, and has let go of mount and server: it might not come to its end.
const LEAVING: u8 = b',';
/// Where it finds what to tell the server; nobody but the user and root can read it there.
const FAREWELL: &str = "RFS_FAREWELL";
/// It waits no longer for the server.
const FAREWELL_LIMIT: Duration = Duration::from_secs(10);
/// An earlier one at the same place is done in a moment, or hangs itself.
const PATIENCE: Duration = Duration::from_secs(3);
/// So many in a row that end sooner than that, and the next one would, too.
const SHORT_LIVES: u32 = 8;
const SHORT_LIFE: Duration = Duration::from_secs(60);

/// The directory under a mount, locked for whoever takes care of that if directories can be locked.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Finds the directory again when something is mounted on it. Locks nothing.
    place: Option<OwnedFd>,
    locked: Option<File>,
}

impl Ground {
    /// Locks a directory on which nothing is mounted yet, when the caretaker of an earlier mount there is done. Where
    /// directories cannot be locked, or not by this user, it is not locked.
    ///
    /// # Errors
    /// If that one does not get done: then something hangs there, or another process is mounting.
    pub(crate) fn lock(point: &Path) -> Result<Ground, MountError> {
        let place = rustix::fs::open(point, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let Ok(directory) = File::open(point) else { return Ok(Ground { place, locked: None }) };
        let end = Instant::now() + PATIENCE;
        loop {
            match lock_now(&directory) {
                Ok(()) => return Ok(Ground { place, locked: Some(directory) }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let why = "another process is mounting there, or ending a mount".into();
                    return Err(MountError::Point { path: point.to_owned(), why });
                }
                Err(_) => return Ok(Ground { place, locked: None }),
            }
        }
    }

    /// What the next caretaker is to hold. This process does not hold it itself: it might not come to its end.
    fn hand_over(&mut self) -> Option<File> {
        self.locked.take().or_else(|| {
            let place = self.place.as_ref()?.as_raw_fd();
            File::open(format!("/proc/self/fd/{place}")).ok().filter(|again| lock_now(again).is_ok())
        })
    }
}

fn lock_now(directory: &File) -> rustix::io::Result<()> {
    rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive)
}

/// What is to become of a mount whose process was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It is taken out of the tree.
    Unmount,
    /// It stays, dead.
    Leave,
}

impl Afterwards {
    const ALL: [Afterwards; 2] = [Afterwards::Unmount, Afterwards::Leave];

    fn name(self) -> &'static str {
        match self {
            Afterwards::Unmount => "unmount",
            Afterwards::Leave => "leave",
        }
    }
}

/// The process that takes care of a mount.
pub(crate) struct Caretaker {
    duty: Duty,
    process: Option<Process>,
    short_lives: u32,
    /// Told when it has ended.
    ended: Arc<dyn Fn() + Send + Sync>,
}

/// What it takes to start one.
#[derive(Debug)]
struct Duty {
    mounted: Mounted,
    ground: Ground,
    afterwards: Afterwards,
    /// Gets a line if it had to do something.
    log: Option<PathBuf>,
    /// What the server is told then.
    farewell: Option<String>,
}

#[derive(Debug)]
struct Process {
    line: ChildStdin,
    waits: JoinHandle<()>,
    since: Instant,
}

impl Caretaker {
    /// Starts it. The calling thread is the one whose end it hears of, and `ended` is called on another one when it has ended. `log` gets a
    /// line if it had to do something, and the server the farewell.
    ///
    /// # Errors
    /// It cannot be started; nobody takes care of the mount.
    pub(crate) fn start(
        mounted: &Mounted,
        ground: Ground,
        afterwards: Afterwards,
        log: Option<&Path>,
        farewell: Option<&Farewell>,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Caretaker> {
        let duty = Duty {
            mounted: mounted.clone(),
            ground,
            afterwards,
            log: log.map(std::path::absolute).transpose()?,
            farewell: farewell.and_then(Farewell::to_text),
        };
        let mut caretaker = Caretaker { duty, process: None, short_lives: 0, ended: Arc::new(ended) };
        caretaker.process = Some(caretaker.duty.start(&caretaker.ended)?);
        Ok(caretaker)
    }

    /// Starts another one, as the last one has ended without having been asked to. The calling thread is the one whose end it hears
    /// of.
    ///
    /// # Errors
    /// It cannot be started, or would not stay: nobody takes care of the mount any more.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        let was_short = self.process.take().is_some_and(|last| last.since.elapsed() < SHORT_LIFE);
        self.short_lives = if was_short { self.short_lives + 1 } else { 0 };
        if self.short_lives == SHORT_LIVES {
            return Err(io::Error::other("whoever is to do so ends again and again"));
        }
        self.process = Some(self.duty.start(&self.ended)?);
        Ok(())
    }

    /// Nothing is left to do. Returns when it has ended.
    pub(crate) fn dismiss(self) {
        let Some(Process { mut line, waits, .. }) = self.process else { return };
        line.write_all(&[DISMISSED]).ok();
        drop(line);
        waits.join().ok();
    }

    /// This process ends. What is left to do is to see to it that it does.
    pub(crate) fn leave(self) {
        let Some(Process { mut line, .. }) = self.process else { return };
        line.write_all(&[LEAVING]).ok();
        // Open until then: its end is what it waits for.
        mem::forget(line);
    }
}

impl Duty {
    fn start(&mut self, ended: &Arc<dyn Fn() + Send + Sync>) -> io::Result<Process> {
        let device = self.mounted.device.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let mut child = Command::new("/proc/self/exe")
            .envs(self.farewell.as_ref().map(|text| (FAREWELL, text)))
            .arg0(NAME)
            .arg(MARK)
            .arg(device)
            .arg(if self.mounted.by_helper { "helper" } else { "root" })
            .arg(self.afterwards.name())
            .arg(&self.mounted.path)
            .args(&self.log)
            // Neither a directory nor a terminal's signals are its business.
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(self.ground.hand_over().map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .spawn()?;
        let line = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let ended = Arc::clone(ended);
        let waits = thread::Builder::new().name("caretaker".into()).spawn(move || {
            child.wait().ok();
            ended();
        })?;
        Ok(Process { line, waits, since: Instant::now() })
    }
}

/// What a caretaker was started for.
struct Asked {
    mounted: Mounted,
    afterwards: Afterwards,
    log: Option<PathBuf>,
}

/// If this process was started to take care: does so, and says with which exit code to end.
pub(super) fn asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let device = Some(arguments.next()?.into_string().ok()?);
    let by_helper = arguments.next()? == OsStr::new("helper");
    let afterwards = arguments.next()?;
    let afterwards = Afterwards::ALL.into_iter().find(|what| afterwards == what.name())?;
    let mounted = Mounted { path: PathBuf::from(arguments.next()?), device, by_helper };
    let log = arguments.next().map(PathBuf::from);
    Some(match take_care(&Asked { mounted, afterwards, log }) {
        Ok(()) => 0,
        Err(_) => 1,
    })
}

fn take_care(asked: &Asked) -> io::Result<()> {
    rustix::thread::set_name(c"rfs-caretaker").ok();
    let (mut signalled, by_signal) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGUSR1, by_signal)?;
    // What ends a service is for the first process, which then says so here.
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    // While the mount is there: who has it open can use it whatever becomes of that.
    let abort = asked.mounted.device.as_deref().ok_or(io::ErrorKind::NotFound.into()).and_then(Abort::of);
    let said = listen(&mut signalled)?;
    if said.contains(&DISMISSED) {
        return Ok(());
    }
    let ended = match &abort {
        Ok(abort) => abort.abort(),
        Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
    };
    if said.contains(&LEAVING) {
        return ended;
    }
    let (tell, heard) = mpsc::channel();
    let farewell = std::env::var(FAREWELL).ok().and_then(|text| Farewell::from_text(&text));
    thread::Builder::new().spawn(move || {
        farewell.inspect(Farewell::say);
        tell.send(())
    })?;
    let done = match asked.afterwards {
        Afterwards::Unmount => asked.mounted.detach_by_force(),
        Afterwards::Leave => Ok(()),
    };
    let told = asked.log.as_deref().map_or(Ok(()), |log| asked.report(log, &ended, &done));
    // Who wants to mount there need not wait for the server.
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(null)?;
    heard.recv_timeout(FAREWELL_LIMIT).ok();
    done.and(told)
}

/// Waits for the end of the process, and returns what that had said.
fn listen(signalled: &mut UnixStream) -> io::Result<Vec<u8>> {
    let line = io::stdin();
    rustix::io::ioctl_fionbio(&line, true)?;
    let (mut line, mut said) = (line.lock(), Vec::new());
    loop {
        let ready = {
            let mut both =
                [line.as_fd(), signalled.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut both, None) {
                Ok(_) => both[1].revents(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
        };
        // What was said before the signal is there by now.
        let over = match line.read_to_end(&mut said) {
            Ok(_) => true,
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        };
        if over || !ready.is_empty() {
            return Ok(said);
        }
    }
}

impl Asked {
    /// Says what was done, and what could not be.
    fn report(&self, log: &Path, ended: &io::Result<()>, done: &io::Result<()>) -> io::Result<()> {
        let path = self.mounted.path.display();
        let mut log = OpenOptions::new().append(true).create(true).open(log)?;
        match (done, self.afterwards) {
            (Ok(()), Afterwards::Unmount) => {
                writeln!(log, "{NAME}: rfs-fuse was killed: {path} is unmounted")?
            }
            (Ok(()), Afterwards::Leave) => {
                writeln!(log, "{NAME}: rfs-fuse was killed: {path} is left as it is, and answers nobody")?;
            }
            (Err(e), _) => writeln!(log, "{NAME}: rfs-fuse was killed, and {path} cannot be unmounted: {e}")?,
        }
        if let Err(e) = ended {
            writeln!(
                log,
                "{NAME}: who waits for an answer there may go on waiting: the connection cannot be ended: {e}"
            )?;
        }
        Ok(())
    }
}
