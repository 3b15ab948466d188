//! Going to the background.
//!
//! The process starts itself again instead of forking, so that no threads get lost. The second one has the first one's
//! stderr, for what goes wrong, and a pipe as stdout: a line there means that the mount answers. Then it lets go of both.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
};

use crate::cli;

/// Starts the background process and waits until its mount answers or it fails. Prints the line of the process unless `quiet`.
/// Returns the exit code.
pub(crate) fn launch(arguments: &[OsString], quiet: bool) -> io::Result<i32> {
    let mut child = Command::new(std::env::current_exe()?)
        // What it is called decides how it takes its arguments.
        .arg0("rfs-fuse")
        .args(cli::detached_arguments(arguments))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Ends when the child lets go of the pipe, or with it.
        stdout.read_to_string(&mut said)?;
    }
    if said.ends_with('\n') {
        if !quiet {
            print!("{said}");
        }
        return Ok(0);
    }
    let status = child.wait()?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Begins the life of a background process: a session of its own, so that no terminal's signals reach it.
pub(crate) fn begin() {
    // Fails only for the leader of a process group, which this process is not.
    rustix::process::setsid().ok();
}

/// Lets go of the terminal and of the directory it was started in. Messages go to the log file from now on.
pub(crate) fn detach(log_file: Option<&Path>) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    if log_file.is_none() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    std::env::set_current_dir("/")?;
    // Last: this is what the first process waits for.
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Sends what goes to stderr to a file.
pub(crate) fn log_to(path: &Path) -> io::Result<()> {
    let file: File = OpenOptions::new().append(true).create(true).open(path)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}
