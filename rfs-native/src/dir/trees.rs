//! Calls about whole files and trees.

use std::{
    ffi::OsString,
    path::{Component, Path},
    vec,
};

use rfs_client::ClientError;
use rfs_proto::Errno;

use super::{Dir, Entry};
use crate::{
    error::{Result, at},
    file::open::OpenOptions,
    path::walk::Follow,
};

/// Permission bits of new directories, before the umask.
const DIRECTORY: u32 = 0o777;

impl Dir {
    /// Returns all bytes of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`File::read_at`](crate::File::read_at).
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let size = usize::try_from(file.stat()?.size).unwrap_or(usize::MAX);
        let mut bytes = file.read_up_to(0, size)?;
        // The file may have grown since.
        while !bytes.is_empty() {
            let more = file.read_up_to(bytes.len() as u64, 64 << 10)?;
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
        }
        Ok(bytes)
    }

    /// Replaces the contents of a file, and creates the file if it does not exist.
    ///
    /// Other mounts may see the file empty or with a part of the bytes meanwhile. Write another
    /// file and [`rename`](Self::rename) it if that matters.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`File::write_all_at`](crate::File::write_all_at).
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> Result<()> {
        let options = &mut OpenOptions::new();
        let file = self.open_with(path, options.write(true).create(true).truncate(true))?;
        file.write_all_at(bytes.as_ref(), 0)?;
        file.close()
    }

    /// Creates a directory and all its missing parents.
    ///
    /// # Errors
    /// ENOTDIR if a part of the path is no directory.
    pub fn make_dirs(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut sofar = std::path::PathBuf::new();
        for component in path.components() {
            sofar.push(component);
            if !matches!(component, Component::Normal(_)) {
                continue;
            }
            match self.make_dir(&sofar, DIRECTORY) {
                Err(e) if e.errno() == i32::from(Errno::EEXIST.0) => {}
                made => made?,
            }
        }
        // The last part may be a file.
        self.dir_at(path).map(drop).map_err(at("make_dirs", path))
    }

    /// Removes a file, or a directory with all that is in it. Follows no symbolic link.
    ///
    /// # Errors
    /// ENOTEMPTY if another thread or mount adds names meanwhile.
    pub fn remove_tree(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let node = self.node_at(path, Follow::No).map_err(at("remove_tree", path))?;
        if !node.is_directory() {
            return self.remove_file(path);
        }
        // A tree may be deeper than this thread's stack.
        let mut levels = vec![Level::of(Dir { node, ..self.clone() }, OsString::new())?];
        while let Some(level) = levels.last_mut() {
            match level.entries.next() {
                Some(entry) => {
                    if let Some(below) = level.remove(&entry)? {
                        levels.push(below);
                    }
                }
                None => {
                    let done = levels.pop();
                    if let (Some(done), Some(above)) = (done, levels.last()) {
                        gone(above.dir.remove_dir(&done.name))?;
                    }
                }
            }
        }
        self.remove_dir(path)
    }
}

/// A directory whose entries are being removed.
struct Level {
    dir: Dir,
    /// The directory's name in the directory above.
    name: OsString,
    entries: vec::IntoIter<Entry>,
}

impl Level {
    fn of(dir: Dir, name: OsString) -> Result<Level> {
        let entries = dir.entries()?.collect::<Result<Vec<_>>>()?.into_iter();
        Ok(Level { dir, name, entries })
    }

    /// Removes an entry, unless it is a directory, which is returned.
    fn remove(&self, entry: &Entry) -> Result<Option<Level>> {
        if !entry.stat().is_dir() {
            return gone(self.dir.remove_file(entry.name())).map(|()| None);
        }
        let name = Path::new(entry.name());
        // By its node: another thread may replace the name by a link.
        match self.dir.node_at(name, Follow::No) {
            Ok(node) if node.is_directory() => {
                Level::of(Dir { node, ..self.dir.clone() }, entry.name().to_owned()).map(Some)
            }
            Ok(_) => gone(self.dir.remove_file(name)).map(|()| None),
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(None),
            Err(e) => Err(at("remove_tree", name)(e)),
        }
    }
}

/// Returns the outcome of a removal. A name that is gone already is removed.
fn gone(removed: Result<()>) -> Result<()> {
    removed.or_else(|e| if *e.reason() == ClientError::Errno(Errno::ENOENT) { Ok(()) } else { Err(e) })
}
