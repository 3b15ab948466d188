//! Collects the status of the stores.
//!
//! # Concurrency
//! Any thread. No store is asked: the watch asks each once a second.

use super::pool::{
    DrainStatus, LostFileStatus, LostStatus, PoolStatus, RegistryState, RegistryStatus, StoreState,
    StoreStatus,
};
use crate::{
    dispatch::{LostFile, LostFiles},
    server::stores::{PoolStore, PoolStores, registry::Health},
    space::alloc::StoreUsage,
};

/// Returns the stores with their use of space.
pub(super) fn pool_status(pool: &PoolStores, usage: &[StoreUsage]) -> PoolStatus {
    let members = pool.members();
    let registered = pool.registered();
    let is_registered = |store: &PoolStore| {
        let stores = &registered.as_ref()?.stores;
        Some(stores.iter().any(|record| record.address == *store.owned.address()))
    };
    let of = |usage: &StoreUsage| {
        let store = members.iter().find(|store| store.number() == usage.store).map(|store| &**store);
        StoreStatus { registered: store.and_then(is_registered), ..status(usage, store) }
    };
    let place = pool.place();
    let (file, registry) = match pool.registry_health() {
        None => (place, None),
        Some(health) => (None, Some(registry_status(place.unwrap_or_default(), health))),
    };
    PoolStatus {
        view: pool.view(),
        file,
        registry,
        stripe_unit_bytes: pool.unit(),
        stores: usage.iter().map(of).collect(),
    }
}

fn registry_status(place: String, health: Health) -> RegistryStatus {
    let (state, away_seconds, reason) = match health {
        Health::Up => (RegistryState::Up, None, None),
        Health::Away { since, reason } => {
            (RegistryState::Away, Some(since.elapsed().as_secs_f64()), Some(reason))
        }
        Health::Taken { by } => (RegistryState::Taken, None, Some(by)),
    };
    RegistryStatus { place, state, away_seconds, reason }
}

fn status(usage: &StoreUsage, store: Option<&PoolStore>) -> StoreStatus {
    StoreStatus {
        number: usage.store,
        address: store.map(|store| store.owned.address().to_string()).unwrap_or_default(),
        state: store.map_or(StoreState::Up, |store| state(store, usage)),
        size_bytes: usage.len,
        free_bytes: usage.clean + usage.dirty,
        used_bytes: usage.used(),
        quarantined_bytes: usage.quarantined,
        dirty_bytes: usage.dirty,
        drain: store.map(|store| store.drain.state()).filter(|drain| drain.is_on).map(|drain| DrainStatus {
            moved_bytes: drain.moved,
            left_bytes: usage.len - usage.clean,
            waits_for: drain.waits,
        }),
        registered: None,
        sessions: store.map_or(0, |store| store.sessions().into()),
        lost: store.and_then(|store| store.lost.get()).map(lost),
    }
}

fn state(store: &PoolStore, usage: &StoreUsage) -> StoreState {
    match (store.is_lost(), store.is_up(), store.drain.state().is_on) {
        (true, ..) => StoreState::Lost,
        (false, false, _) => StoreState::Unreachable,
        (false, true, true) if usage.clean == usage.len => StoreState::Empty,
        (false, true, true) => StoreState::Draining,
        (false, true, false) => StoreState::Up,
    }
}

fn lost(LostFiles { files, bytes, listed }: &LostFiles) -> LostStatus {
    let file = |LostFile { ino, bytes, path }: &LostFile| LostFileStatus {
        inode: *ino,
        bytes: *bytes,
        path: path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
    };
    LostStatus { files: *files, bytes: *bytes, listed: listed.iter().map(file).collect() }
}
