//! Drops names and attributes that the server recalls.
//!
//! The server lets a change of another mount return only after this mount has dropped its state. No
//! drop waits for a request of this mount, so two mounts cannot wait for each other.
//!
//! If this mount does not use a directory while several of its names are recalled, the mount
//! returns the names to the server. Later changes there cost nothing more.
//!
//! # Concurrency
//! One thread, `rfs-recalls`. Takes the locks of the caches, each briefly. Workers return names.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::Cancel;
use rfs_client::{Client, RecallHandler};
use rfs_proto::Recall;

use crate::{
    cache::{names::NameCache, nodes::Nodes},
    session::workers::Workers,
};

/// Longest wait for unlocks in progress, before a recall of locks is acknowledged.
const UNLOCK_LIMIT: Duration = Duration::from_secs(2);
const UNLOCK_PAUSE: Duration = Duration::from_micros(100);

/// The caches that obey recalls.
pub(crate) struct Caches {
    pub(crate) client: Arc<Client>,
    pub(crate) names: Arc<NameCache>,
    pub(crate) nodes: Arc<Nodes>,
    /// Threads that return names to the server.
    pub(crate) workers: Arc<Workers>,
}

impl Caches {
    fn drop_name(&self, parent: u64, name: &[u8]) {
        self.names.remove(parent, name);
        self.client.caching.dropped_name(parent, name);
    }

    fn obey(&self, recall: &Recall) {
        match recall {
            Recall::Name { parent, name } => {
                self.drop_name(*parent, name);
                self.nodes.name_recalled(*parent);
            }
            Recall::Names { ino } => {
                drop_names(&self.client, &self.names, *ino);
                self.nodes.forget_attr(*ino);
            }
            Recall::Attr { ino } | Recall::Pages { ino } | Recall::Owner { ino } => {
                self.nodes.forget_attr(*ino);
            }
            Recall::Locks { ino } => self.wait_for_unlocks(*ino),
            // This mount has no pages. The client handles layouts and unlinked inodes. `All` comes
            // as a recall of every inode, after all names were dropped.
            Recall::Written { .. } | Recall::Layout { .. } | Recall::Unlinked { .. } | Recall::All => {}
        }
    }

    fn wait_for_unlocks(&self, ino: u64) {
        let began = Instant::now();
        while self.client.locks.is_unlocking(ino) && began.elapsed() < UNLOCK_LIMIT {
            thread::sleep(UNLOCK_PAUSE);
        }
    }
}

impl RecallHandler for Caches {
    fn drop_all(&self, recalls: &[Recall]) {
        recalls.iter().for_each(|recall| self.obey(recall));
    }

    fn return_names(&self, dir: u64) {
        let (client, names) = (Arc::clone(&self.client), Arc::clone(&self.names));
        // The server may answer only after this thread has obeyed other recalls.
        let returned = self.workers.offer(Box::new(move || {
            drop_names(&client, &names, dir);
            if let Err(e) = client.recalls.return_names(dir) {
                log::debug!("the names of directory {dir} are recalled one by one: {e}");
            }
        }));
        if returned.is_err() {
            log::debug!("no thread returns the names of directory {dir}");
        }
    }
}

/// Drops all cached names of a directory.
fn drop_names(client: &Client, names: &NameCache, dir: u64) {
    names.remove_directory(dir);
    for name in client.caching.names_in(dir) {
        client.caching.dropped_name(dir, &name);
    }
}

/// The thread that obeys recalls. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct RecallThread {
    cancel: Cancel,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RecallThread {
    /// Starts to obey recalls. The caller has announced the mount to the server.
    pub(crate) fn start(caches: Caches) -> io::Result<RecallThread> {
        let Caches { client, names, .. } = &caches;
        let all_names = Arc::clone(names);
        client.recalls.drop_names_by(move || all_names.clear());
        let (unlinked_names, weak) = (Arc::clone(names), Arc::downgrade(client));
        client.recalls.drop_unlinked_by(move |ino| {
            let Some(client) = weak.upgrade() else { return };
            for (parent, name) in client.caching.known_names(ino) {
                unlinked_names.remove(parent, &name);
                client.caching.dropped_name(parent, &name);
            }
        });
        let cancel = Cancel::new();
        let until = cancel.clone();
        let thread = thread::Builder::new().name("rfs-recalls".into()).spawn(move || {
            let outcome = caches.client.recalls.obey(&caches, &until);
            // From here on nothing is recalled, and so nothing may be cached.
            caches.names.clear();
            if let Err(e) = outcome
                && caches.client.is_connected()
            {
                log::error!("cannot receive recalls, so that nothing is cached any more: {e}");
            }
        })?;
        Ok(RecallThread { cancel, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread, and waits for its end.
    pub(crate) fn stop(&self) {
        self.cancel.cancel();
        let thread = self.thread.lock().take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            log::error!("the thread for recalls has panicked");
        }
    }
}
