//! Checks a directory before the mount, and removes a dead mount there.
//!
//! # Concurrency
//! The main thread. Takes no locks. A separate process accesses the directory (`probe`).

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::mount::UnmountFlags;

use super::{
    error::MountError,
    helper,
    probe::{self, ProbeAction},
    table,
};

/// Time limit for a probe of the path. A dead mount can hang.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// Returns the absolute path of the directory to mount on. Unmounts a dead mount of type
/// `fs_type` there, which a killed process has left.
///
/// # Errors
/// There is no such directory, it does not answer, or a mount of type `fs_type` exists there.
pub fn mount_point(path: &Path, fs_type: &str) -> Result<PathBuf, MountError> {
    let point = |why: String| MountError::Point { path: path.to_owned(), why };
    match probe_directory(path) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()) => {
            clean(path, fs_type)?
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(point("no such directory to mount on".into()));
        }
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            return Err(point("does not answer: a file system that hangs is mounted there".into()));
        }
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Err(point("not a directory".into())),
        Err(e) => return Err(point(e.to_string())),
        Ok(()) => {}
    }
    let path = path.canonicalize().map_err(|e| point(e.to_string()))?;
    if table::topmost(&path).is_some_and(|entry| entry.fs_type == fs_type) {
        return Err(MountError::Point { path, why: "rfs-fuse is mounted there already".into() });
    }
    Ok(path)
}

fn probe_directory(path: &Path) -> io::Result<()> {
    probe::look(path, ProbeAction::Directory, PROBE_LIMIT)
        .unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// Returns the path as in the mount table, without an access to its last component.
fn absolute(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Unmounts a dead mount. If that fails, the error names the command that does it.
fn clean(path: &Path, fs_type: &str) -> Result<(), MountError> {
    let absolute = absolute(path);
    let ours = table::topmost(&absolute).is_some_and(|entry| entry.fs_type == fs_type);
    if ours {
        if rustix::process::geteuid().is_root() {
            rustix::mount::unmount(&absolute, UnmountFlags::DETACH).ok();
        } else {
            helper::unmount(&absolute, true).ok();
        }
        if probe_directory(path).is_ok() {
            log::info!("unmounted a dead mount on {}", path.display());
            return Ok(());
        }
    }
    Err(MountError::Point {
        path: path.to_owned(),
        why: format!(
            "a mount whose process is gone (transport endpoint is not connected): clean it up with `fusermount3 -u {}`",
            absolute.display()
        ),
    })
}
