//! The directories that a start makes, and that a refused start removes again.
//!
//! # Concurrency
//! The thread that starts the server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rdmabox::Address;

use crate::memory_object::object::file_name;
use crate::server::config::Config;

/// Directories that were missing before the start. Dropping it removes those that are empty.
#[derive(Debug)]
pub(in crate::server) struct NewDirectories(Vec<PathBuf>);

impl NewDirectories {
    /// Returns the directories that a start with this configuration may make.
    pub(in crate::server) fn before(config: &Config) -> NewDirectories {
        let mut all: Vec<PathBuf> = config.memory_dir.iter().cloned().collect();
        if let Some(persist) = &config.persist {
            all.push(persist.dir.clone());
            all.extend(config.exports().iter().map(|export| persist.dir.join(file_name(&export.name))));
        }
        let sockets = config.listen.iter().filter_map(|address| match address {
            Address::Unix(path) => path.parent().map(Path::to_owned),
            _ => None,
        });
        all.extend(sockets);
        all.retain(|path| path.symlink_metadata().is_err());
        NewDirectories(all)
    }

    /// Leaves the directories in place.
    pub(in crate::server) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewDirectories {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // A directory that has files, or was never made, is none of the start.
            fs::remove_dir(path).ok();
        }
    }
}
