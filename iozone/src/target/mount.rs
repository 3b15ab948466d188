//! Detects and unmounts mounts.
//!
//! Reads `/proc/self/mountinfo` and never the mount itself, because a file system whose server has
//! died may block. The parser is pure. [`unmount`] runs `fusermount3`, or `umount` if that is
//! missing.

use std::{
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    Error, Result,
    process::{Guarded, Invocation},
};

/// Time limit for unmounting a file system that responds.
const ANSWER: Duration = Duration::from_secs(3);

/// Returns the mount points in a `mountinfo` text. Decodes its octal escapes.
fn mount_points(mountinfo: &[u8]) -> Vec<PathBuf> {
    mountinfo
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(|field| PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
        .collect()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (first, octal) {
            (b'\\', Some(digits)) => {
                out.push(digits.iter().fold(0, |sum: u8, d| sum.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Returns the mount points at or below a directory, the deepest first.
pub fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let path = "/proc/self/mountinfo";
    let mut below: Vec<PathBuf> = mount_points(&fs::read(path).map_err(Error::io(path))?)
        .into_iter()
        .filter(|point| point.starts_with(dir))
        .collect();
    below.sort_by_key(|point| std::cmp::Reverse(point.as_os_str().as_bytes().len()));
    Ok(below)
}

/// Returns true if this exact path is a mount point.
pub fn is_mounted(point: &Path) -> Result<bool> {
    Ok(mounts_below(point)?.iter().any(|found| found == point))
}

/// Unmounts a FUSE mount point. Retries while files are still being closed, then unmounts lazily.
/// Succeeds if nothing is mounted. A file system that hangs is unmounted lazily at once.
pub fn unmount(point: &Path) -> Result<()> {
    let mut lazy = false;
    for attempt in 0..20 {
        if !is_mounted(point)? {
            return Ok(());
        }
        lazy |= attempt >= 15;
        let done = run("fusermount3", &[if lazy { "-uz" } else { "-u" }, "--"], point).and_then(|done| {
            if done { Ok(true) } else { run("umount", if lazy { &["-l", "--"] } else { &["--"] }, point) }
        });
        match done {
            Err(HangingMount) if lazy => break,
            Err(HangingMount) => lazy = true,
            Ok(_) if is_mounted(point)? => thread::sleep(Duration::from_millis(100)),
            Ok(_) => {}
        }
    }
    if is_mounted(point)? {
        return Err(Error::LeftBehind(format!("mount {}", point.display())));
    }
    Ok(())
}

/// The unmount program blocks because the file system does not respond.
struct HangingMount;

/// Runs the program. Returns true if it succeeded.
fn run(program: &str, args: &[&str], point: &Path) -> std::result::Result<bool, HangingMount> {
    let command = Invocation::new(program).args(args.iter().copied()).arg(point);
    // A working directory below the mount would keep it busy.
    let Ok(mut child) = Guarded::spawn(&command, Path::new("/")) else { return Ok(false) };
    match child.wait_end(ANSWER) {
        Ok(Some(status)) => Ok(status.success()),
        _ => Err(HangingMount),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"22 1 0:20 / / rw,relatime - ext4 /dev/vda rw\n\
        30 22 0:30 / /tmp/a\\040b/mnt rw,nosuid - fuse.rfs rfs rw\n\
        31 22 0:31 / /dev/shm rw - tmpfs tmpfs rw\n\n";

    #[test]
    fn mount_points_are_read() {
        let points = mount_points(MOUNTINFO);
        assert_eq!(points, ["/", "/tmp/a b/mnt", "/dev/shm"].map(PathBuf::from));
    }

    #[test]
    fn escapes_are_resolved_and_broken_ones_kept() {
        assert_eq!(unescape(b"a\\040b\\134c"), b"a b\\c");
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"a\\999"), b"a\\999");
    }

    #[test]
    fn this_system_has_a_root_and_not_everything() {
        assert!(is_mounted(Path::new("/")).unwrap());
        assert!(!is_mounted(Path::new("/nonexistent")).unwrap());
    }

    #[test]
    fn unmounting_nothing_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        unmount(dir.path()).unwrap();
    }
}
