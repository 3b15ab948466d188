//! Paths of the control sockets of mounts, by user and device number.
//!
//! A mount of root has its socket in `/run/rfs-fuse`, a mount of another user in its runtime
//! directory or in `/tmp`. The path needs no answer of the mount, so it can be found for a mount
//! that hangs.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use rustix::fs::Access;

/// Directory of the sockets of root.
const OF_ROOT: &str = "/run/rfs-fuse";

/// Returns the path for a mount of this process with a device number.
pub fn own_path(device: &str) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let is_writable = |path: &str| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    match runtime_directory() {
        _ if user == 0 && is_writable("/run") => Path::new(OF_ROOT).join(format!("mount-{device}")),
        Some(directory) if user != 0 => in_runtime(&directory, device),
        _ => in_tmp(user, device),
    }
}

/// Makes the directory of the sockets of root, if this process is the first to need it.
pub fn make_directory(path: &Path) {
    if path.parent() == Some(Path::new(OF_ROOT)) {
        // A failure shows when the socket is made.
        DirBuilder::new().mode(0o755).create(OF_ROOT).ok();
    }
}

/// Returns the paths that a mount of `user` with a device number may have.
pub fn paths(user: u32, device: &str) -> Vec<PathBuf> {
    if user == 0 {
        return vec![Path::new(OF_ROOT).join(format!("mount-{device}")), in_tmp(user, device)];
    }
    let own = runtime_directory().filter(|_| rustix::process::geteuid().as_raw() == user);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let mut paths: Vec<PathBuf> =
        own.into_iter().chain([usual]).map(|path| in_runtime(&path, device)).collect();
    paths.push(in_tmp(user, device));
    paths
}

fn in_runtime(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("rfs-mount-{device}"))
}

fn in_tmp(user: u32, device: &str) -> PathBuf {
    PathBuf::from(format!("/tmp/rfs-{user}-mount-{device}"))
}

fn runtime_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a mount whose socket a search does not find.
    #[test]
    fn the_own_path_is_among_those_that_are_looked_for() {
        let own = own_path("0:45");
        assert!(own.to_string_lossy().ends_with("mount-0:45"), "{own:?}");
        assert!(paths(rustix::process::geteuid().as_raw(), "0:45").contains(&own));
        assert_eq!(paths(1000, "0:45").last(), Some(&PathBuf::from("/tmp/rfs-1000-mount-0:45")));
    }
}
