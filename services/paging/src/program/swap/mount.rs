//! The mount that has the swap area: a process of rfs-fuse.
//!
//! # Concurrency
//! One thread.

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use super::error::{SwapError, os};
use rfs_paging::cli::SwapOptions;

const PROGRAM: &str = "rfs-fuse";
/// Pause between two looks at another process.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long rfs-fuse may take until it has mounted the server.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running rfs-fuse.
#[derive(Debug)]
pub(super) struct Mount {
    child: Child,
}

impl Mount {
    /// Starts rfs-fuse, and waits until it has mounted the server at `point`.
    pub(super) fn start(
        point: &Path,
        options: &SwapOptions,
        is_stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Mount, SwapError> {
        let program = program(options)?;
        let device = |path: &Path| fs::metadata(path).map(|data| data.dev()).map_err(os("stat", path));
        let before = device(point)?;
        let mut command = Command::new(&program);
        // Files without a cache: the kernel needs no memory for pages of the area.
        command.args(["--for-swap", "--cache", "none", "--no-follow", "--quiet"]);
        if let Some(key) = &options.key {
            command.arg("--key").arg(key);
        }
        command.args(&options.fuse_options).arg(options.server.to_string()).arg(point);
        // Ctrl-C ends the swap area first, and the mount after it.
        command.process_group(0).stdin(Stdio::null());
        let mut child = command.spawn().map_err(os("run", &program))?;
        let begin = Instant::now();
        loop {
            let failure = match child.try_wait() {
                Ok(None) if device(point).is_ok_and(|device| device != before) => return Ok(Mount { child }),
                Ok(None) if is_stopped() => SwapError::Stopped,
                Ok(None) if begin.elapsed() > TIMEOUT => SwapError::Timeout(TIMEOUT.as_secs()),
                Ok(None) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Ok(Some(status)) => SwapError::NotMounted(status),
                Err(error) => os("wait for", &program)(error),
            };
            // It may be about to mount, so its end comes before the folder is removed.
            child.kill().ok();
            child.wait().ok();
            return Err(failure);
        }
    }

    /// Returns the number of the process.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the status of rfs-fuse if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }
}

/// Returns the path of rfs-fuse.
fn program(options: &SwapOptions) -> Result<PathBuf, SwapError> {
    let path = match &options.fuse {
        Some(path) => path.clone(),
        None => std::env::current_exe().map_err(os("find", "rfs-paging"))?.with_file_name(PROGRAM),
    };
    if path.exists() { Ok(path) } else { Err(SwapError::NoFuse(path)) }
}
