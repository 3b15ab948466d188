//! The users of the tests of rights, and operations on files as them.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    thread,
};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, mknodat, utimensat};
use tempfile::TempDir;

/// A user, with the group of new files.
#[derive(Clone, Copy)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: &'static [u32],
}

pub(super) const ROOT: Actor = Actor { name: "root", uid: 0, gid: 0, groups: &[] };
/// Owner of the directories.
pub(super) const OWNER: Actor = Actor { name: "owner", uid: 1001, gid: 2001, groups: &[] };
/// Member of the directories' group, as a supplementary group.
pub(super) const MEMBER: Actor = Actor { name: "member", uid: 1002, gid: 2002, groups: &[2001] };
pub(super) const STRANGER: Actor = Actor { name: "stranger", uid: 1003, gid: 2003, groups: &[] };

impl Actor {
    /// Runs `what` as this user, on a new thread. Only root's thread has capabilities.
    pub(super) fn does<T: Send>(self, what: impl FnOnce() -> T + Send) -> T {
        let act = move || {
            let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            rustix::thread::set_thread_groups(&groups).expect("setgroups, of this thread");
            rustix::thread::set_thread_res_gid(gid, gid, gid).expect("setresgid, of this thread");
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("setresuid, of this thread");
            what()
        };
        thread::scope(|scope| scope.spawn(act).join().expect("thread"))
    }
}

pub(super) fn create(path: &Path, mode: u32) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map(drop)
}

pub(super) fn node(path: &Path, kind: FileType, device: u64) -> io::Result<()> {
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device)?)
}

pub(super) fn mkdir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

pub(super) fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

pub(super) const LONG_AGO: i64 = 1_000_000;

pub(super) fn set_times(path: &Path, time: Timespec) -> io::Result<()> {
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

/// Creates a directory in memory, which has the same rules.
pub(super) fn reference() -> TempDir {
    let reference = tempfile::tempdir_in("/dev/shm").expect("temporary directory");
    chmod(reference.path(), 0o755).expect("chmod");
    reference
}
