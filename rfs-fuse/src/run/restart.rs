//! Runs the program anew in its own process, to mount the new export of a server that has lost its
//! memory.
//!
//! The process keeps its number, which a service manager watches. All other threads end, and the
//! connection with the kernel ends with its descriptors.
//!
//! # Concurrency
//! The main thread.

use std::{
    convert::Infallible,
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use rfs_status::logging;

/// Environment variable of a program that runs anew, and whose log goes to the system's log.
const LOGS_TO_SYSTEM: &str = "RFS_LOGS_TO_SYSTEM";

/// Has the log go to the system's log at once, if it did so before this program ran anew.
pub(super) fn resume_log() {
    if std::env::var_os(LOGS_TO_SYSTEM).is_some() {
        // Without a system's log there is no place for messages.
        logging::log_to_syslog("rfs-fuse").ok();
    }
}

/// The command line of this process, and the directory that its relative paths begin in.
#[derive(Debug)]
pub(super) struct Restart<'a> {
    arguments: &'a [OsString],
    directory: Option<PathBuf>,
}

impl<'a> Restart<'a> {
    /// Remembers the current directory, which a process in the background leaves.
    pub(super) fn prepare(arguments: &'a [OsString]) -> Restart<'a> {
        Restart { arguments, directory: std::env::current_dir().ok() }
    }

    /// Runs the program anew.
    ///
    /// # Errors
    /// The kernel refuses to run it.
    pub(super) fn run(&self) -> io::Result<Infallible> {
        let mut program = Command::new("/proc/self/exe");
        // `mount8::parse` reads the command line according to the program's name.
        program.arg0("rfs-fuse").args(self.arguments.iter().skip(1));
        if logging::is_syslog() {
            program.env(LOGS_TO_SYSTEM, "1");
        }
        program.current_dir(self.directory.as_deref().unwrap_or(Path::new("/")));
        Err(program.exec())
    }
}
