//! Unlinked inodes: the server hears when this client stops using them.
//!
//! # Concurrency
//! Any thread. One thread runs `Orphans::send_all`.

use rfs_proto::Request;

use crate::{
    client::Client,
    error::ClientError,
    inode::{arrival::Arrival, orphans::ANNOUNCEMENT},
};

impl Client {
    /// Begins a request whose reply may bring inode numbers. The server keeps these inodes until
    /// the returned value is dropped.
    pub fn arrival(&self) -> Arrival<'_> {
        self.inodes.arrival()
    }

    /// Tells the server that this client reports forgotten inodes. From then on the server keeps
    /// unlinked inodes for this client.
    pub fn announce(&self) -> Result<(), ClientError> {
        self.call_done(&ANNOUNCEMENT)
    }

    /// Sets the callback that drops the names of an unlinked inode.
    pub fn drop_unlinked_by(&self, drop_names: impl Fn(u64) + Send + Sync + 'static) {
        // Only the thread that obeys recalls sets the callback, once.
        let _ = self.inodes.orphans().drop_names.set(Box::new(drop_names));
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
        if let Err(e) = self.start(&Request::Forget { inos: &bytes }) {
            // The server keeps nothing for a session that has ended.
            log::debug!("cannot report {} forgotten inodes: {e}", inos.len());
        }
    }
}
