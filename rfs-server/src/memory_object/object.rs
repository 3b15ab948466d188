//! Opens, checks and creates the files of a memory object. Never overwrites an existing object.
//!
//! # Concurrency
//! The main thread calls it at start and stop; `flock` on the directory excludes other servers
//! until the process ends.

mod error;
mod store;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rdmabox::{Memory, MemoryError};
use rfs_proto::{checksum, record};
use rustix::fs::OFlags;

pub use error::ObjectError;
use error::{os, ownership};
pub use store::ObjectStore;
pub(crate) use store::{file_name, lock_directory, make_directory};

use super::{
    header::{Header, HeaderError, HeaderNumber, PAGE, Shape},
    log::Log,
    op::Op,
    ownership,
    replay::State,
    reservation,
};
use crate::space::{nonzero_bitmap::NonzeroBitmap, quarantine::ABANDONED_SESSIONS};

const STATE: &str = "state";
const ARENA: &str = "arena";
const TABLE: &str = "table";
const SUMS: &str = "sums";

/// Returns the name and the length in bytes of each file.
fn lengths(shape: Shape, segment: u64) -> impl Iterator<Item = (&'static str, u64)> {
    let state = log_offset(shape) + 2 * segment;
    let table = u64::from(shape.inodes) * record::LEN as u64;
    let sums = shape.checked.then(|| (SUMS, checksum::region_len(shape.arena)));
    [(ARENA, shape.arena), (TABLE, table)].into_iter().chain(sums).chain([(STATE, state)])
}

/// Returns the bytes of a file that a start reserves: all, except for the log, which grows in
/// steps.
fn reserved(name: &str, shape: Shape, len: u64, segment: u64) -> u64 {
    match name {
        STATE => log_offset(shape) + 2 * segment.min(reservation::STEP as u64),
        _ => len,
    }
}

/// Returns the offset of the log in the state file, behind the header and the bitmap.
fn log_offset(shape: Shape) -> u64 {
    (PAGE as u64 + NonzeroBitmap::len_for(shape.arena)).next_multiple_of(PAGE as u64)
}

/// Creates an object under a temporary name and renames it when it is complete. An error leaves
/// nothing behind.
fn make(path: &Path, shape: Shape) -> Result<(), ObjectError> {
    let new = path.with_extension("new");
    make_as(&new, path, shape).inspect_err(|_| {
        // The error of the start is the one to report.
        fs::remove_dir_all(&new).ok();
    })
}

fn make_as(new: &Path, path: &Path, shape: Shape) -> Result<(), ObjectError> {
    match fs::remove_dir_all(new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(os(new, "rmdir")(e)),
        _ => {}
    }
    fs::DirBuilder::new().mode(0o700).create(new).map_err(os(new, "mkdir"))?;
    let mut identity = [0; 16];
    getrandom::fill(&mut identity).map_err(|e| os(new, "getrandom")(io::Error::other(e.to_string())))?;
    let segment = Log::len_for(shape).next_multiple_of(PAGE as u64);
    for (name, len) in lengths(shape, segment) {
        let path = new.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(os(&path, "open"))?;
        file.set_len(len).map_err(os(&path, "ftruncate"))?;
        if name == STATE {
            let memory = Memory::of_file(file).map_err(|source| ObjectError::Memory { path, source })?;
            let identity = u128::from_le_bytes(identity);
            Header { shape, segment, identity, knows_sessions: true, starts: 0, clean: true }
                .write(&memory, None);
        }
    }
    fs::rename(new, path).map_err(os(path, "rename"))
}

/// A mapped memory object.
#[derive(Debug)]
pub struct Object {
    path: PathBuf,
    /// Memory of file contents.
    pub arena: Arc<Memory>,
    /// Memory of attribute records.
    pub table: Arc<Memory>,
    /// Memory of checksum words, for an export with checksums.
    pub sums: Option<Arc<Memory>>,
    state: Arc<Memory>,
    header: Mutex<(Header, HeaderNumber)>,
    /// Bytes that a start reserves.
    pub len: u64,
    /// Bytes of `len` that the file system has already allocated.
    pub present: u64,
}

impl Object {
    fn open(path: PathBuf, shape: Shape) -> Result<Object, ObjectError> {
        let opened = |name: &str| -> Result<(PathBuf, File), ObjectError> {
            let path = path.join(name);
            let file = ownership::open_file(&path, OFlags::RDWR).map_err(ownership(&path))?;
            Ok((path, file))
        };
        let mapped = |(path, file): (PathBuf, File)| -> Result<Arc<Memory>, ObjectError> {
            Memory::of_file(file).map(Arc::new).map_err(|source| ObjectError::Memory { path, source })
        };
        let (file, len) = {
            let (path, file) = opened(STATE)?;
            let len = file.metadata().map_err(os(&path, "stat"))?.len();
            ((path, file), len)
        };
        let name = file.0.clone();
        if len < PAGE as u64 {
            return Err(ObjectError::Header { path: name, source: HeaderError::Foreign });
        }
        let state = mapped(file)?;
        let (header, number) =
            Header::read(&state).map_err(|source| ObjectError::Header { path: name, source })?;
        if header.shape != shape {
            return Err(ObjectError::Shape { path, there: header.shape, asked: shape });
        }
        let (mut len, mut present) = (0, 0);
        for (name, expected) in lengths(shape, header.segment) {
            let (path, file) = opened(name)?;
            let meta = file.metadata().map_err(os(&path, "stat"))?;
            let reserved = reserved(name, shape, expected, header.segment);
            len += reserved;
            present += (meta.blocks() * 512).min(reserved);
            if meta.len() > expected {
                // A client that maps the file can append to it. The server uses no byte behind the
                // end.
                log::warn!("{}: {} bytes too long: truncated", path.display(), meta.len() - expected);
                file.set_len(expected).map_err(os(&path, "ftruncate"))?;
            } else if meta.len() < expected {
                return Err(ObjectError::Length { path, there: meta.len(), expected });
            }
        }
        let (arena, table) = (mapped(opened(ARENA)?)?, mapped(opened(TABLE)?)?);
        let sums = header.shape.checked.then(|| opened(SUMS).and_then(mapped)).transpose()?;
        Ok(Object { path, arena, table, sums, state, header: Mutex::new((header, number)), len, present })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Allocates all space of the object in the file system, so that no page is missing later; that
    /// of the arena if `with_arena`.
    ///
    /// # Errors
    /// The file system has too little space, or cannot allocate ahead.
    pub fn reserve(&self, with_arena: bool) -> Result<(), MemoryError> {
        let header = self.header();
        // The lengths fit in `usize`: the file is mapped.
        let (log, segment) = (log_offset(header.shape) as usize, header.segment as usize);
        let step = segment.min(reservation::STEP);
        let arena = with_arena.then_some(&self.arena);
        let parts = arena.into_iter().chain([&self.table]).chain(&self.sums).map(|memory| memory.reserve());
        let state = [(0, log + step), (log + segment, step)];
        let state = state.into_iter().map(|(offset, len)| self.state.reserve_range(offset, len));
        parts.chain(state).collect()
    }

    /// Returns the current header.
    pub fn header(&self) -> Header {
        self.header.lock().0
    }

    /// Records that a server starts with the object.
    pub fn begin(&self) {
        self.change(|header| {
            header.starts += 1;
            (header.clean, header.knows_sessions) = (false, true);
        });
        // The other place may have an older version of the format. A server of that version would
        // take it for the newest header, and read a log with operations that it does not know.
        self.change(|_| {});
    }

    /// Records an orderly stop: no file is open, and the object does not change any more.
    pub fn end(&self) {
        self.change(|header| header.clean = true);
    }

    fn change(&self, change: impl FnOnce(&mut Header)) {
        let mut header = self.header.lock();
        change(&mut header.0);
        header.1 = header.0.write(&self.state, Some(header.1));
    }

    /// Returns the bitmap of nonzero blocks.
    pub fn dirt(&self) -> NonzeroBitmap {
        NonzeroBitmap::new(Arc::clone(&self.state), PAGE)
    }

    /// Returns the log and its replayed state, or a new log if no server has started with the
    /// object.
    ///
    /// # Errors
    /// [`ObjectError::Log`] if the log cannot be read.
    pub fn log(&self) -> Result<(Log, Option<State>), ObjectError> {
        let header = self.header();
        // The lengths fit in `usize`: the file is mapped.
        let (offset, len) = (log_offset(header.shape) as usize, header.segment as usize);
        let memory = Arc::clone(&self.state);
        if header.starts == 0 {
            return Ok((Log::new(memory, offset, len), None));
        }
        let mut state = State::default();
        let log = Log::open(memory, offset, len, |op: Op<'_>| state.apply(op))
            .map_err(|source| ObjectError::Log { path: self.path.join(STATE), source })?;
        if !header.knows_sessions && !header.clean {
            state.sessions.attach_abandoned(ABANDONED_SESSIONS);
        }
        Ok((log, Some(state)))
    }
}

#[cfg(test)]
mod tests;
