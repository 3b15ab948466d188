//! Calls about whole files and trees.

use std::path::{Component, Path};

use rfs_proto::Errno;

use super::Dir;
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
        let mut bytes = vec![0; usize::try_from(file.stat()?.size).unwrap_or(usize::MAX)];
        let mut len = file.read_full_at(&mut bytes, 0)?;
        // The file may have grown since.
        while len == bytes.len() && len > 0 {
            bytes.resize(len + (64 << 10), 0);
            len += file.read_full_at(&mut bytes[len..], len as u64)?;
        }
        bytes.truncate(len);
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
        // By its node: another thread may replace the path by a link.
        let dir = Dir { node, ..self.clone() };
        for entry in dir.entries()?.collect::<Result<Vec<_>>>()? {
            match entry.stat().is_dir() {
                true => dir.remove_tree(entry.name())?,
                false => dir.remove_file(entry.name())?,
            }
        }
        self.remove_dir(path)
    }
}
