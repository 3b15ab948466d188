//! Unlinked inodes: the server hears when this client stops using them.
//!
//! # Concurrency
//! Any thread. One thread runs `Orphans::send_all`.

use std::sync::Arc;

use rfs_proto::Request;

use crate::{error::ClientError, inode::table::InodeTable, requests::calls::Calls};

/// Reports forgotten unlinked inodes to the server.
#[derive(Debug)]
pub(crate) struct UnlinkedInodes {
    calls: Arc<Calls>,
    inodes: Arc<InodeTable>,
}

impl UnlinkedInodes {
    pub(crate) fn new(calls: &Arc<Calls>) -> UnlinkedInodes {
        UnlinkedInodes { calls: Arc::clone(calls), inodes: Arc::clone(&calls.caching.inodes) }
    }

    /// Runs `asks`, and beside it a thread that reports forgotten unlinked inodes to the server.
    pub(crate) fn forgetting<T>(
        &self,
        asks: impl FnOnce() -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let orphans = self.inodes.orphans();
        std::thread::scope(|scope| {
            let sends = || orphans.send_all(|inos| self.send_forgotten(inos));
            match std::thread::Builder::new().name("forgetting".into()).spawn_scoped(scope, sends) {
                Ok(_) => orphans.begin(),
                Err(e) => {
                    log::error!("unlinked files keep their space on the server, cannot start a thread: {e}")
                }
            }
            let asked = asks();
            orphans.end();
            asked
        })
    }

    fn send_forgotten(&self, inos: &[u64]) {
        let bytes: Vec<u8> = inos.iter().flat_map(|ino| ino.to_le_bytes()).collect();
        if let Err(e) = self.calls.start(&Request::Forget { inos: &bytes }) {
            // The server keeps nothing for a session that has ended.
            log::debug!("cannot report {} forgotten inodes: {e}", inos.len());
        }
    }
}
