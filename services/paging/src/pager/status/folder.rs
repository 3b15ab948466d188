//! Where the control sockets of pagers are: a folder of each user.
//!
//! # Concurrency
//! Any thread. No locks.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// The folder of root, which also has the folders of swap areas.
const OF_ROOT: &str = "/run/rfs-paging";
/// The folder in the runtime directory of another user.
const NAME: &str = "rfs-paging";

/// Pagers that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Returns the folder of this user. `None` if the user has no runtime directory.
pub(super) fn own() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Some(OF_ROOT.into());
    }
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = set.unwrap_or_else(|| format!("/run/user/{}", user.as_raw()).into());
    runtime.is_dir().then(|| runtime.join(NAME))
}

/// Makes the folder, and returns the path of a new socket of this process.
pub(super) fn new_socket() -> io::Result<PathBuf> {
    let folder = own().ok_or(io::ErrorKind::NotFound)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    Ok(folder.join(format!("pager-{}-{number}.sock", std::process::id())))
}

/// Returns the sockets in a folder with their processes, in the order of the processes.
pub(super) fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut sockets: Vec<_> = entries.filter_map(|entry| Some((process(&entry)?, entry.path()))).collect();
    sockets.sort();
    sockets
}

/// Returns the process of a socket from its name.
fn process(entry: &fs::DirEntry) -> Option<u32> {
    let name = entry.file_name().into_string().ok()?;
    let (process, _) = name.strip_prefix("pager-")?.strip_suffix(".sock")?.split_once('-')?;
    process.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a list that has folders of swap areas, or misses sockets.
    #[test]
    fn only_sockets_of_pagers_are_listed() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["pager-20-0.sock", "pager-3-1.sock", "swap-3-17", "pager-x-0.sock", "pager-3.sock"] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        let processes: Vec<u32> = sockets(folder.path()).into_iter().map(|(process, _)| process).collect();
        assert_eq!(processes, [3, 20]);
        assert!(sockets(&folder.path().join("missing")).is_empty());
    }
}
