//! Performs operations on a mount.
//!
//! A [`Worker`] stands for one thread of a program: it has a mount, and slots for files that it
//! keeps open.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::fcntl::{FcntlArg, fcntl};
use rustix::{
    fs::{
        CWD, FallocateFlags, FlockOperation, RenameFlags, SeekFrom, XattrFlags, copy_file_range, fallocate,
        fgetxattr, flock, getxattr, renameat_with, seek, setxattr,
    },
    io::Errno,
};

use super::operation::{Attr, DIRS, How, LOCKED, Lock, Op, Outcome, Renaming, SLOTS, Space, bytes};

/// The extended attribute that is set.
const ATTRIBUTE: &str = "user.value";

#[derive(Debug)]
struct Opened {
    file: File,
    /// Reads come from the server, not from the kernel's page cache.
    around: bool,
}

/// One thread of a program.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) mount: usize,
    /// The directory of the run.
    pub(crate) root: PathBuf,
    /// Every read must be current, including reads from the kernel's page cache.
    coherent: bool,
    /// The kernel caches pages for this mount.
    cached: bool,
    files: [Option<Opened>; SLOTS as usize],
}

/// Returns attributes from `stat`. Sizes and links of directories are not compared.
pub(crate) fn attr(found: &fs::Metadata) -> Attr {
    let directory = found.is_dir();
    let of_file = |value: u64| if directory { 0 } else { value };
    Attr {
        directory,
        size: of_file(found.size()),
        mode: found.mode() & 0o7777,
        owner: found.uid(),
        links: of_file(found.nlink()),
    }
}

/// Returns the number of an object.
pub(crate) fn number(found: &fs::Metadata) -> u64 {
    found.ino()
}

fn value(found: Result<usize, Errno>, buffer: [u8; 8]) -> io::Result<Option<u64>> {
    match found {
        Ok(8) => Ok(Some(u64::from_le_bytes(buffer))),
        Ok(_) => Err(io::Error::other("the attribute has another length")),
        Err(Errno::NODATA) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Returns the value of the extended attribute.
pub(crate) fn attribute(path: &Path) -> io::Result<Option<u64>> {
    let mut buffer = [0; 8];
    let found = getxattr(path, ATTRIBUTE, &mut buffer[..]);
    value(found, buffer)
}

/// Returns the value of the extended attribute of an open file.
pub(crate) fn attribute_of(file: &File) -> io::Result<Option<u64>> {
    let mut buffer = [0; 8];
    let found = fgetxattr(file, ATTRIBUTE, &mut buffer[..]);
    value(found, buffer)
}

/// Returns all bytes of an open file, and none behind them.
pub(crate) fn read_all(file: &File, size: u64) -> io::Result<Vec<u8>> {
    read_at(file, 0, size + 4096)
}

fn read_at(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; len as usize];
    // One system call, because several calls could see different states.
    let count = file.read_at(&mut buffer, at)?;
    buffer.truncate(count);
    Ok(buffer)
}

/// Lists a directory. A name that is listed twice shows as another name.
pub(crate) fn list(path: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !names.insert(name.clone()) {
            names.insert(format!("{name} twice"));
        }
    }
    Ok(names)
}

fn options(how: How) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(how.write && !how.append).append(how.append);
    // As flags, because the standard library refuses to create a file that it opens only to read.
    let mut flags = if how.direct { libc::O_DIRECT } else { 0 };
    for (wanted, flag) in
        [(how.create, libc::O_CREAT), (how.exclusive, libc::O_EXCL), (how.truncate, libc::O_TRUNC)]
    {
        flags |= if wanted { flag } else { 0 };
    }
    options.custom_flags(flags).mode(0o644);
    options
}

fn lock_range(file: &File, lock: Lock, at: u8, len: u8) -> nix::Result<()> {
    let kind = match lock {
        Lock::Free => libc::F_UNLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    };
    // The last byte that the model knows stands for all behind it.
    let len = if usize::from(at + len) == LOCKED { 0 } else { i64::from(len) };
    let range = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: at.into(),
        l_len: len,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&range)).map(drop)
}

fn done<T>(_: T) -> Outcome {
    Outcome::Done
}

impl Worker {
    /// Returns a worker without open files.
    pub(crate) fn new(mount: usize, root: PathBuf, (cached, coherent): (bool, bool)) -> Worker {
        Worker { mount, root, coherent, cached, files: Default::default() }
    }

    /// Closes all files. Errors are those of a client that was killed.
    pub(crate) fn close_all(&mut self) {
        self.files = Default::default();
    }

    /// Returns open files with their slots, and true for files whose reads must be current.
    pub(crate) fn open_files(&self) -> impl Iterator<Item = (u8, &File, bool)> {
        let files = (0..).zip(&self.files);
        files.filter_map(|(slot, open)| {
            open.as_ref().map(|open| (slot, &open.file, open.around || self.coherent))
        })
    }

    /// Returns true if the bytes that an operation reads must be current.
    pub(crate) fn is_checked(&self, op: &Op) -> bool {
        match *op {
            Op::Read { slot, .. } => self.open_files().any(|open| open.0 == slot && open.2),
            _ => true,
        }
    }

    /// Returns true if an operation uses the kernel's page cache.
    pub(crate) fn is_paged(&self, op: &Op) -> bool {
        match *op {
            Op::Read { slot, .. } | Op::Write { slot, .. } => {
                let open = self.files[usize::from(slot)].as_ref();
                self.cached && open.is_some_and(|open| !open.around)
            }
            Op::ReadName { .. } => self.cached,
            _ => false,
        }
    }

    fn file(&self, slot: u8) -> Option<&File> {
        self.files[usize::from(slot)].as_ref().map(|open| &open.file)
    }

    fn path(&self, path: &str) -> PathBuf {
        if path == DIRS[0] { self.root.clone() } else { self.root.join(path) }
    }

    /// Performs one operation. `id` determines the bytes of a write.
    pub(crate) fn perform(&mut self, op: &Op, id: u64) -> Outcome {
        let done = match *op {
            Op::Open { slot, path, how } => self.open(slot, path, how),
            Op::Close { slot } => Ok(self.files[usize::from(slot)].take().map_or(Outcome::Nothing, done)),
            Op::Copy { from, to, at, target, len } => self.copy(from, to, (at, target, len)),
            _ => match self.perform_by_name(op, id) {
                Some(outcome) => outcome,
                None => self.perform_on_file(op, id),
            },
        };
        done.unwrap_or_else(|e: io::Error| Outcome::Failed(e.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn open(&mut self, slot: u8, path: &str, how: How) -> io::Result<Outcome> {
        let full = self.path(path);
        let place = &mut self.files[usize::from(slot)];
        if place.is_some() {
            return Ok(Outcome::Nothing);
        }
        let file = options(how).open(full)?;
        *place = Some(Opened { file, around: how.append });
        Ok(Outcome::Done)
    }

    fn copy(&self, from: u8, to: u8, (mut at, mut target, len): (u64, u64, u64)) -> io::Result<Outcome> {
        let (Some(from), Some(to)) = (self.file(from), self.file(to)) else { return Ok(Outcome::Nothing) };
        // Like copying programs: the kernel limits a copy to the size that it has cached, without
        // asking.
        from.metadata()?;
        let copied = copy_file_range(from, Some(&mut at), to, Some(&mut target), len as usize)?;
        Ok(Outcome::Count(copied as u64))
    }

    fn perform_on_file(&self, op: &Op, id: u64) -> io::Result<Outcome> {
        let slot = match *op {
            Op::Write { slot, .. }
            | Op::Read { slot, .. }
            | Op::Truncate { slot, .. }
            | Op::Allocate { slot, .. }
            | Op::Stat { slot }
            | Op::Seek { slot, .. }
            | Op::LockFile { slot, .. }
            | Op::LockRange { slot, .. } => slot,
            _ => return Ok(Outcome::Nothing),
        };
        let Some(file) = self.file(slot) else { return Ok(Outcome::Nothing) };
        match *op {
            Op::Write { at, len, .. } => Ok(Outcome::Count(file.write_at(&bytes(id, len), at)? as u64)),
            Op::Read { at, len, .. } => read_at(file, at, len).map(Outcome::Bytes),
            Op::Truncate { size, .. } => file.set_len(size).map(done),
            Op::Allocate { space, at, len, .. } => {
                let flags = match space {
                    Space::Allocate => FallocateFlags::empty(),
                    Space::AllocateKeep => FallocateFlags::KEEP_SIZE,
                    Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Space::Zero => FallocateFlags::ZERO_RANGE,
                    Space::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                };
                Ok(fallocate(file, flags, at, len).map(done)?)
            }
            Op::Stat { .. } => file.metadata().map(|found| Outcome::Attr(attr(&found))),
            Op::Seek { hole, at, .. } => {
                let place = if hole { SeekFrom::Hole(at) } else { SeekFrom::Data(at) };
                Ok(seek(file, place).map(Outcome::Count)?)
            }
            Op::LockFile { lock, .. } => {
                let lock = match lock {
                    Lock::Free => FlockOperation::Unlock,
                    Lock::Shared => FlockOperation::NonBlockingLockShared,
                    Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
                };
                Ok(flock(file, lock).map(done)?)
            }
            Op::LockRange { lock, at, len, .. } => Ok(lock_range(file, lock, at, len).map(done)?),
            _ => Ok(Outcome::Nothing),
        }
    }

    fn perform_by_name(&self, op: &Op, id: u64) -> Option<io::Result<Outcome>> {
        Some(match *op {
            Op::ReadName { path, at, len } => {
                File::open(self.path(path)).and_then(|file| read_at(&file, at, len)).map(Outcome::Bytes)
            }
            Op::TruncateName { path, size } => self.truncate_by_name(path, size),
            Op::StatName { path } => {
                fs::symlink_metadata(self.path(path)).map(|found| Outcome::Attr(attr(&found)))
            }
            Op::Chmod { path, mode } => {
                fs::set_permissions(self.path(path), Permissions::from_mode(mode)).map(done)
            }
            Op::Chown { path, owner } => chown(self.path(path), Some(owner), None).map(done),
            Op::SetAttribute { path } => {
                let set = setxattr(self.path(path), ATTRIBUTE, &id.to_le_bytes(), XattrFlags::empty());
                set.map(done).map_err(io::Error::from)
            }
            Op::GetAttribute { path } => match attribute(&self.path(path)) {
                Ok(Some(value)) => Ok(Outcome::Value(value)),
                Ok(None) => Ok(Outcome::Failed(libc::ENODATA)),
                Err(e) => Err(e),
            },
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Renaming::Replace => RenameFlags::empty(),
                    Renaming::NoReplace => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                let renamed = renameat_with(CWD, self.path(from), CWD, self.path(to), flags);
                renamed.map(done).map_err(io::Error::from)
            }
            Op::Link { from, to } => fs::hard_link(self.path(from), self.path(to)).map(done),
            Op::Unlink { path } => fs::remove_file(self.path(path)).map(done),
            Op::Mkdir { path } => {
                let made = rustix::fs::mkdir(self.path(path), 0o755.into());
                made.map(done).map_err(io::Error::from)
            }
            Op::Rmdir { path } => fs::remove_dir(self.path(path)).map(done),
            Op::List { path } => list(&self.path(path)).map(Outcome::Names),
            _ => return None,
        })
    }

    fn truncate_by_name(&self, path: &str, size: u64) -> io::Result<Outcome> {
        Ok(nix::unistd::truncate(&self.path(path), size as i64).map(done)?)
    }
}
