//! Opens descriptors of a file that can read and write, but not truncate it, for peers.
//!
//! A memfd is sealed against truncation, but a file on a tmpfs cannot be sealed. A process that
//! may write to a file may truncate it, and every access beyond the new end raises SIGBUS.
//! Landlock (Linux 6.2) checks truncation when a file is opened. The restriction belongs to the
//! open file, also in another process that received its descriptor.
//!
//! # Concurrency
//! Any thread may call it. The restriction applies to a temporary thread that ends immediately.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    thread,
};

/// `LANDLOCK_CREATE_RULESET_VERSION`
const VERSION: u32 = 1;
/// `LANDLOCK_ACCESS_FS_TRUNCATE`, supported since `KNOWS_TRUNCATE`.
const TRUNCATE: u64 = 1 << 14;
const KNOWS_TRUNCATE: libc::c_long = 3;

/// The part of `struct landlock_ruleset_attr` that all versions have.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// Reopens a file so that no holder of the descriptor can truncate it.
///
/// # Errors
/// `Unsupported` if the kernel has no Landlock or a version without truncation.
pub(crate) fn reopen(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    thread::scope(|scope| {
        let opened = thread::Builder::new().name("rdmabox-restrict".into()).spawn_scoped(scope, || {
            deny_truncation()?;
            let again: File = OpenOptions::new().read(true).write(true).open(path)?;
            Ok(again.into())
        })?;
        opened.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Denies truncation for files that the calling thread opens from now on.
fn deny_truncation() -> io::Result<()> {
    let none = std::ptr::null::<u8>();
    // SAFETY: without a structure, the call only returns a version number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) };
    if version < KNOWS_TRUNCATE {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let attr = RulesetAttr { handled_access_fs: TRUNCATE };
    // SAFETY: the structure outlives the call and has the given length.
    let ruleset = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size_of::<RulesetAttr>(), 0)
    };
    let ruleset = i32::try_from(ruleset).unwrap_or(-1);
    if ruleset < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that no other object owns.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    // SAFETY: plain system calls that affect only the calling thread. An unprivileged thread may
    // restrict itself only if it cannot gain rights by executing programs.
    let done = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0),
            failed => failed.into(),
        }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::fs::FileExt};

    use super::*;
    use crate::mapping::memory::Memory;

    /// Returns a file on a tmpfs, as in `--memory-dir`.
    fn file() -> File {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8192).unwrap();
        file
    }

    #[test]
    fn a_restricted_descriptor_writes_and_maps_but_does_not_truncate() {
        let file = file();
        let Ok(given) = reopen(file.as_fd()).map(File::from).inspect_err(|e| {
            assert_eq!(e.kind(), io::ErrorKind::Unsupported);
            eprintln!("not run: this kernel has no Landlock that knows truncation");
        }) else {
            return;
        };
        for len in [0, 4096, 1 << 20] {
            given.set_len(len).unwrap_err();
        }
        // A duplicate has the same rights, and this process keeps its rights.
        given.try_clone().unwrap().set_len(0).unwrap_err();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        given.write_all_at(b"bytes", 5000).unwrap();
        let view = Memory::from_peer(given.into(), 8192, true).unwrap();
        view.write(100, b"mapped");
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 100).unwrap();
        assert_eq!(&bytes, b"mapped");
        file.set_len(4096).unwrap();
    }

    /// Covers both kinds of descriptors for peers, sealed and restricted.
    #[test]
    fn a_peer_cannot_truncate_memory() {
        if reopen(file().as_fd()).is_err() {
            return eprintln!("not run: this kernel has no Landlock that knows truncation");
        }
        for memory in [Memory::shared("test", 8192).unwrap(), Memory::of_file(file()).unwrap()] {
            for writable in [false, true] {
                let given = File::from(memory.peer_fd(writable).unwrap());
                for len in [0, 4096] {
                    given.set_len(len).unwrap_err();
                }
                assert_eq!(given.metadata().unwrap().len(), 8192);
            }
        }
    }
}
