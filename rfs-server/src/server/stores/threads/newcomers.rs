//! The thread `rfs-newcomers`, which takes stores into the pool that have registered.
//!
//! A store that registers is added at once: it has proved that it has the key of the pool. A run of
//! a store that was removed is not added again, unless a command does. A store that cannot be added
//! is tried again after a pause.
//!
//! # Concurrency
//! One thread for a pool whose stores register. It waits for stores and for etcd, and holds no lock
//! meanwhile that requests of clients need.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    sync::{Arc, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use rdmabox::Address;

use super::store_thread::StoreThread;
use crate::{
    dispatch::Dispatcher,
    server::stores::{
        pool_stores::PoolStores,
        registry::{Health, StoreRecord},
    },
    space::account::Space,
};

/// Interval at which the thread looks for stores. It asks no store and no registry for that.
const NEWCOMER_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Pause before another attempt to add a store.
const RETRY: Duration = Duration::from_secs(2);

/// Starts the thread, if stores register.
pub(in crate::server) fn start_newcomers(
    stores: &Arc<PoolStores>,
    dispatcher: &Arc<Dispatcher>,
) -> io::Result<Option<StoreThread>> {
    if stores.registered().is_none() {
        return Ok(None);
    }
    let (stores, dispatcher) = (Arc::clone(stores), Arc::clone(dispatcher));
    let thread = StoreThread::start("rfs-newcomers", "adds stores", move |stopped| {
        let mut newcomers = Newcomers::default();
        while stopped.recv_timeout(NEWCOMER_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            newcomers.look(&stores, dispatcher.space());
        }
    })?;
    Ok(Some(thread))
}

/// The memory of the thread.
#[derive(Debug, Default)]
struct Newcomers {
    /// Stores that could not be added: the run, and the time of the next attempt.
    later: BTreeMap<String, Instant>,
    /// Stores of the pool that are not registered, and that the log has named.
    silent: BTreeSet<u16>,
    /// The list of registered stores, and the view, at the last look.
    seen: Option<(u64, u64)>,
}

impl Newcomers {
    fn look(&mut self, pool: &PoolStores, space: &Space) {
        let Some(registered) = pool.registered().filter(|registered| registered.is_read) else { return };
        // While etcd is away, leases do not end, and no store can be added.
        if !matches!(pool.registry_health(), Some(Health::Up)) {
            return;
        }
        let members = pool.members();
        let state = (registered.change, pool.view());
        if self.later.is_empty() && self.seen == Some(state) {
            return;
        }
        let known: HashSet<&Address> = members.iter().map(|store| store.owned.address()).collect();
        self.later.retain(|run, _| registered.stores.iter().any(|record| record.run == *run));
        for record in registered.stores.iter().filter(|record| !known.contains(&record.address)) {
            self.add(pool, record, space);
        }
        let addresses: HashSet<&Address> = registered.stores.iter().map(|record| &record.address).collect();
        for store in members.iter().filter(|store| store.run.is_some()) {
            let address = store.owned.address();
            if addresses.contains(address) {
                self.silent.remove(&store.number());
            } else if self.silent.insert(store.number()) {
                log::warn!(
                    "{} at {address} is not registered any more: its data stays, and it is used as long as it answers",
                    store.owned.id()
                );
            }
        }
        self.seen = Some(state);
    }

    fn add(&mut self, pool: &PoolStores, record: &StoreRecord, space: &Space) {
        let now = Instant::now();
        if self.later.get(&record.run).is_some_and(|next| *next > now)
            || pool.has_removed(&record.address, &record.run)
        {
            return;
        }
        match pool.add_newcomer(&record.address, space) {
            Ok(number) => {
                self.later.remove(&record.run);
                log::info!("store {number} at {} has registered, and is in use", record.address);
            }
            Err(error) => {
                if self.later.insert(record.run.clone(), now + RETRY).is_none() {
                    log::warn!(
                        "the store at {} has registered, and cannot be used yet: {error}",
                        record.address
                    );
                }
            }
        }
    }
}
