//! The log of a master: a snapshot of its state, then its inputs.
//!
//! A record is its length, its checksum and its bytes. The first record is a [`Machine`], and the
//! others are times with [`Input`]s. An incomplete last record, from a crash, is dropped. Damage
//! before it refuses the start. A start writes the restored state as a new file, which replaces the
//! old one in one step.
//!
//! # Concurrency
//! One owner, under the lock of the master.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::machine::{Input, Machine, Settings};

const MAGIC: &[u8; 8] = b"rstorel1";
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
}

impl Log {
    /// Opens or makes the log. Returns the restored machine.
    pub(super) fn open(path: &Path, settings: &Settings) -> Result<(Log, Machine), LogError> {
        let io = |source| LogError::Io { path: path.to_owned(), source };
        let machine = match fs::read(path) {
            Ok(bytes) => restore(path, &bytes, settings)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Machine::new(settings.clone()),
            Err(error) => return Err(io(error)),
        };
        let file = write_new(path, &machine).map_err(io)?;
        Ok((Log { path: path.to_owned(), file, inputs: 0 }, machine))
    }

    /// Appends an input, before it is applied to `machine`.
    pub(super) fn append(&mut self, now: u64, input: &Input, machine: &Machine) -> io::Result<()> {
        if self.inputs >= MAX_INPUTS {
            (self.file, self.inputs) = (write_new(&self.path, machine)?, 0);
        }
        self.inputs += 1;
        self.file.write_all(&record(&postcard::to_stdvec(&(now, input)).map_err(io::Error::other)?))
    }
}

/// Restores the state of a master from the bytes of its log, without a master: for tools.
///
/// # Errors
/// As for a master that starts with the log.
pub fn restore_log(bytes: &[u8], settings: &Settings) -> Result<Machine, LogError> {
    restore(Path::new("log"), bytes, settings)
}

fn record(bytes: &[u8]) -> Vec<u8> {
    let mut record = (bytes.len() as u32).to_le_bytes().to_vec();
    record.extend(crc32c::crc32c(bytes).to_le_bytes());
    record.extend(bytes);
    record
}

fn write_new(path: &Path, machine: &Machine) -> io::Result<File> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(MAGIC)?;
    file.write_all(&record(&postcard::to_stdvec(machine).map_err(io::Error::other)?))?;
    file.sync_all()?;
    fs::rename(&new, path)?;
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
    let Some((head, after)) = rest.split_first_chunk::<8>() else { return Next::Incomplete };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, sum) = (word(0) as usize, word(4));
    if len > MAX_RECORD {
        return Next::Damaged;
    }
    let Some((bytes, later)) = after.split_at_checked(len) else { return Next::Incomplete };
    if crc32c::crc32c(bytes) != sum {
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
    machine.check().map_err(|fault| {
        log::error!("{}: {fault}", path.display());
        damaged(rest)
    })?;
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
    fn every_cut_and_every_flipped_byte_is_a_state_of_before_or_an_error() {
        let (_dir, path, _) = written();
        let bytes = fs::read(&path).expect("the log");
        let settings = Settings::default();
        for cut in 0..bytes.len() {
            if let Ok(machine) = restore(&path, &bytes[..cut], &settings) {
                assert!(machine.status().namespaces <= 2);
            }
            let mut flipped = bytes.clone();
            flipped[cut] ^= 0x40;
            if let Ok(machine) = restore(&path, &flipped, &settings) {
                assert!(machine.status().namespaces <= 2);
            }
        }
    }

    #[test]
    fn another_length_of_chunks_is_refused() {
        let (_dir, path, _) = written();
        let settings = Settings { chunk_bytes: 4096, ..Settings::default() };
        assert!(matches!(Log::open(&path, &settings), Err(LogError::Chunks { .. })));
    }
}
