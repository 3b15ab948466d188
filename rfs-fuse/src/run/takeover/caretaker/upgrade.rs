//! The command `rfs-fuse upgrade`: replaces the program that serves a mount.
//!
//! The caretaker of a mount listens on an abstract socket, whose name has the mount's device
//! number. It obeys its own user and root.
//!
//! # Concurrency
//! The main thread.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use clap::{CommandFactory, Parser};
use rustix::net::sockopt::socket_peercred;

use crate::{cli::parse, mount::table};

/// Limit for the answer of the caretaker.
const LIMIT: Duration = Duration::from_secs(40);
/// Time in which the caretaker of a new mount listens.
const LISTEN_LIMIT: Duration = Duration::from_millis(500);
const LISTEN_PAUSE: Duration = Duration::from_millis(10);

/// Replaces the program that serves a mount by this one. The mount was made with --takeover.
/// Programs that use the mount wait for a moment
#[derive(Debug, Parser)]
#[command(name = "rfs-fuse upgrade", bin_name = "rfs-fuse upgrade", disable_version_flag = true)]
struct UpgradeArgs {
    /// Directory of the mount
    directory: PathBuf,
}

/// Returns the command line of the command.
pub(in crate::run) fn command_line() -> clap::Command {
    UpgradeArgs::command().name("upgrade")
}

fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("rfs-caretaker-{device}"))
}

/// Connects to the caretaker of a mount. A new mount may answer before its caretaker listens, which
/// is then before `end`.
fn connect(device: &str, end: Instant) -> io::Result<UnixStream> {
    let address = address(device)?;
    loop {
        match UnixStream::connect_addr(&address) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < end => {
                thread::sleep(LISTEN_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Returns true if the caretaker ended without an answer. It was the caretaker of an ended mount
/// with the same device number.
fn has_ended(error: &io::Error) -> bool {
    [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind())
}

/// Listens for upgrades of the mount with this device number.
pub(super) fn listen(device: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address(device)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts a request. Returns the program that is to serve the mount, and the connection.
pub(super) fn accept(listener: &UnixListener) -> io::Result<(PathBuf, UnixStream)> {
    let (stream, _) = listener.accept()?;
    let user = socket_peercred(&stream)?.uid;
    if !user.is_root() && user != rustix::process::geteuid() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut line = Vec::new();
    BufReader::new(&stream).read_until(b'\n', &mut line)?;
    line.pop_if(|last| *last == b'\n');
    Ok((PathBuf::from(std::ffi::OsStr::from_bytes(&line)), stream))
}

/// Answers a request: `Ok` with the number of the new process.
pub(super) fn answer(mut stream: &UnixStream, outcome: Result<u32, String>) {
    let line = match outcome {
        Ok(pid) => format!("ok {pid}\n"),
        Err(why) => format!("error {}\n", why.replace('\n', " ")),
    };
    // The command may have ended.
    stream.write_all(line.as_bytes()).ok();
}

/// Checks that the listening process is root's, the own user's, or that of the user that has
/// mounted. Any process can listen under the name of a caretaker.
fn check_peer(stream: &UnixStream, mounted_by: Option<u32>) -> Result<(), String> {
    let user = socket_peercred(stream).map_err(|e| format!("cannot tell whose caretaker answers: {e}"))?.uid;
    if user.is_root() || user == rustix::process::geteuid() || Some(user.as_raw()) == mounted_by {
        return Ok(());
    }
    Err(format!("a process of user {} answers in place of the caretaker", user.as_raw()))
}

/// Runs the command. Returns the exit code.
pub(in crate::run) fn main(arguments: &[OsString]) -> u8 {
    let args = match parse::<UpgradeArgs>(arguments.to_vec()) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match upgrade(&args.directory) {
        Ok(pid) => {
            println!("rfs-fuse: process {pid} serves {}", args.directory.display());
            0
        }
        Err(why) => {
            eprintln!("rfs-fuse upgrade: {}: {why}", args.directory.display());
            1
        }
    }
}

/// Asks a caretaker to serve its mount by a program. Returns the line that it answers.
fn ask(mut stream: &UnixStream, program: &Path) -> io::Result<String> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&[program.as_os_str().as_bytes(), b"\n"].concat())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn upgrade(directory: &Path) -> Result<u32, String> {
    let path = std::path::absolute(directory).map_err(|e| e.to_string())?;
    let entry = table::topmost(&path).ok_or("nothing is mounted there")?;
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let end = Instant::now() + LISTEN_LIMIT;
    let line = loop {
        let stream = connect(&entry.device, end).map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => {
                "the mount has no caretaker: mount with --takeover, as root or as the same user".to_owned()
            }
            _ => e.to_string(),
        })?;
        check_peer(&stream, entry.user)?;
        match ask(&stream, &program) {
            Err(e) if has_ended(&e) && Instant::now() < end => thread::sleep(LISTEN_PAUSE),
            answered => break answered.map_err(|e| format!("no answer of the caretaker: {e}"))?,
        }
    };
    match line.trim_end().split_once(' ') {
        Some(("ok", pid)) => pid.parse().map_err(|_| format!("the caretaker says {line:?}")),
        Some(("error", why)) => Err(why.to_owned()),
        _ => Err("the caretaker refuses, as the mount is another user's".into()),
    }
}
