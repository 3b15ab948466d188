//! Files of snapshots: one directory per export, one file per snapshot, with ascending numbers as
//! names.
//!
//! A file gets its name when it is complete and on the disk; until then its name ends in `.new`.
//!
//! # Concurrency
//! The main thread at start, then only the snapshot thread. A lock on the parent directory excludes
//! other servers.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, OFlags, fadvise};

use super::{
    format::{Header, ReadError, Reader},
    read::Contents,
};
use crate::memory_object::{
    object::{ObjectError, file_name, lock_directory, make_directory},
    ownership::{self, OwnershipError},
};

const NAME: &str = "snapshot-";
const UNFINISHED: &str = ".new";
/// Bytes after which a write syncs them to the disk and drops them from the page cache, which
/// others need.
const SPILL: u64 = 32 << 20;
/// Size of the buffer for reads and writes.
const BUFFER: usize = 1 << 20;

/// Reason why snapshots cannot be used. They are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The directory cannot be opened.
    #[error("--persist {0}")]
    Directory(#[from] ObjectError),
    /// A system call failed.
    #[error("--persist {path}: {source}", path = .path.display())]
    Os {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A snapshot cannot be read, so it is unknown whether it is complete.
    #[error("--persist {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: ReadError,
    },
    /// There are snapshots, but none is complete.
    #[error(
        "none of the snapshots in {path} is complete: put a complete snapshot there, or move them away to start with an \
         empty file system", path = .path.display()
    )]
    NoneWhole {
        /// The directory.
        path: PathBuf,
    },
}

/// Creates a directory with mode 0700 if only its last component is missing. Syncs its name to the
/// disk, because otherwise a crash could lose its contents. Also syncs an existing directory,
/// because a previous server may have crashed before the sync.
fn make_lasting_directory(path: &Path) -> Result<(), PersistError> {
    let was_there = path.is_dir();
    make_directory(path).map_err(os(path))?;
    ownership::open_directory(path).map_err(ownership(path))?;
    // `..` as the kernel resolves it, even if the path contains links.
    match sync_directory(&path.join("..")) {
        // The parent may belong to another user, or be on a file system without sync.
        Err(e) if was_there && matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
            log::debug!("{}: cannot synchronize the parent directory: {e}", path.display());
            Ok(())
        }
        synchronized => synchronized.map_err(os(path)),
    }
}

/// Syncs the names in a directory to the disk.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn os(path: &Path) -> impl FnOnce(io::Error) -> PersistError {
    move |source| PersistError::Os { path: path.to_owned(), source }
}

fn ownership(path: &Path) -> impl FnOnce(OwnershipError) -> PersistError {
    move |source| ObjectError::Ownership { path: path.to_owned(), source }.into()
}

/// The locked directory with the snapshots of a server's exports.
#[derive(Debug)]
pub struct SnapshotDirectory {
    path: PathBuf,
    _lock: File,
}

impl SnapshotDirectory {
    /// Locks a directory. Creates it with mode 0700 if only its last component is missing.
    pub fn open(path: &Path) -> Result<SnapshotDirectory, PersistError> {
        make_lasting_directory(path)?;
        Ok(SnapshotDirectory { path: path.to_owned(), _lock: lock_directory(path)? })
    }

    /// Returns the names of the directories that have snapshots, sorted.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, PersistError> {
        let listed = fs::read_dir(&self.path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut names = Vec::new();
        for entry in listed.map_err(os(&self.path))? {
            let (path, Ok(name)) = (entry.path(), entry.file_name().into_string()) else { continue };
            let snapshots = Snapshots { path, keep: 0, torn: Vec::new() };
            if snapshots.path.is_dir() && !snapshots.numbers()?.is_empty() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the snapshots of an export, of which `keep` complete ones are kept. Removes
    /// unfinished files.
    pub fn export(&self, export: &str, keep: usize) -> Result<Snapshots, PersistError> {
        let path = self.path.join(file_name(export));
        make_lasting_directory(&path)?;
        let snapshots = Snapshots { path, keep, torn: Vec::new() };
        for name in snapshots.names()?.iter().filter(|name| name.ends_with(UNFINISHED)) {
            let path = snapshots.path.join(name);
            fs::remove_file(&path).map_err(os(&path))?;
        }
        Ok(snapshots)
    }
}

/// Returns the file name for a number.
fn file_of(number: u64) -> String {
    format!("{NAME}{number:020}")
}

/// The snapshots of an export.
#[derive(Debug)]
pub struct Snapshots {
    path: PathBuf,
    keep: usize,
    /// Numbers of snapshots that are known to be damaged.
    torn: Vec<u64>,
}

impl Snapshots {
    fn names(&self) -> Result<Vec<String>, PersistError> {
        let entries = fs::read_dir(&self.path).map_err(os(&self.path))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string()));
        let names: Result<Vec<_>, _> = names.collect();
        // The server creates no names that are not UTF-8.
        let names = names.map_err(os(&self.path))?.into_iter().filter_map(Result::ok);
        Ok(names.filter(|name| name.starts_with(NAME)).collect())
    }

    /// Returns the numbers of the snapshots, the newest first.
    fn numbers(&self) -> Result<Vec<u64>, PersistError> {
        let names = self.names()?;
        let number = |name: &String| {
            let number = name.strip_prefix(NAME)?.parse().ok()?;
            // Another spelling of the number is not a file of the server.
            (*name == file_of(number)).then_some(number)
        };
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        Ok(numbers)
    }

    /// Returns the path of a snapshot.
    pub fn file(&self, number: u64) -> PathBuf {
        self.path.join(file_of(number))
    }

    /// Opens a snapshot for reading.
    pub fn open(&self, number: u64) -> Result<BufReader<File>, PersistError> {
        let path = self.file(number);
        let file = ownership::open_file(&path, OFlags::RDONLY).map_err(ownership(&path))?;
        Ok(BufReader::with_capacity(BUFFER, file))
    }

    /// Returns the header of the newest snapshot without a check of the rest. Returns `None` if
    /// there is no snapshot or its header is damaged.
    pub fn newest_header(&self) -> Result<Option<Header>, PersistError> {
        let Some(&number) = self.numbers()?.first() else { return Ok(None) };
        Ok(Reader::begin(self.open(number)?).ok().map(|reader| reader.header))
    }

    /// Returns the newest complete snapshot; `None` if there are none. Logs snapshots that are not
    /// complete.
    ///
    /// # Errors
    /// No snapshot is complete, or a newer snapshot cannot be read.
    pub fn newest(&mut self) -> Result<Option<Contents>, PersistError> {
        let numbers = self.numbers()?;
        for &number in &numbers {
            let path = self.file(number);
            match Contents::read(self.open(number)?) {
                Ok(contents) => return Ok(Some(contents)),
                // It may be complete, and newer than all others.
                Err(source @ (ReadError::Version(_) | ReadError::Io(_))) => {
                    return Err(PersistError::Read { path, source });
                }
                Err(why) => {
                    log::warn!("{}: {why}: using the previous snapshot", path.display());
                    self.torn.push(number);
                }
            }
        }
        if numbers.is_empty() { Ok(None) } else { Err(PersistError::NoneWhole { path: self.path.clone() }) }
    }

    /// Returns the path of the newest snapshot, complete or not; `None` if there is none.
    pub fn newest_file(&self) -> Result<Option<PathBuf>, PersistError> {
        Ok(self.numbers()?.first().map(|&number| self.file(number)))
    }

    /// Creates the file of the next snapshot.
    pub fn begin(&self) -> Result<(u64, Unfinished), PersistError> {
        let number = self.numbers()?.first().map_or(1, |newest| newest.saturating_add(1));
        let path = self.file(number);
        let unfinished = path.with_extension(&UNFINISHED[1..]);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = ownership::open_file(&unfinished, flags).map_err(ownership(&unfinished))?;
        let spill = Spill { file, written: 0, spilt: 0 };
        Ok((number, Unfinished { out: BufWriter::with_capacity(BUFFER, spill), unfinished, path }))
    }

    /// Gives a finished snapshot its name, and removes surplus snapshots. Returns its size in
    /// bytes.
    pub fn finish(&self, mut unfinished: Unfinished) -> Result<u64, PersistError> {
        let path = &unfinished.unfinished;
        unfinished.out.flush().and_then(|()| unfinished.out.get_ref().file.sync_all()).map_err(os(path))?;
        fs::rename(path, &unfinished.path).map_err(os(path))?;
        self.sync()?;
        let mut whole = 0;
        for number in self.numbers()? {
            if whole >= self.keep {
                let path = self.file(number);
                fs::remove_file(&path).map_err(os(&path))?;
            }
            whole += usize::from(!self.torn.contains(&number));
        }
        Ok(unfinished.out.get_ref().written)
    }

    /// Syncs the names to the disk.
    fn sync(&self) -> Result<(), PersistError> {
        sync_directory(&self.path).map_err(os(&self.path))
    }
}

/// A snapshot that is being written. Dropping it removes an unfinished file.
#[derive(Debug)]
pub struct Unfinished {
    out: BufWriter<Spill>,
    unfinished: PathBuf,
    path: PathBuf,
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        match fs::remove_file(&self.unfinished) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                log::warn!("{}: cannot remove it: {e}", self.unfinished.display());
            }
            _ => {}
        }
    }
}

/// A file that does not fill the page cache.
#[derive(Debug)]
struct Spill {
    file: File,
    written: u64,
    /// Bytes of `written` that are on the disk.
    spilt: u64,
}

impl Write for Spill {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.file.write(bytes)?;
        self.written += done as u64;
        if self.written - self.spilt >= SPILL {
            self.file.sync_data()?;
            // Advice only; a failure does no harm.
            let _ = fadvise(&self.file, self.spilt, None, Advice::DontNeed);
            self.spilt = self.written;
        }
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{FileKind, ROOT_INO};

    use super::*;
    use crate::{
        memory_object::{
            op::{self, Op},
            replay,
        },
        metadata::namespace::inode::{Inode, New},
        snapshots::format::{Frames, Kind},
    };

    const HEADER: Header = Header { arena: 1 << 20, inodes: 7, identity: 5, number: 0, time: 0 };

    fn make(snapshots: &Snapshots) -> u64 {
        let (number, mut out) = snapshots.begin().unwrap();
        let mut frames = Frames::begin(&mut out, &Header { number, ..HEADER }).unwrap();
        let new = New {
            kind: FileKind::Directory,
            perm: 0,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            slot: 0,
        };
        let mut root = Vec::new();
        op::encode(&Op::Inode(ROOT_INO, replay::attributes(&Inode::new(new, ROOT_INO, 0))), &mut root);
        frames.frame(Kind::Ops, &[&root]).unwrap();
        frames.end().unwrap();
        snapshots.finish(out).unwrap();
        number
    }

    fn damage(snapshots: &Snapshots, number: u64) {
        let path = snapshots.file(number);
        let mut bytes = fs::read(&path).unwrap();
        bytes[40] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn the_newest_complete_snapshot_is_used_and_surplus_ones_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = SnapshotDirectory::open(directory.path()).unwrap();
        assert!(matches!(
            SnapshotDirectory::open(directory.path()),
            Err(PersistError::Directory(ObjectError::Busy { .. }))
        ));
        let mut snapshots = root.export("a/b", 2).unwrap();
        assert!(snapshots.newest().unwrap().is_none());
        assert_eq!((make(&snapshots), make(&snapshots), make(&snapshots)), (1, 2, 3));
        assert_eq!(snapshots.numbers().unwrap(), [3, 2]);
        assert_eq!(snapshots.newest().unwrap().unwrap().header.number, 3);
        damage(&snapshots, 3);
        assert_eq!(snapshots.newest().unwrap().unwrap().header.number, 2);
        // The damaged snapshot does not count.
        assert_eq!(make(&snapshots), 4);
        assert_eq!(snapshots.numbers().unwrap(), [4, 3, 2]);
        assert_eq!(make(&snapshots), 5);
        assert_eq!(snapshots.numbers().unwrap(), [5, 4]);
        for number in [4, 5] {
            damage(&snapshots, number);
        }
        assert!(matches!(snapshots.newest(), Err(PersistError::NoneWhole { .. })));
        assert_eq!(snapshots.numbers().unwrap(), [5, 4]);
    }

    #[test]
    fn unfinished_snapshots_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let root = SnapshotDirectory::open(directory.path()).unwrap();
        let mut snapshots = root.export("x", 2).unwrap();
        let (_, mut out) = snapshots.begin().unwrap();
        out.write_all(b"something").unwrap();
        out.flush().unwrap();
        assert_eq!(snapshots.names().unwrap().len(), 1);
        // As if the server was killed.
        std::mem::forget(out);
        assert!(snapshots.newest().unwrap().is_none());
        let again = root.export("x", 2).unwrap();
        assert_eq!(again.names().unwrap(), [] as [&str; 0]);
        // A snapshot that fails leaves no file.
        drop(again.begin().unwrap());
        assert_eq!(again.names().unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn a_snapshot_of_another_version_is_not_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let root = SnapshotDirectory::open(directory.path()).unwrap();
        let mut snapshots = root.export("x", 2).unwrap();
        make(&snapshots);
        make(&snapshots);
        let path = snapshots.file(2);
        let mut bytes = fs::read(&path).unwrap();
        bytes[8] = 9;
        let check = crc32c::crc32c(&bytes[..12]).to_le_bytes();
        bytes[12..16].copy_from_slice(&check);
        fs::write(path, bytes).unwrap();
        assert!(matches!(snapshots.newest(), Err(PersistError::Read { source: ReadError::Version(9), .. })));
    }
}
