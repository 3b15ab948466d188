//! Watches which stores are registered.
//!
//! A thread lists the stores, and then follows the changes. It lists them again when the watch
//! ends. After an outage the registry starts another thread, because the connection of the first
//! may be lost without notice.
//!
//! # Concurrency
//! One thread that counts, and earlier ones that end with their connection, within minutes. `list`
//! is held for moments.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{Builder, sleep},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    RETRY,
    key_store::{Entry, KeyChange, KeyStore, KeyStoreError},
};
use crate::server::stores::registry::{RegisteredStores, StoreRecord};

/// Pause between the end of a watch and the next list.
const PAUSE: Duration = Duration::from_millis(100);

/// The stores that are registered.
#[derive(Debug)]
pub(super) struct StoresWatch {
    keys: Arc<dyn KeyStore>,
    /// Keys of stores begin so.
    prefix: String,
    /// Number of the thread that counts.
    thread: AtomicU64,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    by_key: BTreeMap<String, StoreRecord>,
    shown: RegisteredStores,
}

impl StoresWatch {
    pub(super) fn new(keys: Arc<dyn KeyStore>, prefix: String) -> StoresWatch {
        StoresWatch { keys, prefix, thread: AtomicU64::new(0), list: Mutex::default() }
    }

    /// Starts a thread. Earlier ones do not count any more.
    ///
    /// # Errors
    /// The operating system has no thread.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        let number = self.thread.fetch_add(1, Ordering::AcqRel) + 1;
        let watch = Arc::clone(self);
        Builder::new().name("rfs-etcd-watch".into()).spawn(move || watch.follow(number)).map(drop)
    }

    /// Lets all threads end.
    pub(super) fn end(&self) {
        self.thread.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn registered(&self) -> RegisteredStores {
        self.list.lock().shown.clone()
    }

    /// Lists the stores once, in the thread of the caller.
    pub(super) fn read(&self) -> Result<(), KeyStoreError> {
        self.list_for(self.thread.load(Ordering::Acquire)).map(drop)
    }

    /// Lists the stores for a thread, and returns the revision of the list.
    fn list_for(&self, number: u64) -> Result<i64, KeyStoreError> {
        let listing = self.keys.list(&self.prefix)?;
        self.change(number, |by_key| {
            by_key.clear();
            listing.entries.iter().for_each(|entry| enter(by_key, entry));
        });
        Ok(listing.revision)
    }

    fn counts(&self, number: u64) -> bool {
        self.thread.load(Ordering::Acquire) == number
    }

    fn follow(&self, number: u64) {
        while self.counts(number) {
            let revision = match self.list_for(number) {
                Ok(revision) => revision,
                Err(error) => {
                    log::debug!("the stores cannot be listed: {error}");
                    sleep(RETRY);
                    continue;
                }
            };
            let ended = self.keys.watch(&self.prefix, revision.saturating_add(1), &mut |changes| {
                if !changes.is_empty() {
                    self.change(number, |by_key| {
                        changes.into_iter().for_each(|change| apply(by_key, change))
                    });
                }
                if self.counts(number) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            log::debug!("the watch of stores has ended: {ended:?}");
            sleep(PAUSE);
        }
    }

    fn change(&self, number: u64, edit: impl FnOnce(&mut BTreeMap<String, StoreRecord>)) {
        let mut list = self.list.lock();
        if !self.counts(number) {
            return;
        }
        edit(&mut list.by_key);
        let stores = list.by_key.values().cloned().collect();
        let change = list.shown.change + 1;
        list.shown = RegisteredStores { is_read: true, change, stores: Arc::new(stores) };
    }
}

fn apply(by_key: &mut BTreeMap<String, StoreRecord>, change: KeyChange) {
    match change {
        KeyChange::Put(entry) => enter(by_key, &entry),
        KeyChange::Deleted(key) => _ = by_key.remove(&key),
    }
}

/// Enters the record of a store. A record that cannot be read is none.
fn enter(by_key: &mut BTreeMap<String, StoreRecord>, entry: &Entry) {
    match serde_json::from_slice(&entry.value) {
        Ok(record) => _ = by_key.insert(entry.key.clone(), record),
        Err(error) => {
            by_key.remove(&entry.key);
            log::warn!("etcd: the record {} of a store cannot be read: {error}", entry.key.escape_debug());
        }
    }
}
