//! Sessions to stores, and the addresses of chunks.
//!
//! A session is made when a store is first used, and replaced when it has ended. Addresses of
//! chunks are valid for one session and are kept with it, so a chunk that was used before costs no
//! call.
//!
//! # Concurrency
//! Any thread may call. The lock of a store is held while its session connects and while chunks are
//! located. So threads that need the same store wait for one connection. Transfers take no lock.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{Address, ConnectError, RemoteMr, RequestError, Session, SessionOptions};

use crate::{
    ids::{ChunkId, ClientId, StoreId},
    message::{Introduction, MAX_CHUNKS, StoreAnswer, StoreRequest},
    wire::Message,
};

/// A chunk as a session reaches it.
#[derive(Clone, Debug)]
pub struct Link {
    /// The store of the chunk.
    pub store: StoreId,
    pub(crate) session: Arc<Session>,
    pub(crate) memory: RemoteMr,
}

impl Link {
    /// Returns the session that the link uses.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the memory of the chunk, with its mark after the bytes.
    pub fn memory(&self) -> &RemoteMr {
        &self.memory
    }
}

/// Sessions of one client to the stores of a pool.
#[derive(Debug)]
pub struct Stores {
    client: ClientId,
    options: SessionOptions,
    stores: Mutex<BTreeMap<StoreId, Arc<Mutex<StoreSession>>>>,
}

#[derive(Debug)]
struct StoreSession {
    address: Address,
    epoch: u32,
    session: Option<Arc<Session>>,
    located: HashMap<u32, RemoteMr>,
}

/// Why a chunk cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The store is not known.
    #[error("{0} has no address")]
    UnknownStore(StoreId),
    /// The store could not be reached. A retry is safe.
    #[error("cannot connect to {store}: {source}")]
    Connect {
        /// The store.
        store: StoreId,
        /// The reason.
        source: ConnectError,
    },
    /// A call to the store failed. A retry is safe.
    #[error("{store}: {source}")]
    Call {
        /// The store.
        store: StoreId,
        /// The reason.
        source: RequestError,
    },
    /// The store refuses this client, usually because its access was ended.
    #[error("{store} refuses: {reason}")]
    Refused {
        /// The store.
        store: StoreId,
        /// The reason.
        reason: String,
    },
    /// The store does not have the chunk.
    #[error("{0} does not exist")]
    NoChunk(ChunkId),
}

impl Stores {
    /// Makes the table of a client, without a session.
    pub fn new(client: ClientId, options: SessionOptions) -> Stores {
        Stores { client, options, stores: Mutex::default() }
    }

    /// Sets the address of a store, and the epoch of the client. A session of an earlier epoch is
    /// not used for further links.
    pub fn set(&self, store: StoreId, address: &Address, epoch: u32) {
        let mut stores = self.stores.lock();
        let new = || StoreSession { address: address.clone(), epoch, session: None, located: HashMap::new() };
        let entry = Arc::clone(stores.entry(store).or_insert_with(|| Arc::new(Mutex::new(new()))));
        drop(stores);
        let mut entry = entry.lock();
        if entry.address != *address || entry.epoch < epoch {
            *entry = new();
        }
    }

    /// Ends all sessions. Links that were made before fail from now on.
    pub fn close(&self) {
        let stores: Vec<_> = self.stores.lock().values().cloned().collect();
        for store in stores {
            if let Some(session) = store.lock().session.take() {
                session.close(Duration::ZERO);
            }
        }
    }

    /// Returns the number of stores with a session.
    pub fn connected(&self) -> usize {
        let stores: Vec<_> = self.stores.lock().values().cloned().collect();
        let is_connected = |store: &Arc<Mutex<StoreSession>>| {
            store.lock().session.as_ref().is_some_and(|session| session.is_connected())
        };
        stores.iter().filter(|store| is_connected(store)).count()
    }

    /// Returns a link to each chunk. Connects to the stores, and asks for chunks that were not used
    /// before.
    ///
    /// # Errors
    /// As [`LinkError`] says. A retry is safe.
    pub fn link(&self, chunks: &[ChunkId]) -> Result<Vec<Link>, LinkError> {
        let mut wanted: BTreeMap<StoreId, Vec<u32>> = BTreeMap::new();
        for chunk in chunks {
            wanted.entry(chunk.store).or_default().push(chunk.number);
        }
        let mut found = HashMap::new();
        for (store, numbers) in wanted {
            let entry = self.stores.lock().get(&store).cloned().ok_or(LinkError::UnknownStore(store))?;
            let mut entry = entry.lock();
            let session = entry.connect(store, self.client, &self.options)?;
            entry.locate(store, &session, &numbers)?;
            for number in numbers {
                let memory =
                    *entry.located.get(&number).ok_or(LinkError::NoChunk(ChunkId { store, number }))?;
                let link = Link { store, session: Arc::clone(&session), memory };
                found.insert(ChunkId { store, number }, link);
            }
        }
        chunks.iter().map(|chunk| found.get(chunk).cloned().ok_or(LinkError::NoChunk(*chunk))).collect()
    }
}

impl StoreSession {
    fn connect(
        &mut self,
        store: StoreId,
        client: ClientId,
        options: &SessionOptions,
    ) -> Result<Arc<Session>, LinkError> {
        if let Some(session) = self.session.as_ref().filter(|session| session.is_connected()) {
            return Ok(Arc::clone(session));
        }
        if let Some(before) = self.session.take() {
            // The store welcomes the next session when this one has ended.
            before.close(Duration::ZERO);
        }
        self.located.clear();
        let session = Session::connect(&self.address, options)
            .map_err(|source| LinkError::Connect { store, source })?;
        let introduction = Introduction { store, client, epoch: self.epoch };
        match call(store, &session, &StoreRequest::Introduce(introduction))? {
            StoreAnswer::Welcome => {}
            StoreAnswer::Refused(reason) => return Err(LinkError::Refused { store, reason }),
            other => return Err(unexpected(store, &other)),
        }
        self.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Asks for the addresses of chunks that are not known.
    fn locate(&mut self, store: StoreId, session: &Session, numbers: &[u32]) -> Result<(), LinkError> {
        let unknown: Vec<u32> =
            numbers.iter().copied().filter(|number| !self.located.contains_key(number)).collect();
        for part in unknown.chunks(MAX_CHUNKS) {
            match call(store, session, &StoreRequest::Locate(part.to_vec()))? {
                StoreAnswer::Located(places) if places.len() == part.len() => {
                    for (number, place) in part.iter().zip(places) {
                        let invalid = |error| LinkError::Call { store, source: RequestError::from(error) };
                        self.located.insert(*number, RemoteMr::from_le_bytes(place).map_err(invalid)?);
                    }
                }
                StoreAnswer::NoChunk(number) => return Err(LinkError::NoChunk(ChunkId { store, number })),
                other => return Err(unexpected(store, &other)),
            }
        }
        Ok(())
    }
}

fn call(store: StoreId, session: &Session, request: &StoreRequest) -> Result<StoreAnswer, LinkError> {
    let mut reply = Vec::new();
    session.call(&request.to_bytes(), &mut reply).map_err(|source| LinkError::Call { store, source })?;
    StoreAnswer::decode(&reply).ok_or_else(|| LinkError::Call {
        store,
        source: RequestError::Invalid("the host is no store of this version".into()),
    })
}

fn unexpected(store: StoreId, answer: &StoreAnswer) -> LinkError {
    let reason = format!("unexpected reply of the store: {answer:?}");
    LinkError::Call { store, source: RequestError::Invalid(reason) }
}
