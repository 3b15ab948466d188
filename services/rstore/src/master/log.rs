//! The log of a master: a snapshot of its state, then its inputs.
//!
//! A record is its length, a checksum of the length, a checksum of its bytes, and its bytes. The
//! first record is a [`Machine`], and the others are times with [`Input`]s. An incomplete last
//! record, from a crash, is dropped. Damage before it refuses the start. A start writes the
//! restored state as a new file, which replaces the old one in one step. So does the first input
//! after a failed write.
//!
//! A master locks `LOG.lock` before it reads or writes anything. The lock is in a file of its own,
//! as the file of the log is replaced.
//!
//! # Concurrency
//! One owner, under the lock of the master.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::machine::{Input, Machine, Settings};

const MAGIC: &[u8; 8] = b"rstorel3";
/// Length of a record without its bytes.
const HEAD: usize = 12;
/// Longest record that is read.
const MAX_RECORD: usize = 1 << 30;
/// Inputs after which the log is written anew.
const MAX_INPUTS: u64 = 100_000;

/// Why the state cannot be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another master has the log.
    #[error("{0} is the log of a master that is running: end that master first, or give another --log")]
    InUse(PathBuf),
    /// The file is no log of this version.
    #[error("{0} is no log of this version of the master: use its version, or start with a new log")]
    Format(PathBuf),
    /// A record is damaged.
    #[error(
        "{path} is damaged at byte {at}, and its state cannot be trusted: restore it, or start with a new log"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first byte of the record.
        at: usize,
    },
    /// The chunk length differs.
    #[error(
        "{path} has chunks of {found} bytes, not {wanted}: give the same --chunk, or start with a new log"
    )]
    Chunks {
        /// The file.
        path: PathBuf,
        /// The length in the log.
        found: u64,
        /// The length that was asked for.
        wanted: u64,
    },
}

/// An open log.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    inputs: u64,
    /// Holds the lock until it is closed.
    _lock: File,
}

impl Log {
    /// Opens or makes the log. Returns the restored machine.
    pub(super) fn open(path: &Path, settings: &Settings) -> Result<(Log, Machine), LogError> {
        let io = |source| LogError::Io { path: path.to_owned(), source };
        // One lock for all names of the file. A rename does not replace a link to it.
        let resolved = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            resolved => resolved.map_err(io)?,
        };
        let lock = create(&beside(&resolved, "lock")).map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(LogError::InUse(path.to_owned())),
            outcome => outcome.map_err(|error| io(error.into()))?,
        }
        let machine = match fs::read(&resolved) {
            Ok(bytes) => restore(path, &bytes, settings)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Machine::new(settings.clone()),
            Err(error) => return Err(io(error)),
        };
        let file = write_new(&resolved, &machine).map_err(io)?;
        Ok((Log { path: resolved, file, inputs: 0, _lock: lock }, machine))
    }

    /// Appends an input, before it is applied to `machine`.
    ///
    /// # Errors
    /// The input is not in the log. The next call writes a new file, without the bytes that this
    /// call has left of the input.
    pub(super) fn append(&mut self, now: u64, input: &Input, machine: &Machine) -> io::Result<()> {
        if self.inputs >= MAX_INPUTS {
            (self.file, self.inputs) = (write_new(&self.path, machine)?, 0);
        }
        let bytes = postcard::to_stdvec(&(now, input)).map_err(io::Error::other)?;
        let outcome = self.file.write_all(&record(&bytes));
        self.inputs = if outcome.is_ok() { self.inputs + 1 } else { MAX_INPUTS };
        outcome
    }
}

/// Restores the state of a master from the bytes of its log, without a master: for tools.
///
/// # Errors
/// As for a master that starts with the log.
pub fn restore_log(bytes: &[u8], settings: &Settings) -> Result<Machine, LogError> {
    restore(Path::new("log"), bytes, settings)
}

/// Makes all checksums of a log right, so that a test reaches the code behind them. The last record
/// gets the length that is left.
pub fn repair_checksums(bytes: &mut [u8]) {
    let Some((magic, mut rest)) = bytes.split_first_chunk_mut() else { return };
    *magic = *MAGIC;
    while let Some((head, after)) = rest.split_first_chunk_mut::<HEAD>() {
        let len = (u32::from_le_bytes(words(head)[0]) as usize).min(after.len());
        let (body, later) = after.split_at_mut(len);
        *head = head_of(body);
        rest = later;
    }
}

/// Returns the path with a further extension.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Opens or makes a file that only this user can read: it has the numbers that prove clients and
/// the owner of the stores.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Returns the length, its checksum and the checksum of the bytes.
fn head_of(bytes: &[u8]) -> [u8; HEAD] {
    let len = (bytes.len() as u32).to_le_bytes();
    let (of_len, of_bytes) = (crc32c::crc32c(&len).to_le_bytes(), crc32c::crc32c(bytes).to_le_bytes());
    let mut head = [0; HEAD];
    head.as_chunks_mut().0.copy_from_slice(&[len, of_len, of_bytes]);
    head
}

fn words(head: &[u8; HEAD]) -> &[[u8; 4]] {
    head.as_chunks().0
}

fn record(bytes: &[u8]) -> Vec<u8> {
    [&head_of(bytes), bytes].concat()
}

/// Writes a log with one snapshot, which replaces the log at `path`.
fn write_new(path: &Path, machine: &Machine) -> io::Result<File> {
    let new = beside(path, "new");
    // It may be left from a master that crashed. The lock of the log covers it.
    let mut file = create(&new)?;
    file.set_len(0)?;
    file.write_all(MAGIC)?;
    file.write_all(&record(&postcard::to_stdvec(machine).map_err(io::Error::other)?))?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

/// A part of a log.
enum Next<'a> {
    Record(&'a [u8]),
    Damaged,
    /// The rest is shorter than a record.
    Incomplete,
}

fn next<'a>(rest: &mut &'a [u8]) -> Next<'a> {
    let Some((head, after)) = rest.split_first_chunk::<HEAD>() else { return Next::Incomplete };
    let [len, of_len, of_bytes] = [0, 1, 2].map(|at| u32::from_le_bytes(words(head)[at]));
    // A wrong length could hide all records after it.
    if crc32c::crc32c(&len.to_le_bytes()) != of_len || len as usize > MAX_RECORD {
        return Next::Damaged;
    }
    let Some((bytes, later)) = after.split_at_checked(len as usize) else { return Next::Incomplete };
    if crc32c::crc32c(bytes) != of_bytes {
        return if later.is_empty() { Next::Incomplete } else { Next::Damaged };
    }
    *rest = later;
    Next::Record(bytes)
}

/// Restores a machine from the bytes of a log. Never panics.
fn restore(path: &Path, bytes: &[u8], settings: &Settings) -> Result<Machine, LogError> {
    let damaged = |rest: &[u8]| LogError::Damaged { path: path.to_owned(), at: bytes.len() - rest.len() };
    let mut rest = bytes.strip_prefix(MAGIC).ok_or_else(|| LogError::Format(path.to_owned()))?;
    let start = rest;
    let Next::Record(first) = next(&mut rest) else { return Err(damaged(start)) };
    let mut machine: Machine = postcard::from_bytes(first).map_err(|_| damaged(start))?;
    let (found, wanted) = (machine.settings().chunk_bytes, settings.chunk_bytes);
    if found != wanted {
        return Err(LogError::Chunks { path: path.to_owned(), found, wanted });
    }
    let check = |machine: &Machine, rest: &[u8]| {
        machine.check().map_err(|fault| {
            log::error!("{}: {fault}", path.display());
            damaged(rest)
        })
    };
    check(&machine, start)?;
    loop {
        let before = rest;
        match next(&mut rest) {
            Next::Incomplete => break,
            Next::Damaged => return Err(damaged(before)),
            Next::Record(bytes) => {
                let (now, input): (u64, Input) = postcard::from_bytes(bytes).map_err(|_| damaged(before))?;
                machine.apply(now, input);
            }
        }
    }
    machine.set_times(settings);
    check(&machine, rest)?;
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use pool::ClientId;

    use super::*;
    use crate::proto::Request;

    fn inputs() -> Vec<Input> {
        let hello = Input::Hello { call: 1, resume: None, nonce: 7 };
        let call = |call, name: &str| Input::Call {
            call,
            client: ClientId(1),
            request: Request::CreateNamespace(name.into()),
        };
        vec![hello, call(2, "a"), call(3, "b"), Input::ClientGone(ClientId(1))]
    }

    fn written() -> (tempfile::TempDir, PathBuf, Machine) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let (mut log, mut machine) = Log::open(&path, &Settings::default()).expect("a log");
        for (now, input) in inputs().into_iter().enumerate() {
            log.append(now as u64, &input, &machine).expect("a write");
            machine.apply(now as u64, input);
        }
        (dir, path, machine)
    }

    #[test]
    fn a_log_restores_the_state() {
        let (_dir, path, machine) = written();
        for _ in 0..2 {
            let (_, restored) = Log::open(&path, &Settings::default()).expect("the log");
            assert_eq!(restored, machine);
        }
    }

    #[test]
    fn every_cut_is_a_state_of_before_and_every_flipped_byte_before_the_last_record_an_error() {
        let (_dir, path, machine) = written();
        let bytes = fs::read(&path).expect("the log");
        let settings = Settings::default();
        let mut last = bytes.len() - HEAD;
        while record(&bytes[last + HEAD..]) != bytes[last..] {
            last -= 1;
        }
        for at in 0..bytes.len() {
            let cut = restore(&path, &bytes[..at], &settings);
            assert!(cut.is_err() || at > MAGIC.len() + HEAD);
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x40;
            let flipped = restore(&path, &flipped, &settings);
            // A damaged last record may be from a crash, unless it has a wrong length.
            assert_eq!(flipped.is_ok(), at >= last + 8, "byte {at} of {}, {last}", bytes.len());
            assert_ne!(flipped.ok(), Some(machine.clone()));
        }
    }

    #[test]
    fn a_second_master_is_refused_and_changes_nothing() {
        let (dir, path, machine) = written();
        let (mut log, _) = Log::open(&path, &Settings::default()).expect("the log");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        for name in [&path, &link] {
            let refused = Log::open(name, &Settings::default()).expect_err("a second master");
            assert!(matches!(refused, LogError::InUse(_)), "{refused}");
            let text = refused.to_string();
            assert!(text.contains(&name.display().to_string()) && text.contains("--log"), "{text}");
        }
        let input = Input::Tick;
        log.append(9, &input, &machine).expect("a write");
        drop(log);
        let (_, restored) = Log::open(&link, &Settings::default()).expect("the log");
        assert_eq!(restored.now(), 9);
        assert!(link.is_symlink());
    }

    #[test]
    fn files_beside_the_log_are_not_touched_and_others_cannot_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a folder");
        let (one, two, other) =
            (dir.path().join("log.1"), dir.path().join("log.2"), dir.path().join("log.new"));
        fs::write(&other, "other").expect("a file");
        let open = |path: &Path| Log::open(path, &Settings::default()).expect("a log");
        let _logs = (open(&one), open(&two));
        assert_eq!(fs::read(&other).expect("the file"), b"other");
        let mode = fs::metadata(&one).expect("the log").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_failed_write_leaves_no_torn_record() {
        let (_dir, path, mut machine) = written();
        let (mut log, _) = Log::open(&path, &Settings::default()).expect("the log");
        log.append(10, &Input::Tick, &machine).expect("a write");
        machine.apply(10, Input::Tick);
        // A part of a record, as a full disk leaves it. Then the disk is full.
        log.file.write_all(&record(&[7; 100])[..50]).expect("a write");
        let full = OpenOptions::new().write(true).open("/dev/full").expect("the device");
        log.file = full;
        assert!(log.append(11, &Input::Tick, &machine).is_err());
        log.append(12, &Input::Tick, &machine).expect("there is space again");
        machine.apply(12, Input::Tick);
        drop(log);
        let (_, restored) = Log::open(&path, &Settings::default()).expect("the log");
        assert_eq!(restored, machine);
    }

    #[test]
    fn another_length_of_chunks_is_refused() {
        let (_dir, path, _) = written();
        let settings = Settings { chunk_bytes: 4096, ..Settings::default() };
        assert!(matches!(Log::open(&path, &settings), Err(LogError::Chunks { .. })));
    }
}
