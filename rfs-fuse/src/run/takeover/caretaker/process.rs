//! The caretaker's process: starts the serving program, and the next one after its death.
//!
//! # Concurrency
//! One thread. The check of a new program has its own.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::ExitStatusExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::{
    STARTED,
    end::end_mount,
    message::{HeldMount, Message, receive, send},
    program::ProgramFile,
    upgrade::{accept, answer, listen},
    zombie::threads_only_wait,
};

/// Time that a program which has closed its connection may take to end: it may still unmount.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Time after which the caretaker looks which threads keep a program from ending.
const END_GRACE: Duration = Duration::from_millis(20);
/// A serving program that lives for less time than this has a short life.
const SHORT_LIFE: Duration = Duration::from_millis(500);
/// Short lives in a row after which the mount ends.
const SHORT_LIVES: u32 = 5;
/// First pause after a short life.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait before the caretaker looks at its state again.
const SECOND: Duration = Duration::from_secs(1);
/// Limit for the start of a program that replaces another one.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Pause between tries to listen for upgrades, and the number of tries before a warning. Further
/// tries are a second apart.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);
const LISTEN_TRIES: u32 = 100;
/// Exit code of a program whose main thread has panicked.
const PANIC: u8 = 101;

/// The parts that the caretaker holds.
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
    previous: Arc<ProgramFile>,
}

/// The caretaker of one mount.
struct Caretaker<'a> {
    arguments: &'a [OsString],
    /// The program to start next, and the one that this process runs.
    program: Arc<ProgramFile>,
    own: Arc<ProgramFile>,
    /// Where relative paths of the arguments begin.
    directory: PathBuf,
    held: Option<Held>,
    listener: Option<UnixListener>,
    failed_listens: u32,
    upgrade: Option<Upgrade>,
    short_lives: u32,
    /// Signals for the next program that serves.
    requests: Vec<i32>,
    /// Signal that the running program has, and by which it unmounts.
    ending: Option<i32>,
    /// Dead programs of which a thread waits in the kernel until a later program answers.
    left: Vec<Child>,
    /// Runs when the mount answers for the first time.
    ready: Option<Box<dyn FnOnce() + 'a>>,
}

/// The end of a serving program.
enum Death {
    /// It has ended by itself.
    Exit(u8),
    /// It was killed, or has crashed.
    Signal(i32),
    /// It is dead, but threads of it wait in the kernel for a request of this mount.
    Left,
    /// It has closed its connection, and does not end.
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
    let own = Arc::new(ProgramFile::own()?);
    let mut caretaker = Caretaker {
        arguments,
        program: Arc::clone(&own),
        own,
        directory,
        held: None,
        listener: None,
        failed_listens: 0,
        upgrade: None,
        short_lives: 0,
        requests: Vec::new(),
        ending: None,
        left: Vec::new(),
        ready: Some(Box::new(ready)),
    };
    let code = caretaker.care(&mut pipes);
    if let Some(Upgrade { stream, .. }) = caretaker.upgrade.take() {
        answer(&stream, Err("the mount has ended".into()));
    }
    code
}

impl Caretaker<'_> {
    fn care(&mut self, signals: &mut [(i32, UnixStream)]) -> io::Result<u8> {
        loop {
            // The previous program has not come to its end by itself.
            self.requests.extend(self.ending.take());
            let mut program = match self.start() {
                Ok(program) => program,
                Err(e) if self.revert(&format!("it does not start: {e}")) => continue,
                Err(e) if self.held.is_none() => return Err(e),
                Err(e) => {
                    log::error!("cannot start a program that continues: {e}");
                    return Ok(self.give_up(1));
                }
            };
            match self.attend(&mut program, signals)? {
                Death::Exit(code) if self.is_end(code, &program) => return Ok(code),
                Death::Signal(signal) if self.held.is_none() => return Ok(128 + signal as u8),
                Death::Stuck => {
                    log::error!("the program has ended its connection with the caretaker, and does not end");
                    return Ok(self.give_up(1));
                }
                _ if !program.serves && self.revert("it has ended before it served the mount") => {}
                Death::Exit(_) | Death::Signal(_) | Death::Left => {
                    if !self.pause(&program) {
                        log::error!("programs that serve the mount end again and again: the mount ends");
                        return Ok(self.give_up(1));
                    }
                }
            }
            self.left.push(program.child);
        }
    }

    /// Reaps dead programs that have ended by now.
    fn reap(&mut self) {
        self.left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }

    /// Returns true if a program that has ended with an exit code has ended its mount.
    fn is_end(&self, code: u8, program: &Program) -> bool {
        let unmounts = program.serves && code != PANIC;
        self.held.is_none() || unmounts || code == 0 && self.upgrade.is_none()
    }

    /// Waits before the next program starts. Returns false after too many short lives in a row.
    fn pause(&mut self, program: &Program) -> bool {
        let is_short = program.started.elapsed() < SHORT_LIFE || !program.serves;
        self.short_lives = if is_short { self.short_lives + 1 } else { 0 };
        if self.short_lives >= SHORT_LIVES {
            return false;
        }
        if is_short {
            // The cause may pass. Without a program that serves, it may take some seconds.
            let factor = if program.serves { self.short_lives } else { 4_u32.pow(self.short_lives - 1) };
            std::thread::sleep(PAUSE * factor);
        }
        true
    }

    /// Starts a serving program.
    fn start(&self) -> io::Result<Program> {
        let (own, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let run_in = |program: &ProgramFile, directory: &Path| {
            let mut command = program.command(directory);
            command.args(self.arguments.iter().skip(1)).env(STARTED, "1");
            command.stdin(Stdio::from(its.try_clone()?)).spawn()
        };
        // The directory may have gone.
        let run = |program| run_in(program, &self.directory).or_else(|_| run_in(program, Path::new("/")));
        let started = Instant::now();
        let child = run(&self.program).or_else(|e| match self.upgrade {
            Some(_) => Err(e),
            None => {
                let path = self.program.path().display();
                log::warn!("cannot start {path}: {e}: starting the program of the caretaker");
                run(&self.own)
            }
        })?;
        drop(its);
        let descriptors: Vec<BorrowedFd<'_>> =
            self.held.iter().flat_map(|held| &held.descriptors).map(AsFd::as_fd).collect();
        let mount = self.held.as_ref().map(|held| held.mount.clone());
        let program = Program { child, socket: own, started, serves: false };
        match send(&program.socket, &Message::Start(mount), &descriptors) {
            // It is dead already, which `attend` sees.
            Err(e) if [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&e.kind()) => {}
            sent => sent?,
        }
        Ok(program)
    }

    /// Waits for the end of a serving program.
    fn attend(&mut self, program: &mut Program, signals: &mut [(i32, UnixStream)]) -> io::Result<Death> {
        loop {
            let limit = self.listen();
            let mut files: Vec<PollFd<'_>> = vec![PollFd::new(&program.socket, PollFlags::IN)];
            files.extend(signals.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)));
            files.extend(self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            wait_for_any(&mut files, limit)?;
            let ready: Vec<bool> = files.iter().map(|file| !file.revents().is_empty()).collect();
            self.reap();
            if ready[0] {
                match receive(&program.socket)? {
                    Some((message, descriptors)) => self.obey(message, descriptors, program),
                    None if self.held.is_none() => return self.wait_without_limit(program, signals),
                    None => return wait(&mut program.child),
                }
            }
            self.pass_signals(program, signals);
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

    /// Waits for the end of a program that has closed its connection, and whose mount ends with it.
    fn wait_without_limit(
        &mut self,
        program: &mut Program,
        signals: &mut [(i32, UnixStream)],
    ) -> io::Result<Death> {
        let process = pidfd_open(Pid::from_child(&program.child), PidfdFlags::empty())?;
        loop {
            if let Some(status) = program.child.try_wait()? {
                return Ok(death(status));
            }
            let mut files: Vec<PollFd<'_>> = vec![PollFd::new(&process, PollFlags::IN)];
            files.extend(signals.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)));
            wait_for_any(&mut files, SECOND)?;
            self.pass_signals(program, signals);
        }
    }

    /// Listens for upgrades of the held mount. Returns the time until the next try. The kernel may
    /// give the device number of an ended mount to this one, while the caretaker of the ended mount
    /// still listens under that number.
    fn listen(&mut self) -> Duration {
        let device = self.held.as_ref().and_then(|held| held.mount.device.as_deref());
        let (Some(device), None) = (device, &self.listener) else { return SECOND };
        match listen(device) {
            Ok(listener) => self.listener = Some(listener),
            Err(e) => {
                self.failed_listens += 1;
                if self.failed_listens < LISTEN_TRIES {
                    return LISTEN_PAUSE;
                }
                if self.failed_listens == LISTEN_TRIES {
                    log::warn!("no upgrade is possible before rfs-caretaker-{device} is free: {e}");
                }
            }
        }
        SECOND
    }

    /// Forwards signals to a program that serves. A program that is about to continue a mount has
    /// no handlers yet, so signals wait until it serves.
    fn pass_signals(&mut self, program: &Program, signals: &mut [(i32, UnixStream)]) {
        for (signal, pipe) in signals {
            while pipe.read(&mut [0; 16]).is_ok_and(|len| len > 0) {
                self.requests.push(*signal);
            }
        }
        if self.held.is_some() && !program.serves {
            self.requests.sort_unstable();
            self.requests.dedup();
            return;
        }
        for signal in self.requests.drain(..) {
            forward(&program.child, signal);
            if signal != SIGHUP {
                self.ending = Some(signal);
            }
        }
    }

    fn obey(&mut self, message: Message, mut descriptors: Vec<OwnedFd>, program: &mut Program) {
        match message {
            Message::Keep { mount, has_lock } => {
                let lock = if has_lock { descriptors.pop() } else { None };
                (self.listener, self.failed_listens) = (None, 0);
                self.held = Some(Held { mount, descriptors, _lock: lock });
                // A new mount may have waited for its server, without a limit.
                program.started = Instant::now();
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
        let device = self.held.as_ref().and_then(|held| held.mount.device.as_deref());
        let checked = match program.serves && self.upgrade.is_none() {
            true => ProgramFile::checked(&path, device, (self.arguments, &self.directory)),
            false => Err("another program is just taking over".into()),
        };
        match checked {
            Ok(next) => {
                let previous = std::mem::replace(&mut self.program, Arc::new(next));
                self.upgrade = Some(Upgrade { stream, previous });
                program.child.kill().ok();
            }
            Err(why) => answer(&stream, Err(why)),
        }
    }

    /// Returns to the program before an upgrade. Returns false if none was under way.
    fn revert(&mut self, why: &str) -> bool {
        let Some(Upgrade { stream, previous }) = self.upgrade.take() else { return false };
        let path = self.program.path().display();
        answer(&stream, Err(format!("{path}: {why}: the previous program serves on")));
        self.program = previous;
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

/// Waits for one of the files.
fn wait_for_any(files: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(files, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn forward(child: &Child, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(child.id() as i32), Signal::from_named_raw(signal)) {
        kill_process(pid, signal).ok();
    }
}

/// Waits for the end of a program that has closed its connection. A thread of a dead program may
/// wait in the kernel for a request that only the next program answers. Until then the thread keeps
/// the process from ending.
fn wait(child: &mut Child) -> io::Result<Death> {
    let begin = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(death(status)),
            None if begin.elapsed() > END_GRACE && threads_only_wait(child.id()) => return Ok(Death::Left),
            // It may still unmount, after its main thread has closed the connection.
            None if begin.elapsed() < END_LIMIT => std::thread::sleep(Duration::from_millis(1)),
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
