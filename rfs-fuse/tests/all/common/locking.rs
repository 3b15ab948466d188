//! Locking of files, and detection of waiters.

use std::{
    fs::{File, OpenOptions},
    os::fd::AsFd,
    path::Path,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{FlockOperation as Op, fcntl_lock, flock},
    io::Errno,
};

use super::{TestServer, eventually};

pub(crate) fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened")
}

/// Locks or unlocks the whole file for its open file description (OFD lock of fcntl(2)).
pub(crate) fn ofd_lock(file: &File, operation: Op) -> Result<(), Errno> {
    let (kind, wait) = match operation {
        Op::LockShared => (libc::F_RDLCK, true),
        Op::LockExclusive => (libc::F_WRLCK, true),
        Op::NonBlockingLockShared => (libc::F_RDLCK, false),
        Op::NonBlockingLockExclusive => (libc::F_WRLCK, false),
        _ => (libc::F_UNLCK, false),
    };
    let lock =
        libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    let command = if wait { FcntlArg::F_OFD_SETLKW(&lock) } else { FcntlArg::F_OFD_SETLK(&lock) };
    fcntl(file.as_fd(), command).map(drop).map_err(|e| Errno::from_raw_os_error(e as i32))
}

/// Locks or unlocks a whole file.
pub(crate) type Lock = fn(&File, Op) -> Result<(), Errno>;

/// The three kinds of locks.
pub(crate) const WAYS: [(&str, Lock); 3] =
    [("flock", |file, op| flock(file, op)), ("fcntl", |file, op| fcntl_lock(file, op)), ("ofd", ofd_lock)];

/// Makes `ask` start a lock request that has to wait. Returns when the server has received it.
pub(crate) fn begins_to_wait<T>(server: &TestServer, ask: impl FnOnce() -> T) -> T {
    let before = server.handled("lock");
    let asked = ask();
    assert!(eventually(|| server.handled("lock") > before), "no request waits for a lock");
    asked
}
