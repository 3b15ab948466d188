//! The directory with the memory objects of a server's exports.
//!
//! # Concurrency
//! The main thread calls it at start and stop; `flock` on the directory excludes other servers
//! until the process ends.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rdmabox::Memory;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::{
    Object, STATE,
    error::{ObjectError, os, ownership},
    make,
};
use crate::memory_object::{
    header::{Header, PAGE, Shape},
    ownership,
    previous_clients::PreviousClients,
    tethers::Tethers,
};

/// The locked directory with the objects of a server's exports.
#[derive(Debug)]
pub struct ObjectStore {
    path: PathBuf,
    /// Objects that this server has made. They go with a start that is refused.
    made: Mutex<Vec<PathBuf>>,
    /// Dropped before the lock, unless the host still uses it.
    tethers: Arc<Tethers>,
    previous_clients: Arc<PreviousClients>,
    _lock: File,
}

impl ObjectStore {
    /// Locks a directory. Creates it with mode 0700 if only its last component is missing.
    pub fn open(path: &Path) -> Result<ObjectStore, ObjectError> {
        let lock = lock_directory(path)?;
        let (tethers, previous_clients) =
            Tethers::make(path).map_err(os(path, "creating the tethers of clients"))?;
        Ok(ObjectStore {
            path: path.to_owned(),
            made: Mutex::default(),
            tethers: Arc::new(tethers),
            previous_clients: Arc::new(previous_clients),
            _lock: lock,
        })
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tethers of the clients that map memory.
    pub fn tethers(&self) -> &Arc<Tethers> {
        &self.tethers
    }

    /// Returns the clients of previous servers that may still write.
    pub fn previous_clients(&self) -> &Arc<PreviousClients> {
        &self.previous_clients
    }

    /// Returns the object of an export; creates it if it is missing. An object that no server has
    /// started with is created again, because its initial contents may be incomplete.
    pub fn object(&self, export: &str, shape: Shape) -> Result<Object, ObjectError> {
        let path = self.path.join(file_name(export));
        // A dangling symbolic link exists, too.
        if path.is_symlink() || path.try_exists().map_err(os(&path, "stat"))? {
            ownership::open_directory(&path).map_err(ownership(&path))?;
            // With other options than these, too.
            if !is_unused(&path) {
                return Object::open(path, shape);
            }
            fs::remove_dir_all(&path).map_err(os(&path, "rmdir"))?;
        }
        make(&path, shape)?;
        self.made.lock().push(path.clone());
        Object::open(path, shape)
    }

    /// Keeps the objects that this server has made: clients may use them from now on.
    pub fn keep(&self) {
        self.made.lock().clear();
    }

    /// Returns the names of the directories of objects that a server has started with, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, ObjectError> {
        let listed = fs::read_dir(&self.path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = listed.map_err(os(&self.path, "readdir"))?;
        let mut names: Vec<String> = entries
            .into_iter()
            // Names with a dot belong to no export.
            .filter_map(|entry| entry.file_name().into_string().ok().filter(|name| !name.contains('.')))
            // A directory of another use has no state: lost+found, for example.
            .filter(|name| self.path.join(name).join(STATE).exists())
            .filter(|name| !is_unused(&self.path.join(name)))
            .collect();
        names.sort_unstable();
        Ok(names)
    }
}

impl Drop for ObjectStore {
    /// Removes the objects of a start that was refused. The directory is still locked.
    fn drop(&mut self) {
        for path in self.made.lock().drain(..) {
            match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    log::warn!("{}: cannot remove the unused memory object: {e}", path.display());
                }
                _ => {}
            }
        }
    }
}

/// Returns true if no server has started with the object in a directory. Returns false if that
/// cannot be told.
fn is_unused(path: &Path) -> bool {
    let state = path.join(STATE);
    let Ok(file) = ownership::open_file(&state, OFlags::RDWR) else { return false };
    if !file.metadata().is_ok_and(|meta| meta.len() >= PAGE as u64) {
        return false;
    }
    let Ok(state) = Memory::of_file(file) else { return false };
    Header::is_unused(&state)
}

/// Creates a directory with mode 0700 if only its last component is missing.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Locks a directory against other servers until the returned file is closed. Creates the directory
/// with mode 0700 if only its last component is missing.
pub(crate) fn lock_directory(path: &Path) -> Result<File, ObjectError> {
    make_directory(path).map_err(os(path, "mkdir"))?;
    let lock = ownership::open_directory(path).map_err(ownership(path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(ObjectError::Busy { path: path.to_owned() }),
        Err(e) => Err(os(path, "flock")(e.into())),
    }
}

/// Returns an export's name as a directory name: escapes characters that file names cannot have, or
/// that have a meaning in this directory.
pub(crate) fn file_name(export: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    export.chars().map(|c| if plain(c) { c.to_string() } else { format!("%{:x}", u32::from(c)) }).collect()
}
