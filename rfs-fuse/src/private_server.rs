//! A server that belongs to one mount: `rfs-fuse --memory SIZE DIR`.
//!
//! [`PrivateServer::start`] runs the server as a child process, on a Unix socket in a directory
//! that only this user may enter. The server ends when its [`PrivateServer`] is dropped, and when
//! the process that started it ends or is killed. If the server ends first, the mount fails,
//! because its files are lost.
//!
//! # Concurrency
//! The main thread starts and ends the server. A thread of its own waits for the child process.

use std::{
    ffi::OsStr,
    fs::{File, Permissions},
    io::{self, BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rdmabox::{Address, failure};
use rfs_server::Config;
use rfs_status::logging::{self, LogFormat};
use rustix::process::{Pid, PidfdFlags, Signal};

/// First argument of a process that runs as the private server.
const MARK: &str = "--private-server";
/// Last argument of a private server that logs to the system's log.
const SYSTEM_LOG: &str = "syslog";
/// Prefix of the line by which the server reports that it cannot start.
const FAILED: &str = "failed: ";
/// Prefix of the line by which the server reports that clients can connect.
const READY: &str = "ready: ";
/// Prefix of the names of socket directories.
const DIRECTORY: &str = "rfs-private-";
/// Time for the server to end after its only client has left.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The server has not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The operating system refuses a process, a pipe or a directory.
    #[error("cannot start a server for this mount: {what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The server reports the reason.
    #[error("cannot lend memory to this mount: {0}")]
    Refused(String),
    /// The server ended without a reason.
    #[error("the server of this mount ended at its start: {0}")]
    Ended(ExitStatus),
}

fn os(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Os { what, source }
}

/// Destination of the server's log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Log<'a> {
    /// The stderr of this process.
    Inherit,
    /// The end of a file.
    File(&'a Path),
    /// The system's log.
    System,
}

/// A running server, and the directory of its socket.
#[derive(Debug)]
pub(crate) struct PrivateServer {
    address: Address,
    process: rustix::fd::OwnedFd,
    /// True once the mount's process ends the server.
    ending: Arc<AtomicBool>,
    /// Disconnected when the server has ended.
    ended: mpsc::Receiver<()>,
    _directory: tempfile::TempDir,
}

impl PrivateServer {
    /// Starts a server that lends `memory` bytes, and waits until clients can connect.
    ///
    /// Call it on the main thread: the kernel ends the server with the thread that started it.
    ///
    /// # Errors
    /// The server cannot start, for the reason that it reports. Nothing is left behind.
    pub(crate) fn start(memory: u64, log: Log<'_>) -> Result<PrivateServer, StartError> {
        let directory = tempfile::Builder::new()
            .prefix(DIRECTORY)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(runtime_directory());
        let directory = directory.map_err(os("no directory for its socket"))?;
        let socket = directory.path().join("socket");
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("rfs-fuse")
            .arg(MARK)
            .args([memory.to_string(), std::process::id().to_string()])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for the mount, which ends the server after its own end.
            .process_group(0);
        match log {
            Log::Inherit => {}
            Log::System => drop(command.arg(SYSTEM_LOG).stderr(Stdio::null())),
            Log::File(path) => {
                let file = File::options().append(true).create(true).open(path);
                command.stderr(file.map_err(os("cannot open the log file"))?);
            }
        }
        let mut child = command.spawn().map_err(os("no process"))?;
        if let Err(e) = wait_until_ready(&mut child) {
            child.kill().ok();
            child.wait().ok();
            return Err(e);
        }
        let pid = Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let process = process.map_err(|e| os("no handle of its process")(e.into()))?;
        let ending = Arc::<AtomicBool>::default();
        let (end, ended) = mpsc::channel();
        let is_wanted = Arc::clone(&ending);
        thread::Builder::new()
            .name("private-server".into())
            .spawn(move || {
                let status = child.wait();
                if !is_wanted.load(Ordering::SeqCst) {
                    let how = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                    failure::report(&format!("the server of this mount ended ({how}): its files are gone"));
                }
                drop(end);
            })
            .map_err(os("no thread"))?;
        Ok(PrivateServer { address: Address::Unix(socket), process, ending, ended, _directory: directory })
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for PrivateServer {
    /// Ends the server, and waits for its end.
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // An error says that the process has ended already.
        let signal = |signal| {
            rustix::process::pidfd_send_signal(&self.process, signal).ok();
        };
        signal(Signal::TERM);
        if self.ended.recv_timeout(END_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::warn!("the server of this mount does not end: killing it");
            signal(Signal::KILL);
            self.ended.recv().ok();
        }
    }
}

/// Returns the directory for runtime files of this user.
fn runtime_directory() -> PathBuf {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = [Some(PathBuf::from("/run")), of_user.filter(|path| path.is_absolute())];
    let writable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    candidates.into_iter().flatten().find(writable).unwrap_or_else(std::env::temp_dir)
}

/// Reads the server's lines until it is ready.
fn wait_until_ready(child: &mut Child) -> Result<(), StartError> {
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    for line in lines.into_iter().flatten() {
        let line = line.map_err(os("no answer"))?;
        if line.starts_with(READY) {
            return Ok(());
        }
        if let Some(reason) = line.strip_prefix(FAILED) {
            return Err(StartError::Refused(reason.to_owned()));
        }
    }
    let status = child.wait().map_err(os("no answer"))?;
    Err(StartError::Ended(status))
}

/// Runs the private server and returns the exit code, if this process was started as one.
pub(crate) fn run_if_asked() -> Option<u8> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != OsStr::new(MARK) {
        return None;
    }
    let mut number = || arguments.next()?.to_str()?.parse::<u64>().ok();
    let (memory, parent) = (number()?, number()?);
    let socket = PathBuf::from(arguments.next()?);
    let logs_to_system = arguments.next().is_some_and(|last| last == SYSTEM_LOG);
    Some(match serve(memory, parent, socket, logs_to_system) {
        Ok(()) => 0,
        Err(reason) => {
            // The parent process reads the line while it waits for the server. Later, the pipe is
            // closed.
            if writeln!(io::stdout(), "{FAILED}{reason}").is_err() {
                log::error!("the server of this mount: {reason}");
            }
            1
        }
    })
}

fn serve(memory: u64, parent: u64, socket: PathBuf, logs_to_system: bool) -> Result<(), String> {
    let own_end = |e| format!("cannot follow the mount's process: {e}");
    rustix::thread::set_name(c"rfs-private").ok();
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(own_end)?;
    // A parent that ended before the call above sends no signal.
    let actual = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if u64::from(actual) != parent {
        return Err("the mount's process has ended".into());
    }
    logging::init("warn", LogFormat::Text);
    if logs_to_system {
        // Without a system's log there is no place for messages.
        logging::log_to_syslog("rfs-private").ok();
    }
    let directory = socket.parent().map(Path::to_owned);
    let mut config = Config::new(memory);
    config.name = "private".into();
    config.listen = vec![Address::Unix(socket)];
    let outcome = rfs_server::run::serve(config, None);
    // The mount's process removes the directory. If it was killed, the server does.
    if let Some(directory) = directory {
        std::fs::remove_dir(directory).ok();
    }
    outcome
}
