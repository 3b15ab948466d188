//! The stores whose memory an export uses: how the server takes them over, reaches them, and fences
//! sessions.
//!
//! Invariant: a session that was admitted reaches no store any more once [`LentMemory::fence`] has
//! returned true. A store that was restarted has nothing that a session could reach.
//!
//! # Concurrency
//! Any thread calls. One thread looks every second which stores can be reached.

use std::{
    collections::HashSet,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use pool::{ClientId, OwnedStore, OwnerError, StoreId, Ticket};
use rdmabox::{Address, Key, KeyFileError, SessionOptions};
use rfs_proto::{BLOCK, DataPlace, StoreAccess};

use crate::space::{
    account::Space,
    lent::{LentMemory, StoreFailure},
};

/// Time for which the start waits for a store that is not there yet, or that has not noticed yet
/// that the previous server has gone.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
const JOIN_PAUSE: Duration = Duration::from_millis(100);
/// Interval at which stores are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Limit of a request to a store. Requests of clients may wait for it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Default length of the pieces of a file that stores take in turn.
pub const DEFAULT_STRIPE_UNIT: u64 = 1 << 20;

/// Stores whose memory the server uses in addition to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoresConfig {
    /// Addresses of the stores, as the server and its clients reach them.
    pub addresses: Vec<Address>,
    /// File with the key of the pool.
    pub key: PathBuf,
    /// Length of the pieces of a file that stores take in turn.
    pub unit: u64,
}

/// Why the stores cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// The key file is missing, invalid, or accessible to other users.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A store cannot be taken over.
    #[error("--store-at: {0}")]
    Join(#[from] OwnerError),
    /// A store lends less than a block, or more than a place can name.
    #[error("--store-at {address}: the store lends {len} bytes, which cannot be used")]
    Len {
        /// The store.
        address: Address,
        /// Bytes that it lends.
        len: u64,
    },
}

/// Stores that belong to this server.
#[derive(Debug)]
pub(super) struct PoolStores {
    stores: Vec<PoolStore>,
    key: Key,
    epoch: u64,
    /// Sessions that may reach stores.
    admitted: Mutex<HashSet<u64>>,
}

#[derive(Debug)]
struct PoolStore {
    owned: OwnedStore,
    /// False after a failure, until the store answers. The first failure is logged.
    is_up: AtomicBool,
}

impl PoolStore {
    /// Logs that the store answers, or why not, if that is news.
    fn note<T>(&self, outcome: Result<T, OwnerError>) -> Result<T, StoreFailure> {
        let was_up = self.is_up.swap(outcome.is_ok(), Ordering::AcqRel);
        match &outcome {
            Err(error) if was_up => {
                log::error!(
                    "{error}: files that have data there give errors (EIO), and new data goes elsewhere"
                );
            }
            Ok(_) if !was_up => log::info!("{} at {} is back", self.owned.id(), self.owned.address()),
            _ => {}
        }
        outcome.map_err(|_| StoreFailure(self.owned.id().0))
    }
}

impl PoolStores {
    /// Takes the stores over, with all of their memory.
    pub(super) fn join(config: &StoresConfig) -> Result<PoolStores, StoresError> {
        let key = Key::load(&config.key)?;
        let mut options = SessionOptions::default();
        options.key = Some(key.clone());
        options.operation_timeout = REQUEST_TIMEOUT;
        // Milliseconds since 1970: a server that starts later has a higher epoch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(now.as_millis()).unwrap_or(u64::MAX) % (1 << 44);
        let mut stores = Vec::new();
        for (number, address) in (1_u16..).zip(&config.addresses) {
            let owned = join_one(StoreId(number), address, &options, epoch)?;
            let (len, id) = (owned.len(), owned.id());
            if !(BLOCK..DataPlace::STORE_LEN).contains(&len) {
                return Err(StoresError::Len { address: address.clone(), len });
            }
            log::info!("{id} at {address} lends {}", byte_size::show(len));
            stores.push(PoolStore { owned, is_up: AtomicBool::new(true) });
        }
        Ok(PoolStores { stores, key, epoch, admitted: Mutex::default() })
    }

    /// Number and length of each store.
    pub(super) fn lengths(&self) -> Vec<(u16, u64)> {
        self.stores.iter().map(|store| (store.owned.id().0, store.owned.len())).collect()
    }

    fn store(&self, number: u16) -> Result<&PoolStore, StoreFailure> {
        let index = usize::from(number).checked_sub(1);
        index.and_then(|index| self.stores.get(index)).ok_or(StoreFailure(number))
    }

    /// Opens stores of the space that can be reached, and closes the others.
    fn look(&self, space: &Space) {
        for store in &self.stores {
            let number = store.owned.id().0;
            match store.note(store.owned.check()) {
                Ok(()) => space.open_store(number),
                Err(_) => space.close_store(number),
            }
        }
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
        let fenced = |store: &PoolStore| match store.owned.fence(ClientId(session)) {
            // Nothing of a lost store can be reached.
            Ok(()) | Err(OwnerError::Lost { .. }) => true,
            Err(error) => {
                log::debug!("session {session} is not fenced yet: {error}");
                false
            }
        };
        // All are asked, so that one store that does not answer delays no other.
        let all = self.stores.iter().map(fenced).filter(|fenced| *fenced).count() == self.stores.len();
        if all {
            self.admitted.lock().remove(&session);
        }
        all
    }
}

/// The thread that looks which stores can be reached. Dropping it stops and joins the thread.
#[derive(Debug)]
pub(super) struct StoreWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreWatch {
    /// Starts the thread.
    pub(super) fn start(stores: &Arc<PoolStores>, space: &Arc<Space>) -> io::Result<StoreWatch> {
        let (stores, space) = (Arc::clone(stores), Arc::clone(space));
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                stores.look(&space);
            }
        };
        let thread = std::thread::Builder::new().name("rfs-stores".into()).spawn(watch)?;
        Ok(StoreWatch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for StoreWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that watches the stores panicked");
        }
    }
}
