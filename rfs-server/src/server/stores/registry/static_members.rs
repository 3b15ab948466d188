//! Registries without etcd: the command line, and the file of `--pool`.
//!
//! # Concurrency
//! Any thread. A file is written under a lock, which nothing but changes of the pool takes.

use std::path::Path;

use parking_lot::Mutex;
use rdmabox::Address;

use super::{PoolView, Registry, RegistryError, pool_file::PoolFile};

/// The stores are on the command line. Changes end with the server.
#[derive(Debug)]
pub(crate) struct CommandLine(pub(crate) Vec<Address>);

/// The stores are in a file.
#[derive(Debug)]
pub(crate) struct FileRegistry(Mutex<PoolFile>);

impl FileRegistry {
    /// Reads a file that only this user and root can change.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn read(path: &Path) -> Result<FileRegistry, RegistryError> {
        Ok(FileRegistry(Mutex::new(PoolFile::read(path)?)))
    }
}

impl Registry for CommandLine {
    fn place(&self) -> Option<String> {
        None
    }

    fn take(&self, now: u64) -> Result<PoolView, RegistryError> {
        Ok(PoolView { epoch: now, ..PoolView::of(self.0.iter().cloned()) })
    }

    fn write(&self, _: &PoolView) -> Result<(), RegistryError> {
        Ok(())
    }
}

impl Registry for FileRegistry {
    fn place(&self) -> Option<String> {
        Some(self.0.lock().path().display().to_string())
    }

    fn take(&self, now: u64) -> Result<PoolView, RegistryError> {
        let file = self.0.lock();
        Ok(PoolView { view: file.view(), epoch: now, ..PoolView::of(file.stores()) })
    }

    fn write(&self, view: &PoolView) -> Result<(), RegistryError> {
        Ok(self.0.lock().write(&view.addresses(), view.view)?)
    }
}
