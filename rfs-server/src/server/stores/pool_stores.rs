//! The stores of the pool: how the server takes them over, adds and removes them.
//!
//! # Concurrency
//! Any thread calls. A thread that changes the pool holds `change` while it asks a store and writes
//! the registry. The other locks are held for moments, but for `ending` (`LentMemory::end_doubts`).

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, RwLock};
use pool::{OwnedStore, StoreId};
use rdmabox::{Address, Key, SessionOptions};
use rfs_proto::{BLOCK, DataPlace};

use super::{
    Membership, StoresConfig, StoresError,
    accesses::Accesses,
    member::PoolStore,
    registry::{
        CommandLine, FileRegistry, Health, Member, MemberState, PoolView, RegisteredStores, Registry,
        RegistryError, RemovedStore, ServerRecord, StoreRecord, etcd::EtcdRegistry,
    },
};
use crate::{
    dispatch::{Dispatcher, LostFiles},
    space::{account::Space, lent_memory::StoreFailure},
};

/// Time for which the start waits for a store that is not there yet. It also waits for a store that
/// has not yet noticed the end of the previous server.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const JOIN_PAUSE: Duration = Duration::from_millis(100);
/// Limit of a request to a store. Requests of clients may wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Stores that belong to this server.
#[derive(Debug)]
pub(in crate::server) struct PoolStores {
    view: RwLock<View>,
    /// Held while the pool changes.
    change: Mutex<Change>,
    pub(super) key: Key,
    options: SessionOptions,
    unit: u64,
    pub(super) accesses: Mutex<Accesses>,
    /// Held by the thread that ends the accesses in doubt.
    pub(super) ending: Mutex<()>,
    /// Where the stores are written down. Dropped last: the next server may take the pool then.
    registry: Box<dyn Registry>,
}

/// Which stores there are.
#[derive(Debug)]
struct View {
    stores: BTreeMap<u16, Arc<PoolStore>>,
    /// Raised by each change of the pool.
    number: u64,
}

/// The parts that a change of the pool needs.
#[derive(Debug)]
struct Change {
    /// The last number that a store got. No number is used twice.
    last_number: u16,
    last_epoch: u64,
    /// Runs of stores that were removed.
    removed: Vec<RemovedStore>,
}

impl Change {
    /// Returns an epoch that is higher than that of each server before, and of each earlier store
    /// of this one. The tickets of another epoch are void at the store that gets it.
    fn epoch(&mut self) -> u64 {
        self.last_epoch = now().max(self.last_epoch + 1);
        self.last_epoch
    }
}

/// Returns milliseconds since 1970: a server that starts later has a higher epoch.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX) % (1 << 44)
}

impl PoolStores {
    /// Takes the stores over, with all of their memory. `addresses` are those of the server.
    pub(in crate::server) fn join(
        config: &StoresConfig,
        addresses: &[Address],
    ) -> Result<PoolStores, StoresError> {
        let key = Key::load(&config.key)?;
        let registry: Box<dyn Registry> = match &config.members {
            Membership::Addresses(addresses) => Box::new(CommandLine(addresses.clone())),
            Membership::File(path) => Box::new(FileRegistry::read(path)?),
            Membership::Etcd(urls) => {
                Box::new(EtcdRegistry::new(urls, key.id, ServerRecord::of_this_process(addresses)?))
            }
        };
        PoolStores::of(registry, key, config.unit)
    }

    /// Takes the pool, and its stores over.
    fn of(registry: Box<dyn Registry>, key: Key, unit: u64) -> Result<PoolStores, StoresError> {
        let mut options = SessionOptions::default();
        options.key = Some(key.clone());
        options.operation_timeout = REQUEST_TIMEOUT;
        let taken = registry.take(now())?;
        let mut view = taken.clone();
        let registered = registry.registered();
        if let Some(registered) = &registered {
            enter_registered(&mut view, registered);
        }
        let stores = join_all(&mut view, registered.is_some(), &options)?;
        if view.stores != taken.stores {
            view.view += 1;
            registry.write(&view)?;
        }
        let last_number = view.stores.iter().map(|member| member.number).max().unwrap_or(0);
        let change = Change { last_number, last_epoch: view.epoch, removed: view.removed };
        Ok(PoolStores {
            view: RwLock::new(View { stores, number: view.view }),
            change: Mutex::new(change),
            key,
            options,
            unit,
            accesses: Mutex::default(),
            ending: Mutex::default(),
            registry,
        })
    }

    /// Takes a store over, and makes its memory usable at once. Returns its number.
    ///
    /// # Errors
    /// The pool is as it was. A retry is safe.
    pub(in crate::server) fn add(&self, address: &Address, space: &Space) -> Result<u16, StoresError> {
        self.add_within(JOIN_TIMEOUT, address, space)
    }

    /// Takes a store over as [`add`](Self::add) does, with one attempt: the caller tries the store
    /// again later.
    pub(super) fn add_newcomer(&self, address: &Address, space: &Space) -> Result<u16, StoresError> {
        self.add_within(Duration::ZERO, address, space)
    }

    fn add_within(&self, limit: Duration, address: &Address, space: &Space) -> Result<u16, StoresError> {
        let mut change = self.change.lock();
        let known = self.members().into_iter().find(|store| store.owned.address() == address);
        if let Some(store) = known {
            return Err(StoresError::Known { address: address.clone(), number: store.number() });
        }
        // A registry that refuses shall not cost the store its contents.
        self.refuse_without_registry()?;
        let number = change.last_number.checked_add(1).ok_or(StoresError::NoNumber)?;
        // An epoch of its own: sessions that ended earlier have tickets of earlier epochs.
        let epoch = change.epoch();
        let store = join_one(StoreId(number), address, &self.options, epoch, limit)?;
        let store = Arc::new(store.of_run(self.registered_run(address)));
        change.last_number = number;
        let len = store.owned.len();
        let saved = self.save(&mut change, |view| {
            view.removed.retain(|removed| removed.address != *address);
            view.stores.push(member_of(&store));
        });
        if let Err(error) = saved {
            // The store stays outside, and need not keep its memory for this server.
            let _ = store.owned.leave();
            return Err(error);
        }
        let mut view = self.view.write();
        view.stores.insert(number, store);
        view.number += 1;
        drop(view);
        // The length was checked when the store joined, and the number is new.
        if !space.add_store(number, len, self.unit) {
            return Err(StoresError::Len { address: address.clone(), len });
        }
        Ok(number)
    }

    /// Returns the number of a store that is named by its number or its address.
    pub(in crate::server) fn find(&self, name: &str) -> Result<u16, StoresError> {
        let is = |store: &Arc<PoolStore>| {
            name.parse() == Ok(store.number()) || store.owned.address().to_string() == name
        };
        let found = self.members().iter().find(|store| is(store)).map(|store| store.number());
        found.ok_or_else(|| StoresError::NoStore(name.into()))
    }

    /// Begins or ends a drain: no new data goes to the store, and its data moves away. Returns
    /// false if that was so.
    ///
    /// # Errors
    /// There is no such store, or its memory is lost.
    pub(in crate::server) fn drain(
        &self,
        number: u16,
        is_on: bool,
        space: &Space,
    ) -> Result<bool, StoresError> {
        let mut change = self.change.lock();
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        if is_on && store.is_lost() {
            return Err(StoresError::Lost(number));
        }
        if store.drain.state().is_on != is_on {
            let state = if is_on { MemberState::Draining } else { MemberState::Up };
            self.save(&mut change, |view| {
                view.stores
                    .iter_mut()
                    .filter(|member| member.number == number)
                    .for_each(|of| of.state = state);
            })?;
            self.view.write().number += 1;
        }
        space.drain_store(number, is_on);
        Ok(store.drain.set(is_on))
    }

    /// Removes a store that has no data.
    ///
    /// # Errors
    /// The store has data, or the pool file cannot be written. The pool is as it was.
    pub(in crate::server) fn remove(&self, number: u16, space: &Space) -> Result<(), StoresError> {
        let mut change = self.change.lock();
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        if store.is_lost() {
            return Err(StoresError::Lost(number));
        }
        if !store.look() {
            return Err(StoresError::Silent(number));
        }
        // No new data comes while the rest is looked at.
        space.drain_store(number, true);
        let in_use =
            space.usage().iter().find(|usage| usage.store == number).map(|usage| usage.len - usage.clean);
        let mut outcome = match in_use {
            Some(0) => self.leave(&mut change, number),
            bytes => Err(StoresError::InUse { number, bytes: bytes.unwrap_or(0) }),
        };
        if outcome.is_ok() && !space.remove_store(number) {
            // Not reached: nothing takes space of a store that drains.
            outcome = Err(StoresError::InUse { number, bytes: 0 });
        }
        if outcome.is_err() {
            space.drain_store(number, store.drain.state().is_on);
            return outcome;
        }
        if let Err(error) = store.owned.leave() {
            log::warn!("{error}: it keeps its memory until another server takes it over");
        }
        Ok(())
    }

    /// Removes a store that will never come back, with the data that files have there. Sessions
    /// that wait for their end at that store end without it.
    ///
    /// # Errors
    /// The store answers, or the pool file cannot be written. The pool is as it was.
    pub(in crate::server) fn give_up(
        &self,
        number: u16,
        dispatcher: &Dispatcher,
    ) -> Result<LostFiles, StoresError> {
        let mut change = self.change.lock();
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        if !store.is_lost() && store.look() {
            return Err(StoresError::Answers(number));
        }
        // From now on no data gets space there. If the pool stays as it was, the watch undoes this.
        dispatcher.space().close_store(number);
        self.leave(&mut change, number)?;
        dispatcher.space().forget_store(number);
        let files = store.report_lost(dispatcher).clone();
        // Requests that still use it fail.
        let _ = store.owned.leave();
        Ok(files)
    }

    /// Takes a store out of the view and the registry.
    fn leave(&self, change: &mut Change, number: u16) -> Result<(), StoresError> {
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        let address = store.owned.address();
        // Else its registration would add the same run again. A run that is lost has ended, and the
        // next run at its address is another store.
        let registered = self.registered_run(address).filter(|_| !store.is_lost());
        let run = registered.or_else(|| store.run.clone());
        self.save(change, |view| {
            view.stores.retain(|member| member.number != number);
            if let Some(run) = run {
                view.note_removed(address.clone(), run);
            }
        })?;
        let mut view = self.view.write();
        view.stores.remove(&number);
        view.number += 1;
        Ok(())
    }

    /// Writes the next view to the registry. `edit` changes the present view.
    fn save(&self, change: &mut Change, edit: impl FnOnce(&mut PoolView)) -> Result<(), StoresError> {
        let mut view = PoolView {
            view: self.view() + 1,
            epoch: change.last_epoch,
            stores: self.members().iter().map(|store| member_of(store)).collect(),
            removed: change.removed.clone(),
        };
        edit(&mut view);
        self.registry.write(&view)?;
        change.removed = view.removed;
        Ok(())
    }

    /// Refuses a change while the registry cannot write it down.
    fn refuse_without_registry(&self) -> Result<(), StoresError> {
        let place = || self.registry.place().unwrap_or_default();
        match self.registry.health() {
            None | Some(Health::Up) => Ok(()),
            Some(Health::Away { reason, .. }) => Err(RegistryError::Away { place: place(), reason }.into()),
            Some(Health::Taken { by }) => Err(RegistryError::Lost { place: place(), by }.into()),
        }
    }

    /// Returns the run of the store that is registered at an address.
    fn registered_run(&self, address: &Address) -> Option<String> {
        let registered = self.registry.registered()?;
        let record = registered.stores.iter().find(|record| record.address == *address)?;
        Some(record.run.clone())
    }

    /// Returns true if this run of a store was removed, and shall not come back by itself.
    pub(super) fn has_removed(&self, address: &Address, run: &str) -> bool {
        let change = self.change.lock();
        change.removed.iter().any(|removed| removed.address == *address && removed.run == run)
    }

    /// Returns the number of the last change of the pool.
    pub(in crate::server) fn view(&self) -> u64 {
        self.view.read().number
    }

    /// Says where the stores are written down. `None`: on the command line.
    pub(in crate::server) fn place(&self) -> Option<String> {
        self.registry.place()
    }

    /// Says whether the registry can be asked. `None` if it always can.
    pub(in crate::server) fn registry_health(&self) -> Option<Health> {
        self.registry.health()
    }

    /// Returns the stores that are registered. `None` if stores do not register.
    pub(in crate::server) fn registered(&self) -> Option<RegisteredStores> {
        self.registry.registered()
    }

    /// Returns true while a store is in the view.
    pub(super) fn has(&self, number: u16) -> bool {
        self.view.read().stores.contains_key(&number)
    }

    /// Returns the number and length of each store.
    pub(in crate::server) fn lengths(&self) -> Vec<(u16, u64)> {
        self.members().iter().map(|store| (store.number(), store.owned.len())).collect()
    }

    /// Returns the numbers of the stores that get no new data.
    pub(in crate::server) fn draining(&self) -> Vec<u16> {
        let members = self.members();
        members.iter().filter(|store| store.drain.state().is_on).map(|store| store.number()).collect()
    }

    /// Returns the length of the pieces of a file that stores take in turn.
    pub(in crate::server) fn unit(&self) -> u64 {
        self.unit
    }

    /// Returns the stores by number.
    pub(in crate::server) fn members(&self) -> Vec<Arc<PoolStore>> {
        self.view.read().stores.values().cloned().collect()
    }

    pub(super) fn store(&self, number: u16) -> Result<Arc<PoolStore>, StoreFailure> {
        self.view.read().stores.get(&number).cloned().ok_or(StoreFailure(number))
    }
}

/// Returns the store as a view has it.
fn member_of(store: &PoolStore) -> Member {
    let state = if store.drain.state().is_on { MemberState::Draining } else { MemberState::Up };
    let (number, address, run) = (store.number(), store.owned.address().clone(), store.run.clone());
    Member { number, address, state, run }
}

/// Enters the stores that are registered into a view, and which runs they are. Others have no run.
fn enter_registered(view: &mut PoolView, registered: &RegisteredStores) {
    view.stores.iter_mut().for_each(|member| member.run = None);
    for record in registered.stores.iter() {
        let StoreRecord { address, run, .. } = record;
        if view.has_removed(address, run) {
            continue;
        }
        let run = Some(run.clone());
        match view.stores.iter_mut().find(|member| member.address == *address) {
            Some(member) => member.run = run,
            None => {
                let address = address.clone();
                view.stores.push(Member { number: 0, address, state: MemberState::Up, run });
            }
        }
    }
    view.renumber();
}

/// Takes the stores of a view over. If stores register themselves, one that cannot be taken over
/// leaves the view: its registration adds it later.
fn join_all(
    view: &mut PoolView,
    register: bool,
    options: &SessionOptions,
) -> Result<BTreeMap<u16, Arc<PoolStore>>, StoresError> {
    let (epoch, mut stores) = (view.epoch, BTreeMap::new());
    let give_up = Instant::now() + JOIN_TIMEOUT;
    let mut members = Vec::new();
    for member in view.stores.drain(..) {
        let limit = match (register, &member.run) {
            (false, _) => JOIN_TIMEOUT,
            (true, Some(_)) => give_up.saturating_duration_since(Instant::now()),
            // It runs without a registry, or it does not run.
            (true, None) => Duration::ZERO,
        };
        match join_one(StoreId(member.number), &member.address, options, epoch, limit) {
            Ok(store) => {
                let store = Arc::new(store.of_run(member.run));
                // A drain outlives the server that began it.
                store.drain.set(member.state == MemberState::Draining);
                members.push(member_of(&store));
                stores.insert(member.number, store);
            }
            Err(error) if register => log::warn!("{error}: it is added when it registers"),
            Err(error) => return Err(error),
        }
    }
    view.stores = members;
    Ok(stores)
}

/// Takes a store over, and retries for a short time.
fn join_one(
    id: StoreId,
    address: &Address,
    options: &SessionOptions,
    epoch: u64,
    limit: Duration,
) -> Result<PoolStore, StoresError> {
    let give_up = Instant::now() + limit;
    let owned = loop {
        match OwnedStore::join(id, address, options, epoch) {
            Err(_) if Instant::now() < give_up => std::thread::sleep(JOIN_PAUSE),
            outcome => break outcome?,
        }
    };
    let len = owned.len();
    if !(BLOCK..DataPlace::STORE_LEN).contains(&len) {
        return Err(StoresError::Len { address: address.clone(), len });
    }
    log::info!("{id} at {address} lends {}", byte_size::show(len));
    Ok(PoolStore::new(owned, epoch))
}
