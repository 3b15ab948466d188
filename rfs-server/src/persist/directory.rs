//! The files of snapshots: one for each, in a directory for each export, under names that count up. A file has such a name when it is whole
//! and on the disk; what was not finished has another one.
//!
//! Threading: used while a server starts, and by the one thread that makes snapshots. A lock on the directory above keeps other servers
//! away.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, ErrorKind, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{Advice, OFlags, fadvise};

use super::{
    Contents, ReadError,
    format::{Header, Reader},
};
use crate::{
    durable::object::{ObjectError, file_name, lock_directory, make_directory},
    ownership::{self, OwnershipError},
};

const NAME: &str = "snapshot-";
const UNFINISHED: &str = ".new";
/// Bytes that are written before they go to the disk, and out of the cache: it belongs to others.
const SPILL: u64 = 32 << 20;
/// For reading files.
const BUFFER: usize = 1 << 20;

/// Why snapshots cannot be used. They are as they were.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The directory cannot be had.
    #[error("--persist {0}")]
    Directory(#[from] ObjectError),
    /// The operating system refused.
    #[error("--persist {path}: {source}", path = .path.display())]
    Os {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One that nobody can say anything about.
    #[error("--persist {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// There are some, and none is whole.
    #[error(
        "none of the snapshots in {path} is whole, and there is nothing else to begin with: put a whole one there, or \
         move them away to begin with an empty file system", path = .path.display()
    )]
    NoneWhole {
        /// The directory.
        path: PathBuf,
    },
}

/// Makes a directory, for this user alone, if just that one is missing, and has its name on the disk: whatever is kept in it would be
/// lost with that. One that was there may have been made by a server that did not get so far.
fn make_lasting_directory(path: &Path) -> Result<(), PersistError> {
    let was_there = path.is_dir();
    make_directory(path).map_err(os(path))?;
    ownership::open_directory(path).map_err(ownership(path))?;
    // The one above as the system finds it, whatever the path looks like.
    match sync_directory(&path.join("..")) {
        // It may be somebody else's, or on a file system that has no such thing.
        Err(e) if was_there && matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::InvalidInput) => {
            log::debug!("{}: what is above is not synchronized: {e}", path.display());
            Ok(())
        }
        synchronized => synchronized.map_err(os(path)),
    }
}

/// Names that were given in a directory stay.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn os(path: &Path) -> impl FnOnce(io::Error) -> PersistError {
    move |source| PersistError::Os { path: path.to_owned(), source }
}

fn ownership(path: &Path) -> impl FnOnce(OwnershipError) -> PersistError {
    move |source| ObjectError::Ownership { path: path.to_owned(), source }.into()
}

/// The directory that has the snapshots of a server's exports, locked.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    _lock: File,
}

impl Directory {
    /// Locks a directory; makes it, for this user alone, if just that one is missing.
    pub fn open(path: &Path) -> Result<Directory, PersistError> {
        make_lasting_directory(path)?;
        Ok(Directory { path: path.to_owned(), _lock: lock_directory(path)? })
    }

    /// The snapshots of an export, of which `keep` whole ones are to stay. What was not finished goes.
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

/// The name of the file of a number.
fn file_of(number: u64) -> String {
    format!("{NAME}{number:020}")
}

/// The snapshots of an export.
#[derive(Debug)]
pub struct Snapshots {
    path: PathBuf,
    keep: usize,
    /// Numbers of those that are known to be broken.
    torn: Vec<u64>,
}

impl Snapshots {
    fn names(&self) -> Result<Vec<String>, PersistError> {
        let entries = fs::read_dir(&self.path).map_err(os(&self.path))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string()));
        let names: Result<Vec<_>, _> = names.collect();
        // Names that are not text are not from here.
        let names = names.map_err(os(&self.path))?.into_iter().filter_map(Result::ok);
        Ok(names.filter(|name| name.starts_with(NAME)).collect())
    }

    /// The numbers, the newest one first.
    fn numbers(&self) -> Result<Vec<u64>, PersistError> {
        let names = self.names()?;
        let number = |name: &String| {
            let number = name.strip_prefix(NAME)?.parse().ok()?;
            // Whoever has put another one there may have meant the same number.
            (*name == file_of(number)).then_some(number)
        };
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        Ok(numbers)
    }

    /// The file of a number.
    pub fn file(&self, number: u64) -> PathBuf {
        self.path.join(file_of(number))
    }

    /// Opens one to be read.
    pub fn open(&self, number: u64) -> Result<BufReader<File>, PersistError> {
        let path = self.file(number);
        let file = ownership::open_file(&path, OFlags::RDONLY).map_err(ownership(&path))?;
        Ok(BufReader::with_capacity(BUFFER, file))
    }

    /// What the newest one says that it is, without a look at the rest. Nothing if there is none, or if it does not say.
    pub fn newest_header(&self) -> Result<Option<Header>, PersistError> {
        let Some(&number) = self.numbers()?.first() else { return Ok(None) };
        Ok(Reader::begin(self.open(number)?).ok().map(|reader| reader.header))
    }

    /// The newest whole one; `None` if there are none. Those that are not whole are named in the log.
    pub fn newest(&mut self) -> Result<Option<Contents>, PersistError> {
        let numbers = self.numbers()?;
        for &number in &numbers {
            let path = self.file(number);
            match Contents::read(self.open(number)?) {
                Ok(contents) => return Ok(Some(contents)),
                // It may be whole, and newer than all others.
                Err(source @ (ReadError::Version(_) | ReadError::Io(_))) => {
                    return Err(PersistError::Read { path, source });
                }
                Err(why) => {
                    log::warn!("{}: {why}: the snapshot before it is used", path.display());
                    self.torn.push(number);
                }
            }
        }
        if numbers.is_empty() { Ok(None) } else { Err(PersistError::NoneWhole { path: self.path.clone() }) }
    }

    /// The file of the newest one, whole or not; `None` if there is none.
    pub fn newest_file(&self) -> Result<Option<PathBuf>, PersistError> {
        Ok(self.numbers()?.first().map(|&number| self.file(number)))
    }

    /// Begins the next one.
    pub fn begin(&self) -> Result<(u64, Unfinished), PersistError> {
        let number = self.numbers()?.first().map_or(1, |newest| newest.saturating_add(1));
        let path = self.file(number);
        let unfinished = path.with_extension(&UNFINISHED[1..]);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = ownership::open_file(&unfinished, flags).map_err(ownership(&unfinished))?;
        let spill = Spill { file, written: 0, spilt: 0 };
        Ok((number, Unfinished { out: BufWriter::with_capacity(BUFFER, spill), unfinished, path }))
    }

    /// Gives a finished one its name, and removes those that are too many. Its bytes.
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

    /// Names that were given stay.
    fn sync(&self) -> Result<(), PersistError> {
        sync_directory(&self.path).map_err(os(&self.path))
    }
}

/// A snapshot that is being written. Dropping it removes what there is of it.
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
                log::warn!("{}: it stays: {e}", self.unfinished.display());
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
    /// How much of it is on the disk.
    spilt: u64,
}

impl Write for Spill {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.file.write(bytes)?;
        self.written += done as u64;
        if self.written - self.spilt >= SPILL {
            self.file.sync_data()?;
            // No more than a wish.
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
        durable::{
            op::{self, Op},
            replay,
        },
        namespace::{Inode, New},
        persist::format::{Frames, Kind},
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
    fn the_newest_whole_one_counts_and_as_many_stay_as_are_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
        assert!(matches!(
            Directory::open(directory.path()),
            Err(PersistError::Directory(ObjectError::Busy { .. }))
        ));
        let mut snapshots = root.export("a/b", 2).unwrap();
        assert!(snapshots.newest().unwrap().is_none());
        assert_eq!((make(&snapshots), make(&snapshots), make(&snapshots)), (1, 2, 3));
        assert_eq!(snapshots.numbers().unwrap(), [3, 2]);
        assert_eq!(snapshots.newest().unwrap().unwrap().header.number, 3);
        damage(&snapshots, 3);
        assert_eq!(snapshots.newest().unwrap().unwrap().header.number, 2);
        // The damaged one does not count.
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
    fn what_is_not_finished_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
        let mut snapshots = root.export("x", 2).unwrap();
        let (_, mut out) = snapshots.begin().unwrap();
        out.write_all(b"something").unwrap();
        out.flush().unwrap();
        assert_eq!(snapshots.names().unwrap().len(), 1);
        // As of a server that was killed.
        std::mem::forget(out);
        assert!(snapshots.newest().unwrap().is_none());
        let again = root.export("x", 2).unwrap();
        assert_eq!(again.names().unwrap(), [] as [&str; 0]);
        // One that fails leaves nothing.
        drop(again.begin().unwrap());
        assert_eq!(again.names().unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn another_version_is_not_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let root = Directory::open(directory.path()).unwrap();
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
