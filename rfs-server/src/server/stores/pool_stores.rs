//! The stores of the pool: how the server takes them over, moves bytes, and fences sessions.
//!
//! Invariant: a session that was admitted reaches no store any more once [`LentMemory::fence`] has
//! returned true. A store that was restarted has nothing that a session could reach.
//!
//! # Concurrency
//! Any thread calls. Locks are held for moments, and none while a store is asked.

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, RwLock};
use pool::{ClientId, OwnedStore, OwnerError, StoreId, Ticket};
use rdmabox::{Address, Key, SessionOptions};
use rfs_proto::{BLOCK, DataPlace, StoreAccess};

use super::{Membership, StoresConfig, StoresError, member::PoolStore, pool_file::PoolFile};
use crate::{
    dispatch::{Dispatcher, LostFiles},
    space::{
        account::Space,
        lent::{LentMemory, StoreFailure},
    },
};

/// Time for which the start waits for a store that is not there yet, or that has not noticed yet
/// that the previous server has gone.
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
    /// Path of the file that has the stores, if there is one.
    file: Option<PathBuf>,
    key: Key,
    options: SessionOptions,
    unit: u64,
    /// Sessions that may reach stores.
    admitted: Mutex<HashSet<u64>>,
}

/// Which stores there are.
#[derive(Debug)]
struct View {
    stores: BTreeMap<u16, Arc<PoolStore>>,
    /// Raised by each change of the pool.
    number: u64,
}

/// What a change of the pool needs.
#[derive(Debug)]
struct Change {
    /// The file that has the stores, if there is one.
    file: Option<PoolFile>,
    /// The last number that a store got. No number is used twice.
    last_number: u16,
    last_epoch: u64,
}

impl Change {
    /// Returns an epoch that is higher than that of each server before, and of each earlier store
    /// of this one. The tickets of another epoch are void at the store that gets it.
    fn epoch(&mut self) -> u64 {
        // Milliseconds since 1970: a server that starts later has a higher epoch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX) % (1 << 44);
        self.last_epoch = now.max(self.last_epoch + 1);
        self.last_epoch
    }
}

impl PoolStores {
    /// Takes the stores over, with all of their memory.
    pub(in crate::server) fn join(config: &StoresConfig) -> Result<PoolStores, StoresError> {
        let key = Key::load(&config.key)?;
        let mut options = SessionOptions::default();
        options.key = Some(key.clone());
        options.operation_timeout = REQUEST_TIMEOUT;
        let (file, addresses) = match &config.members {
            Membership::Addresses(addresses) => (None, addresses.clone()),
            Membership::File(path) => {
                let file = PoolFile::read(path)?;
                let addresses = file.stores();
                (Some(file), addresses)
            }
        };
        let number = file.as_ref().map_or(0, PoolFile::view);
        let mut change = Change { file, last_number: 0, last_epoch: 0 };
        let epoch = change.epoch();
        let mut stores = BTreeMap::new();
        for (number, address) in (1_u16..).zip(&addresses) {
            stores.insert(number, Arc::new(join_one(StoreId(number), address, &options, epoch)?));
            change.last_number = number;
        }
        Ok(PoolStores {
            file: change.file.as_ref().map(|file| file.path().to_owned()),
            view: RwLock::new(View { stores, number }),
            change: Mutex::new(change),
            key,
            options,
            unit: config.unit,
            admitted: Mutex::default(),
        })
    }

    /// Takes a store over, and makes its memory usable at once. Returns its number.
    ///
    /// # Errors
    /// The pool is as it was. A retry is safe.
    pub(in crate::server) fn add(&self, address: &Address, space: &Space) -> Result<u16, StoresError> {
        let mut change = self.change.lock();
        let known = self.members().into_iter().find(|store| store.owned.address() == address);
        if let Some(store) = known {
            return Err(StoresError::Known { address: address.clone(), number: store.number() });
        }
        let number = change.last_number.checked_add(1).ok_or(StoresError::NoNumber)?;
        // An epoch of its own: sessions that ended earlier have tickets of earlier epochs.
        let epoch = change.epoch();
        let store = Arc::new(join_one(StoreId(number), address, &self.options, epoch)?);
        change.last_number = number;
        let len = store.owned.len();
        self.save(&mut change, |stores| stores.push(address.clone()))?;
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
        let _change = self.change.lock();
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        if is_on && store.is_lost() {
            return Err(StoresError::Lost(number));
        }
        space.drain_store(number, is_on);
        let changed = store.drain.set(is_on);
        if changed {
            self.view.write().number += 1;
        }
        Ok(changed)
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

    /// Takes a store out of the view and the file.
    fn leave(&self, change: &mut Change, number: u16) -> Result<(), StoresError> {
        let store = self.store(number).map_err(|_| StoresError::NoStore(number.to_string()))?;
        self.save(change, |addresses| addresses.retain(|address| address != store.owned.address()))?;
        let mut view = self.view.write();
        view.stores.remove(&number);
        view.number += 1;
        Ok(())
    }

    /// Writes the next view to the pool file, if there is one. `edit` changes the addresses.
    fn save(&self, change: &mut Change, edit: impl FnOnce(&mut Vec<Address>)) -> Result<(), StoresError> {
        let Some(file) = &mut change.file else { return Ok(()) };
        let mut addresses: Vec<Address> =
            self.members().iter().map(|store| store.owned.address().clone()).collect();
        edit(&mut addresses);
        Ok(file.write(&addresses, self.view() + 1)?)
    }

    /// Number of the last change of the pool.
    pub(in crate::server) fn view(&self) -> u64 {
        self.view.read().number
    }

    /// The file that has the stores, if there is one.
    pub(in crate::server) fn file(&self) -> Option<PathBuf> {
        self.file.clone()
    }

    /// Returns true while a store is in the view.
    pub(super) fn has(&self, number: u16) -> bool {
        self.view.read().stores.contains_key(&number)
    }

    /// Number and length of each store.
    pub(in crate::server) fn lengths(&self) -> Vec<(u16, u64)> {
        self.members().iter().map(|store| (store.number(), store.owned.len())).collect()
    }

    /// Length of the pieces of a file that stores take in turn.
    pub(in crate::server) fn unit(&self) -> u64 {
        self.unit
    }

    /// The stores by number.
    pub(in crate::server) fn members(&self) -> Vec<Arc<PoolStore>> {
        self.view.read().stores.values().cloned().collect()
    }

    fn store(&self, number: u16) -> Result<Arc<PoolStore>, StoreFailure> {
        self.view.read().stores.get(&number).cloned().ok_or(StoreFailure(number))
    }
}

/// Takes a store over, and retries for a short time.
fn join_one(
    id: StoreId,
    address: &Address,
    options: &SessionOptions,
    epoch: u64,
) -> Result<PoolStore, StoresError> {
    let give_up = Instant::now() + JOIN_TIMEOUT;
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

impl LentMemory for PoolStores {
    fn zero(&self, store: u16, offset: u64, len: u64) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.zero(offset, len))
    }

    fn read(&self, store: u16, offset: u64, out: &mut [u8]) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.read(offset, out))
    }

    fn write(&self, store: u16, offset: u64, data: &[u8]) -> Result<(), StoreFailure> {
        let store = self.store(store)?;
        store.note(store.owned.write(offset, data))
    }

    fn admit(&self, store: u16, session: u64, may_write: bool) -> Option<StoreAccess> {
        let store = self.store(store).ok()?;
        // First: the session is fenced from now on, also if the reply does not arrive.
        self.admitted.lock().insert(session);
        let ticket = Ticket { client: ClientId(session), epoch: store.epoch, may_write };
        let key = ticket.key(&self.key);
        let digits = key.secret.to_hex();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap_or_default();
        Some(StoreAccess {
            address: store.owned.address().to_string(),
            chunk: store.owned.chunk(),
            client: session,
            ticket: key.id.to_string(),
            secret: (0..digits.len()).step_by(2).map(byte).collect(),
        })
    }

    fn is_admitted(&self, session: u64) -> bool {
        self.admitted.lock().contains(&session)
    }

    fn fence(&self, session: u64) -> bool {
        let fenced = |store: &Arc<PoolStore>| match store.owned.fence(ClientId(session)) {
            // Nothing of a lost store can be reached.
            Ok(()) | Err(OwnerError::Lost { .. }) => true,
            Err(error) => {
                log::debug!("session {session} is not fenced yet: {error}");
                false
            }
        };
        // All are asked, so that one store that does not answer delays no other.
        let stores = self.members();
        let all = stores.iter().map(fenced).filter(|fenced| *fenced).count() == stores.len();
        if all {
            self.admitted.lock().remove(&session);
        }
        all
    }
}
