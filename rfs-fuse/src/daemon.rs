//! Starts `rfs-fuse --daemon` in the background.
//!
//! The process does not fork, because a fork loses all threads but one. It starts its own
//! executable again. The background process inherits stderr for error messages, and has a pipe as
//! stdout. It writes a line to the pipe when the mount answers. Then it closes both.
//!
//! # Concurrency
//! Runs on the main thread and takes no locks.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
};

use crate::cli;

/// Starts the background process, and blocks until its mount answers or the process fails. Prints
/// the line of the process unless `quiet`. Returns the exit code.
pub(crate) fn launch(arguments: &[OsString], quiet: bool) -> io::Result<i32> {
    let mut child = Command::new(std::env::current_exe()?)
        // `mount8::parse` reads the command line according to the program's name.
        .arg0("rfs-fuse")
        .args(cli::detached_arguments(arguments))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut greeting = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Reads until the child closes the pipe or ends.
        stdout.read_to_string(&mut greeting)?;
    }
    if greeting.ends_with('\n') {
        if !quiet {
            print!("{greeting}");
        }
        return Ok(0);
    }
    let status = child.wait()?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Starts a new session for the background process, so that no terminal sends it signals.
pub(crate) fn start_session() {
    // Fails only for the leader of a process group. This process leads none.
    rustix::process::setsid().ok();
}

/// Detaches the process from its terminal and from its working directory. Without a log file,
/// stderr leads nowhere from now on.
pub(crate) fn detach(log_file: Option<&Path>) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    if log_file.is_none() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    std::env::set_current_dir("/")?;
    // This comes last: the foreground process waits for the end of the pipe.
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Redirects stderr to the end of a file.
pub(crate) fn log_to(path: &Path) -> io::Result<()> {
    let file: File = OpenOptions::new().append(true).create(true).open(path)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}
