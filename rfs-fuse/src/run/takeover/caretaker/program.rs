//! The files of programs that serve a mount: their checks, and how they run.
//!
//! The caretaker holds each file open, and runs the file that it holds. So a path that leads to
//! another file later, such as after an installation, changes neither a restart nor a way back.
//!
//! # Concurrency
//! The caretaker's thread. A check has a thread of its own, as the file may be on a file system
//! that hangs. The thread stays until that file system answers.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use program_version::Build;
use rdmabox::{Key, tls::TlsClient};
use rustix::fs::{Mode, OFlags, fstat, major, minor};

use crate::{
    cli::{self, USAGE},
    mount::within,
};

/// First argument of a program that is asked for the format of its kept state. The arguments of a
/// mount may follow, which the program checks.
const FORMAT_MARK: &str = "--kept-format";
/// Limit for the answer of a program that is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Limit for a check, with the opening of the file.
const CHECK_LIMIT: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(5);

/// Prints the format of the kept state that this program writes, if it is asked for it. Checks the
/// arguments that follow. Returns the exit code.
pub(in crate::run) fn format_if_asked() -> Option<u8> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1)? != OsStr::new(FORMAT_MARK) {
        return None;
    }
    // If stdout is closed, the text has no place to go.
    writeln!(io::stdout(), "{}", rfs_client::KEPT_FORMAT).ok();
    arguments.remove(1);
    if arguments.len() == 1 {
        return Some(0);
    }
    Some(check_options(&arguments).map_or_else(
        |why| {
            eprintln!("{why}");
            USAGE
        },
        |()| 0,
    ))
}

/// Checks the options of a mount and the files that they name. `--check-config` would refuse the
/// mount point of a mount that is served.
fn check_options(words: &[OsString]) -> Result<(), String> {
    // This command line prints no version.
    let build = Build { version: env!("CARGO_PKG_VERSION"), commit: None, protocols: &[] };
    let (_, args) = cli::read(build, words).map_err(|e| e.one_line())?;
    let args = args.with_absolute_paths();
    args.address().map_err(|e| e.to_string())?;
    args.connection.key.as_deref().map(Key::load).transpose().map_err(|e| e.to_string())?;
    let tls = args.tls().map_err(|e| e.to_string())?;
    tls.as_ref().map(TlsClient::load).transpose().map_err(|e| format!("cannot use TLS: {e}"))?;
    Ok(())
}

/// The file of a program, open.
#[derive(Debug)]
pub(super) struct ProgramFile {
    path: PathBuf,
    file: OwnedFd,
}

impl ProgramFile {
    /// Returns the file that this process runs.
    pub(super) fn own() -> io::Result<ProgramFile> {
        Ok(ProgramFile { path: std::env::current_exe()?, file: open(Path::new("/proc/self/exe"))? })
    }

    /// Opens a file, and has its program say whether it can continue a mount with a device number
    /// and arguments. Relative paths of the arguments begin in `directory`.
    ///
    /// # Errors
    /// Says why the program cannot continue the mount.
    pub(super) fn checked(
        path: &Path,
        device: Option<&str>,
        (arguments, directory): (&[OsString], &Path),
    ) -> Result<ProgramFile, String> {
        let name = path.display();
        let (path, device) = (path.to_owned(), device.map(str::to_owned));
        let (arguments, directory) = (arguments.to_vec(), directory.to_owned());
        let check = move || -> Result<ProgramFile, String> {
            let file = open(&path).map_err(|e| e.to_string())?;
            let number = fstat(&file).map_err(|e| e.to_string())?.st_dev;
            if device == Some(format!("{}:{}", major(number), minor(number))) {
                return Err("it is on the mount itself, which does not answer meanwhile".into());
            }
            let program = ProgramFile { path, file };
            program.ask(&arguments, &directory)?;
            Ok(program)
        };
        let checked = within(CHECK_LIMIT, check);
        checked.unwrap_or_else(|| Err("it does not answer".into())).map_err(|why| format!("{name}: {why}"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs the program in a directory.
    pub(super) fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        // `mount8::parse` reads the command line according to the program's name. The caretaker
        // tells the service manager.
        command.arg0("rfs-fuse").current_dir(directory).env_remove("NOTIFY_SOCKET");
        command
    }

    /// Asks the program for its format, and whether it accepts the arguments of the mount.
    fn ask(&self, arguments: &[OsString], directory: &Path) -> Result<(), String> {
        let start = |directory: &Path| {
            let mut command = self.command(directory);
            command.arg(FORMAT_MARK).args(arguments.iter().skip(1));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        // The directory may have gone.
        let child = start(directory).or_else(|_| start(Path::new("/"))).map_err(|e| e.to_string())?;
        let output = output_within(child, ANSWER_LIMIT).map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let format: u64 = text.trim().parse().map_err(|_| "it is no rfs-fuse that can take over")?;
        let own = rfs_client::KEPT_FORMAT;
        if format != own {
            return Err(format!(
                "it keeps its state in format {format}, and the running program in format {own}: unmount and mount again"
            ));
        }
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(())
    }
}

/// Opens a file by its path alone: the program may be executable, and not readable.
fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the output of a process that prints little. Kills it after `limit`.
fn output_within(mut child: Child, limit: Duration) -> io::Result<Output> {
    let end = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("it does not answer"));
        }
        thread::sleep(PAUSE);
    }
    child.wait_with_output()
}
