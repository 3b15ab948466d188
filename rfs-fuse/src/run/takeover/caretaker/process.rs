//! The caretaker's process: starts the serving program, and the next one after its death.
//!
//! # Concurrency
//! One thread.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, Signal, kill_process},
};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::{
    STARTED,
    end::end_mount,
    message::{HeldMount, Message, receive, send},
    upgrade::{accept, answer, listen},
};

/// First argument of a program that is asked for the format of its kept state.
const FORMAT_MARK: &str = "--kept-format";
/// Time that a dead program may take to end: a thread of it may wait for the kernel.
const END_LIMIT: Duration = Duration::from_secs(3);
/// A serving program that lives for less time than this has a short life.
const SHORT_LIFE: Duration = Duration::from_millis(500);
/// Short lives in a row after which the mount ends.
const SHORT_LIVES: u32 = 5;
/// Limit for the start of a program that replaces another one.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Prints the format of the kept state that this program writes, if it is asked for it.
pub(in crate::run) fn format_if_asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(FORMAT_MARK) {
        return None;
    }
    println!("{}", rfs_client::KEPT_FORMAT);
    Some(0)
}

/// What the caretaker holds.
struct Held {
    mount: HeldMount,
    /// The kept state, then the devices.
    descriptors: Vec<OwnedFd>,
    _lock: Option<OwnedFd>,
}

/// The serving program.
struct Program {
    child: Child,
    socket: OwnedFd,
    started: Instant,
    serves: bool,
}

/// A request for an upgrade that waits for the new program.
struct Upgrade {
    stream: UnixStream,
    previous: PathBuf,
}

/// The caretaker of one mount.
struct Caretaker<'a> {
    arguments: &'a [OsString],
    /// The program to start next, and the one that this process runs.
    path: PathBuf,
    own: File,
    /// Where relative paths of the arguments begin.
    directory: PathBuf,
    held: Option<Held>,
    listener: Option<UnixListener>,
    upgrade: Option<Upgrade>,
    short_lives: u32,
    /// Runs when the mount answers for the first time.
    ready: Option<Box<dyn FnOnce() + 'a>>,
}

/// The end of a serving program.
enum Death {
    /// It has ended by itself.
    Exit(u8),
    /// It was killed, or has crashed.
    Signal(i32),
    /// It is dead, but a thread of it still waits for the kernel.
    Stuck,
}

/// Runs the caretaker with the arguments of the mount, whose relative paths begin in `directory`.
/// `ready` runs when the mount answers for the first time. Returns the exit code.
pub(in crate::run) fn run<'a>(
    arguments: &'a [OsString],
    directory: PathBuf,
    ready: impl FnOnce() + 'a,
) -> io::Result<u8> {
    rustix::thread::set_name(c"rfs-caretaker").ok();
    // One byte of the pipe does not tell signals apart, so each signal has a pipe.
    let mut pipes = Vec::new();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal, write)?;
        pipes.push((signal, read));
    }
    for signal in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let mut caretaker = Caretaker {
        arguments,
        path: std::env::current_exe()?,
        own: File::open("/proc/self/exe")?,
        directory,
        held: None,
        listener: None,
        upgrade: None,
        short_lives: 0,
        ready: Some(Box::new(ready)),
    };
    caretaker.care(&mut pipes)
}

impl Caretaker<'_> {
    fn care(&mut self, signals: &mut [(i32, UnixStream)]) -> io::Result<u8> {
        loop {
            let mut program = match self.start() {
                Ok(program) => program,
                Err(e) if self.held.is_none() => return Err(e),
                Err(e) => {
                    log::error!("cannot start a program that continues: {e}");
                    return Ok(self.give_up(1));
                }
            };
            let death = self.attend(&mut program, signals)?;
            match death {
                Death::Exit(code) if self.held.is_none() || program.serves || code == 0 => return Ok(code),
                Death::Exit(_) if self.revert("it has ended before it served the mount") => {}
                Death::Signal(signal) if self.held.is_none() => return Ok(128 + signal as u8),
                Death::Stuck => {
                    log::error!("the dead program does not end: a thread of it waits for the kernel");
                    return Ok(self.give_up(1));
                }
                Death::Exit(_) | Death::Signal(_) => {
                    let is_short = program.started.elapsed() < SHORT_LIFE || !program.serves;
                    self.short_lives = if is_short { self.short_lives + 1 } else { 0 };
                    if self.short_lives >= SHORT_LIVES {
                        log::error!("programs that serve the mount end again and again: the mount ends");
                        return Ok(self.give_up(1));
                    }
                    if is_short {
                        // The cause may pass.
                        std::thread::sleep(Duration::from_millis(50) * self.short_lives);
                    }
                }
            }
        }
    }

    /// Starts a serving program.
    fn start(&self) -> io::Result<Program> {
        let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let run = |path: &Path, directory: &Path, its: OwnedFd| {
            Command::new(path)
                // `mount8::parse` reads the command line according to the program's name.
                .arg0("rfs-fuse")
                .args(self.arguments.iter().skip(1))
                .current_dir(directory)
                .env(STARTED, "1")
                // The caretaker tells the service manager.
                .env_remove("NOTIFY_SOCKET")
                .stdin(Stdio::from(its))
                .spawn()
        };
        let started = Instant::now();
        let own_path = format!("/proc/self/fd/{}", self.own.as_raw_fd());
        let own_path = Path::new(&own_path);
        let child = run(&self.path, &self.directory, its.try_clone()?)
            .or_else(|e| {
                log::warn!(
                    "cannot start {}: {e}: starting the program of the caretaker",
                    self.path.display()
                );
                run(own_path, &self.directory, its.try_clone()?)
            })
            // The directory may have gone.
            .or_else(|_| run(own_path, Path::new("/"), its))?;
        let descriptors: Vec<BorrowedFd<'_>> =
            self.held.iter().flat_map(|held| &held.descriptors).map(AsFd::as_fd).collect();
        let mount = self.held.as_ref().map(|held| held.mount.clone());
        let program = Program { child, socket: own, started, serves: false };
        send(&program.socket, &Message::Start(mount), &descriptors)?;
        Ok(program)
    }

    /// Waits for the end of a serving program.
    fn attend(&mut self, program: &mut Program, signals: &mut [(i32, UnixStream)]) -> io::Result<Death> {
        loop {
            let mut files: Vec<PollFd<'_>> = vec![PollFd::new(&program.socket, PollFlags::IN)];
            files.extend(signals.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)));
            files.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            match poll(&mut files, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
            for (signal, pipe) in signals.iter_mut() {
                while pipe.read(&mut [0; 16]).is_ok_and(|len| len > 0) {
                    forward(&program.child, *signal);
                }
            }
            if ready[0] {
                match receive(&program.socket)? {
                    Some((message, descriptors)) => self.obey(message, descriptors, program),
                    None => return wait(&mut program.child),
                }
            }
            if ready.len() > signals.len() + 1 && ready[signals.len() + 1] {
                self.take_upgrade(program);
            }
            let is_late = !program.serves && program.started.elapsed() > START_LIMIT;
            if self.held.is_some() && is_late {
                log::error!("a program does not continue the mount within {START_LIMIT:?}: killed");
                program.child.kill().ok();
            }
        }
    }

    fn obey(&mut self, message: Message, mut descriptors: Vec<OwnedFd>, program: &mut Program) {
        match message {
            Message::Keep { mount, has_lock } => {
                let lock = if has_lock { descriptors.pop() } else { None };
                self.listener = mount.device.as_deref().and_then(|device| {
                    let listening = listen(device);
                    listening.inspect_err(|e| log::warn!("no upgrade is possible: {e}")).ok()
                });
                self.held = Some(Held { mount, descriptors, _lock: lock });
            }
            Message::Serving => {
                program.serves = true;
                if let Some(Upgrade { stream, .. }) = self.upgrade.take() {
                    answer(&stream, Ok(program.child.id()));
                }
                if let Some(ready) = self.ready.take() {
                    ready();
                    if let Err(e) = sd_notify::notify(&[NotifyState::Ready]) {
                        log::warn!("cannot notify the service manager: {e}");
                    }
                }
            }
            Message::Start(_) => log::warn!("the serving program sends what only the caretaker says"),
        }
    }

    /// Takes a request for an upgrade, and kills the serving program if the new one can continue.
    fn take_upgrade(&mut self, program: &mut Program) {
        let Some(Ok((path, stream))) = self.listener.as_ref().map(accept) else { return };
        let why = match format_of(&path) {
            _ if self.upgrade.is_some() || !program.serves => "another program is just taking over".into(),
            Ok(format) if format == rfs_client::KEPT_FORMAT => {
                let previous = std::mem::replace(&mut self.path, path);
                self.upgrade = Some(Upgrade { stream, previous });
                program.child.kill().ok();
                return;
            }
            Ok(format) => format!(
                "the running program keeps its state in format {}, {} in format {format}: unmount and mount again",
                rfs_client::KEPT_FORMAT,
                path.display()
            ),
            Err(e) => format!("{}: {e}", path.display()),
        };
        answer(&stream, Err(why));
    }

    /// Returns to the program before an upgrade. Returns false if none was under way.
    fn revert(&mut self, why: &str) -> bool {
        let Some(Upgrade { stream, previous }) = self.upgrade.take() else { return false };
        answer(&stream, Err(format!("{}: {why}: the previous program serves on", self.path.display())));
        self.path = previous;
        true
    }

    /// Ends the mount. Returns the exit code.
    fn give_up(&mut self, code: u8) -> u8 {
        if let Some(Held { mount, descriptors, _lock }) = self.held.take() {
            drop(descriptors);
            match end_mount(&mount) {
                Ok(()) => log::error!("{}: unmounted", mount.path.display()),
                Err(e) => log::error!("{}: cannot unmount: {e}", mount.path.display()),
            }
        }
        code
    }
}

/// Returns the format of the kept state of a program.
fn format_of(path: &Path) -> io::Result<u64> {
    let output = Command::new(path).arg(FORMAT_MARK).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| io::Error::other("it is no rfs-fuse that can take over"))
}

fn forward(child: &Child, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(child.id() as i32), Signal::from_named_raw(signal)) {
        kill_process(pid, signal).ok();
    }
}

/// Waits for the end of a program that has closed its connection.
fn wait(child: &mut Child) -> io::Result<Death> {
    let end = Instant::now() + END_LIMIT;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(death(status)),
            // It may still unmount, after its main thread has closed the connection.
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            None => return Ok(Death::Stuck),
        }
    }
}

fn death(status: ExitStatus) -> Death {
    match (status.code(), status.signal()) {
        (Some(code), _) => Death::Exit(u8::try_from(code).unwrap_or(1)),
        (None, signal) => Death::Signal(signal.unwrap_or(0)),
    }
}
