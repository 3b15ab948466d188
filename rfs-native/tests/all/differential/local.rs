//! The same operations on a directory of a local file system, which is treated as a root.

use std::{
    collections::BTreeMap,
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
};

use rfs_native::{Credentials, RenameMode, SetTime};
use rustix::{
    fs::{
        Access as Bits, AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec,
        Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
    },
    io::Errno,
};
use tempfile::TempDir;

use super::operation::{Opening, Operation, Outcome, Shown};

type Result<T> = std::result::Result<T, Errno>;

/// A directory in memory.
pub(crate) struct Local {
    _dir: TempDir,
    root: OwnedFd,
    files: Vec<File>,
    /// The users of the opens.
    openers: Vec<Credentials>,
}

/// Makes this thread act for a user, until it is dropped.
struct Acting;

impl Acting {
    fn begin(user: &Credentials) -> Option<Acting> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&groups).expect("groups");
        rustix::thread::set_thread_res_gid(None, Gid::from_raw(user.gid), None).expect("group");
        rustix::thread::set_thread_res_uid(None, Uid::from_raw(user.uid), None).expect("user");
        Some(Acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        rustix::thread::set_thread_res_uid(None, Uid::ROOT, None).expect("root");
        rustix::thread::set_thread_res_gid(None, Gid::ROOT, None).expect("root");
    }
}

/// Returns the directory part of a path and the last component with its slashes.
fn split(path: &str) -> (&str, &str) {
    let end = path.trim_end_matches('/').len();
    match path[..end].rfind('/') {
        Some(at) => (&path[..=at], &path[at + 1..]),
        None => (".", path),
    }
}

/// Checks a whole path, as the kernel does before it looks at the path's parts.
fn check(path: &str) -> Result<()> {
    match path.len() {
        0 => Err(Errno::NOENT),
        1..4096 => Ok(()),
        _ => Err(Errno::NAMETOOLONG),
    }
}

impl Local {
    pub(crate) fn new() -> Local {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let path = dir.path().join("root");
        std::fs::create_dir(&path).expect("root");
        rustix::fs::chmodat(CWD, dir.path(), Mode::from_raw_mode(0o755), AtFlags::empty()).expect("mode");
        rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(0o777), AtFlags::empty()).expect("mode");
        let root = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("root");
        Local { _dir: dir, root, files: Vec::new(), openers: Vec::new() }
    }

    fn open_in_root(&self, path: &str, flags: OFlags, mode: u32) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
        loop {
            // EAGAIN: another process has renamed or mounted something during a walk through "..".
            match rustix::fs::openat2(&self.root, path, flags, mode, ResolveFlags::IN_ROOT) {
                Err(Errno::AGAIN) => {}
                opened => return opened,
            }
        }
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str)> {
        check(path)?;
        let (dir, name) = split(path);
        if name.trim_matches('/').is_empty() {
            // Any root has the kernel's answers: no call changes its name.
            return Ok((self.open_in_root("/", OFlags::PATH, 0)?, "/"));
        }
        let dir = self.open_in_root(dir, OFlags::PATH | OFlags::DIRECTORY, 0)?;
        // The kernel checks the right to search a directory before it reads the next path.
        rustix::fs::statat(&dir, ".", AtFlags::empty())?;
        Ok((dir, name))
    }

    fn node(&self, path: &str, follow: bool) -> Result<OwnedFd> {
        let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
        self.open_in_root(path, flags, 0)
    }

    /// Runs an operation as a user.
    pub(crate) fn run(&mut self, operation: &Operation, user: &Credentials) -> Outcome {
        // A native file acts for its opener.
        let opener = operation.file().map(|file| self.openers[file].clone());
        let acting = Acting::begin(opener.as_ref().unwrap_or(user));
        let outcome = self.try_run(operation);
        drop(acting);
        match operation {
            Operation::Open(..) if outcome.is_ok() => self.openers.push(user.clone()),
            Operation::Close(file) => drop(self.openers.remove(*file)),
            _ => {}
        }
        outcome.unwrap_or_else(|errno| Outcome::Failed(errno.raw_os_error()))
    }

    fn try_run(&mut self, operation: &Operation) -> Result<Outcome> {
        use Operation::*;
        let done = |done: Result<()>| done.map(|()| Outcome::Done);
        match operation {
            Open(path, opening, mode) => {
                let flags = flags_of(opening);
                let follow = flags & OFlags::NOFOLLOW;
                if !opening.write
                    && !opening.create
                    && self.open_in_root(path, OFlags::PATH | OFlags::DIRECTORY | follow, 0).is_ok()
                {
                    // A native mount opens no directory as a file.
                    return Err(Errno::ISDIR);
                }
                self.files.push(self.open_in_root(path, flags, *mode)?.into());
                Ok(Outcome::Done)
            }
            Close(file) => {
                self.files.remove(*file);
                Ok(Outcome::Done)
            }
            ReadAt(file, offset, len) => {
                let mut out = vec![0; *len];
                let read = self.files[*file].read_at(&mut out, *offset).map_err(io_errno)?;
                out.truncate(read);
                Ok(Outcome::Bytes(out))
            }
            WriteAt(file, offset, data) => {
                let written = self.files[*file].write_at(data, *offset).map_err(io_errno)?;
                Ok(Outcome::Number(written as u64))
            }
            Append(file, data) => {
                let file = &self.files[*file];
                let end = file.metadata().map_err(io_errno)?.size();
                // A write of no bytes needs the right to write, too.
                file.write_at(&[], end).map_err(io_errno)?;
                file.write_all_at(data, end).map_err(io_errno)?;
                Ok(Outcome::Number(end))
            }
            SetFileLen(file, len) => match rustix::fs::ftruncate(&self.files[*file], *len) {
                // The kernel's number for a file that is not open for writing.
                Err(Errno::INVAL) => Err(Errno::BADF),
                set => done(set),
            },
            StatFile(file) => Ok(Outcome::Stat(shown(&self.files[*file])?)),
            Stat(path, follow) => Ok(Outcome::Stat(shown(self.node(path, *follow)?)?)),
            SetLen(path, len) => {
                let file = self.open_in_root(path, OFlags::WRONLY, 0)?;
                done(rustix::fs::ftruncate(file, *len))
            }
            Allocate(file, offset, len) => done(self.allocate(*file, FallocateFlags::empty(), *offset, *len)),
            PunchHole(file, offset, len) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                done(self.allocate(*file, flags, *offset, *len))
            }
            GetXattr(path, name) => self.xattr(path, name).map(Outcome::Bytes),
            List(path) => self.list(path).map(Outcome::Names),
            Tree => {
                let mut tree = BTreeMap::new();
                self.collect("", &mut tree)?;
                Ok(Outcome::Tree(tree))
            }
            names => self.change_names(names),
        }
    }

    fn allocate(&self, file: usize, flags: FallocateFlags, offset: u64, len: u64) -> Result<()> {
        rustix::fs::fallocate(&self.files[file], flags, offset, len)
    }

    fn xattr(&self, path: &str, name: &str) -> Result<Vec<u8>> {
        let (node, mut value) = (self.node(path, true)?, vec![0; 100]);
        let len = rustix::fs::getxattr(magic(&node), name, &mut value)?;
        value.truncate(len);
        Ok(value)
    }

    fn change_names(&self, operation: &Operation) -> Result<Outcome> {
        use Operation::*;
        let changed = match operation {
            MakeDir(path, perm) => {
                let (dir, name) = self.parent(path)?;
                rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(*perm))
            }
            RemoveDir(path) => {
                let (dir, name) = self.parent(path)?;
                rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
            }
            RemoveFile(path) => {
                let (dir, name) = self.parent(path)?;
                rustix::fs::unlinkat(dir, name, AtFlags::empty())
            }
            Link(from, to) => {
                let node = self.node(from, false)?;
                let (to, new) = self.parent(to)?;
                rustix::fs::linkat(CWD, magic(&node), to, new, AtFlags::SYMLINK_FOLLOW)
            }
            Symlink(target, path) => {
                check(target)?;
                let (dir, name) = self.parent(path)?;
                rustix::fs::symlinkat(target.as_str(), dir, name)
            }
            ReadLink(path) => {
                let node = self.node(path, false)?;
                // The kernel's number for an inode that is no symbolic link, by its path.
                let target = rustix::fs::readlinkat(node, "", Vec::new());
                let target = target.map_err(|e| if e == Errno::NOENT { Errno::INVAL } else { e })?;
                return Ok(Outcome::Text(target.to_string_lossy().into_owned()));
            }
            Rename(from, to, mode) => {
                let ((from, old), (to, new)) = (self.parent(from)?, self.parent(to)?);
                let is_name = !matches!(old.trim_end_matches('/'), "." | "..");
                // The root of the process is on another file system.
                match (old, new) {
                    ("/", _) => return Err(Errno::BUSY),
                    // The kernel looks at the first path first.
                    (_, "/") if *mode == RenameMode::NoReplace && is_name => return Err(Errno::EXIST),
                    (_, "/") => return Err(Errno::BUSY),
                    _ => {}
                }
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(from, old, to, new, flags)
            }
            other => return self.change_attributes(other),
        };
        changed.map(|()| Outcome::Done)
    }

    fn change_attributes(&self, operation: &Operation) -> Result<Outcome> {
        use Operation::*;
        let changed = match operation {
            SetMode(path, perm) => {
                let node = self.node(path, true)?;
                rustix::fs::chmodat(CWD, magic(&node), Mode::from_raw_mode(*perm), AtFlags::empty())
            }
            SetOwner(path, uid, gid) => {
                let node = self.node(path, true)?;
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, magic(&node), uid, gid, AtFlags::empty())
            }
            // The kernel does not look at the path then.
            SetTimes(_, SetTime::Keep, SetTime::Keep) => Ok(()),
            SetTimes(path, accessed, modified) => {
                let node = self.node(path, true)?;
                let times = Timestamps { last_access: time(*accessed), last_modification: time(*modified) };
                rustix::fs::utimensat(CWD, magic(&node), &times, AtFlags::empty())
            }
            Access(path, wanted) => {
                let node = self.node(path, true)?;
                let bits = [Bits::READ_OK, Bits::WRITE_OK, Bits::EXEC_OK];
                let wanted = bits.into_iter().zip(wanted).filter(|(_, wanted)| **wanted).map(|(bit, _)| bit);
                rustix::fs::accessat(CWD, magic(&node), wanted.collect(), AtFlags::EACCESS)
            }
            SetXattr(path, name, value) => {
                let node = self.node(path, true)?;
                rustix::fs::setxattr(magic(&node), *name, value, XattrFlags::empty())
            }
            RemoveXattr(path, name) => rustix::fs::removexattr(magic(&self.node(path, true)?), *name),
            other => unreachable!("{other:?} changes no attributes"),
        };
        changed.map(|()| Outcome::Done)
    }

    fn list(&self, path: &str) -> Result<Vec<String>> {
        let dir = self.open_in_root(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn collect(&self, dir: &str, tree: &mut BTreeMap<String, (Shown, String)>) -> Result<()> {
        for name in self.list(&format!("/{dir}"))? {
            let path = format!("{dir}/{name}");
            let stat = shown(self.node(&path, false)?)?;
            let contents = match stat.mode & 0o170_000 {
                0o120_000 => {
                    let (dir, name) = self.parent(&path)?;
                    rustix::fs::readlinkat(dir, name, Vec::new())?.to_string_lossy().into_owned()
                }
                0o100_000 => {
                    let file = File::from(self.open_in_root(&path, OFlags::RDONLY, 0)?);
                    let mut bytes = vec![0; stat.size.unwrap_or(0) as usize];
                    file.read_exact_at(&mut bytes, 0).map_err(io_errno)?;
                    format!("{bytes:?}")
                }
                _ => String::new(),
            };
            let is_dir = stat.mode & 0o170_000 == 0o040_000;
            tree.insert(path.clone(), (stat, contents));
            if is_dir {
                self.collect(&path, tree)?;
            }
        }
        Ok(())
    }
}

fn io_errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Returns a path that stands for an open inode.
fn magic(node: &OwnedFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

fn time(time: SetTime) -> Timespec {
    match time {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::At(time) => Timespec { tv_sec: time / 1_000_000_000, tv_nsec: time % 1_000_000_000 },
    }
}

fn flags_of(opening: &Opening) -> OFlags {
    let &Opening { read, write, create, create_new, truncate, follow } = opening;
    let mut flags = match (read, write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    flags.set(OFlags::CREATE, create || create_new);
    flags.set(OFlags::EXCL, create_new);
    flags.set(OFlags::TRUNC, truncate);
    flags.set(OFlags::NOFOLLOW, !follow);
    flags
}

fn shown(node: impl AsFd) -> Result<Shown> {
    let stat = rustix::fs::fstat(node)?;
    let is_file = stat.st_mode & 0o170_000 == 0o100_000;
    Ok(Shown {
        mode: stat.st_mode,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: is_file.then_some(stat.st_size as u64),
    })
}
