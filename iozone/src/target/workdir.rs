//! A private directory that is removed on drop, but never with the contents of a mount.
//!
//! It holds mount points, sockets and benchmark files. Removal first unmounts everything below it.
//! If that fails, the directory stays and the error says so, because a recursive removal must not
//! enter a mount.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::mount;
use crate::{Error, Result};

/// A private directory. Removed on drop.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
    removed: bool,
}

impl WorkDir {
    /// Creates a directory in `parent`, accessible only to its owner.
    pub fn new(parent: &Path) -> Result<Self> {
        // The mount table has canonical paths.
        let parent = parent.canonicalize().map_err(Error::io(parent))?;
        let made = tempfile::Builder::new().prefix("rfs-iozone-").tempdir_in(&parent);
        let path = made.map_err(Error::io(parent))?.keep();
        Ok(Self { path, removed: false })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a subdirectory.
    pub fn subdir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).map_err(Error::io(&path))?;
        Ok(path)
    }

    /// Unmounts everything below and removes the directory.
    pub fn remove(&mut self) -> Result<()> {
        if self.removed {
            return Ok(());
        }
        for point in mount::mounts_below(&self.path)? {
            mount::unmount(&point)?;
        }
        fs::remove_dir_all(&self.path).map_err(Error::io(&self.path))?;
        self.removed = true;
        Ok(())
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(err) = self.remove() {
            eprintln!("rfs-iozone: {} is left behind: {err}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn drop_removes_the_directory_and_its_contents() {
        let dir = WorkDir::new(&env::temp_dir()).unwrap();
        let path = dir.path().to_owned();
        let sub = dir.subdir("mnt").unwrap();
        fs::write(sub.join("file"), b"x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn removal_happens_once() {
        let mut dir = WorkDir::new(&env::temp_dir()).unwrap();
        dir.remove().unwrap();
        dir.remove().unwrap();
    }
}
