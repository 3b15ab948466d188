//! The stores of the pool: how the server takes them over, moves bytes, and fences sessions.
//!
//! Invariant: a session that was admitted reaches no store any more once [`LentMemory::fence`] has
//! returned true. A store that was restarted has nothing that a session could reach.
//!
//! # Concurrency
//! Any thread calls. Locks are held for moments, and none while a store is asked.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, RwLock};
use pool::{ClientId, OwnedStore, OwnerError, StoreId, Ticket};
use rdmabox::{Address, Key, SessionOptions};
use rfs_proto::{BLOCK, DataPlace, StoreAccess};

use super::{StoresConfig, StoresError, member::PoolStore};
use crate::space::lent::{LentMemory, StoreFailure};

/// Time for which the start waits for a store that is not there yet, or that has not noticed yet
/// that the previous server has gone.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const JOIN_PAUSE: Duration = Duration::from_millis(100);
/// Limit of a request to a store. Requests of clients may wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Stores that belong to this server.
#[derive(Debug)]
pub(in crate::server) struct PoolStores {
    stores: RwLock<BTreeMap<u16, Arc<PoolStore>>>,
    key: Key,
    epoch: u64,
    unit: u64,
    /// Sessions that may reach stores.
    admitted: Mutex<HashSet<u64>>,
}

impl PoolStores {
    /// Takes the stores over, with all of their memory.
    pub(in crate::server) fn join(config: &StoresConfig) -> Result<PoolStores, StoresError> {
        let key = Key::load(&config.key)?;
        let mut options = SessionOptions::default();
        options.key = Some(key.clone());
        options.operation_timeout = REQUEST_TIMEOUT;
        // Milliseconds since 1970: a server that starts later has a higher epoch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(now.as_millis()).unwrap_or(u64::MAX) % (1 << 44);
        let mut stores = BTreeMap::new();
        for (number, address) in (1_u16..).zip(&config.addresses) {
            let owned = join_one(StoreId(number), address, &options, epoch)?;
            let (len, id) = (owned.len(), owned.id());
            if !(BLOCK..DataPlace::STORE_LEN).contains(&len) {
                return Err(StoresError::Len { address: address.clone(), len });
            }
            log::info!("{id} at {address} lends {}", byte_size::show(len));
            stores.insert(number, Arc::new(PoolStore::new(owned)));
        }
        let stores = RwLock::new(stores);
        Ok(PoolStores { stores, key, epoch, unit: config.unit, admitted: Mutex::default() })
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
        self.stores.read().values().cloned().collect()
    }

    fn store(&self, number: u16) -> Result<Arc<PoolStore>, StoreFailure> {
        self.stores.read().get(&number).cloned().ok_or(StoreFailure(number))
    }
}

/// Takes a store over, and retries for a short time.
fn join_one(
    id: StoreId,
    address: &Address,
    options: &SessionOptions,
    epoch: u64,
) -> Result<OwnedStore, OwnerError> {
    let give_up = Instant::now() + JOIN_TIMEOUT;
    loop {
        match OwnedStore::join(id, address, options, epoch) {
            Err(_) if Instant::now() < give_up => std::thread::sleep(JOIN_PAUSE),
            outcome => return outcome,
        }
    }
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
        let ticket = Ticket { client: ClientId(session), epoch: self.epoch, may_write };
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
