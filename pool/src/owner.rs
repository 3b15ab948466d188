//! The owner's side of a store that lends all of its memory as one chunk.
//!
//! [`OwnedStore::join`] takes the store over. The owner zeroes memory by orders, moves bytes
//! one-sidedly, and fences clients. A store that was restarted has lost its memory: its incarnation
//! differs, and it stays [`OwnerError::Lost`].
//!
//! # Concurrency
//! Any thread may call. The lock is held while a session connects, so threads that need the store
//! wait for one connection. After a failure all calls fail for [`PAUSE`], without an attempt.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::{Address, ConnectError, RemoteMr, RequestError, Session, SessionOptions};

use crate::{
    ids::{ClientId, Incarnation, StoreId},
    message::{Order, Outcome, StoreAnswer, StoreReport, StoreRequest},
    wire::Message,
};

/// Time after a failure in which no connection is tried.
const PAUSE: Duration = Duration::from_millis(500);
/// Limit of a connection. Requests of the file system may wait for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A store whose memory belongs to this process.
pub struct OwnedStore {
    id: StoreId,
    address: Address,
    options: SessionOptions,
    epoch: u64,
    incarnation: Incarnation,
    len: u64,
    chunk: u32,
    link: Mutex<OwnerLink>,
}

#[derive(Debug)]
struct OwnerLink {
    session: Option<(Arc<Session>, RemoteMr)>,
    failed: Option<Instant>,
    is_lost: bool,
}

/// Why a store did not do as its owner said.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerError {
    /// The store cannot be reached at the moment.
    #[error("{store} at {address} cannot be reached: {reason}")]
    Unreachable {
        /// The store.
        store: StoreId,
        /// Its address.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The store answered, and refused.
    #[error("{store} at {address}: {reason}")]
    Refused {
        /// The store.
        store: StoreId,
        /// Its address.
        address: Address,
        /// The reason.
        reason: String,
    },
    /// The store was restarted: the memory that it had lent is gone.
    #[error("{store} at {address} was restarted, and has lost its memory")]
    Lost {
        /// The store.
        store: StoreId,
        /// Its address.
        address: Address,
    },
}

impl fmt::Debug for OwnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OwnedStore { id, address, len, .. } = self;
        f.debug_struct("OwnedStore")
            .field("id", id)
            .field("address", address)
            .field("len", len)
            .finish_non_exhaustive()
    }
}

impl OwnedStore {
    /// Takes a store over, with all of its memory, which is zero then. `options` have the key of
    /// the pool. `epoch` is higher than that of every previous owner.
    ///
    /// # Errors
    /// [`OwnerError`]. A retry is safe.
    pub fn join(
        id: StoreId,
        address: &Address,
        options: &SessionOptions,
        epoch: u64,
    ) -> Result<OwnedStore, OwnerError> {
        let link = Mutex::new(OwnerLink { session: None, failed: None, is_lost: false });
        let mut options = options.clone();
        options.connect_timeout = options.connect_timeout.min(CONNECT_TIMEOUT);
        let (address, incarnation) = (address.clone(), Incarnation(0));
        let mut store = OwnedStore { id, address, options, epoch, incarnation, len: 0, chunk: 0, link };
        let (session, incarnation, capacity) = store.own()?;
        let bytes = capacity / 4096 * 4096;
        store.ordered(&session, Order::Join(id))?;
        let chunk = match store.ordered(&session, Order::Prepare { count: 1, bytes })? {
            Outcome::Chunks(chunks) if chunks.len() == 1 => chunks[0],
            other => return Err(store.refused(format!("unexpected reply: {other:?}"))),
        };
        (store.incarnation, store.len, store.chunk) = (incarnation, bytes, chunk);
        let memory = store.locate(&session)?;
        store.link.lock().session = Some((session, memory));
        Ok(store)
    }

    /// Returns the number of the store.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the address of the store.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the number of bytes that the store lends.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the store lends nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of the chunk that has the memory.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Checks that the store can be reached, and connects to it if necessary.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn check(&self) -> Result<(), OwnerError> {
        self.link().map(|_| ())
    }

    /// Asks the store for its numbers, and connects to it if necessary.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn report(&self) -> Result<StoreReport, OwnerError> {
        let (session, _) = self.link()?;
        match self.call(&session, &StoreRequest::Report)? {
            StoreAnswer::Report(report) => Ok(report),
            other => Err(self.refused(format!("unexpected reply: {other:?}"))),
        }
    }

    /// Returns the memory to the store, and leaves it. All later calls fail.
    ///
    /// # Errors
    /// [`OwnerError`]. The store then keeps the memory until its next owner comes.
    pub fn leave(&self) -> Result<(), OwnerError> {
        let outcome = self
            .link()
            .and_then(|(session, _)| self.ordered(&session, Order::Discard(vec![self.chunk])).map(|_| ()));
        let mut link = self.link.lock();
        link.is_lost = true;
        if let Some((session, _)) = link.session.take() {
            session.close(Duration::ZERO);
        }
        outcome
    }

    /// Zeroes a range.
    ///
    /// # Errors
    /// [`OwnerError`]. The range may be zero in part.
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), OwnerError> {
        let (session, _) = self.link()?;
        self.ordered(&session, Order::Zero { chunk: self.chunk, offset, len }).map(|_| ())
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OwnerError> {
        let (session, memory) = self.link()?;
        let remote = memory.for_read(offset, out.len()).map_err(|error| self.refused(error.to_string()))?;
        session.read(remote, out).map_err(|error| self.failed(error))
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`OwnerError`]. The bytes may be in place in part.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), OwnerError> {
        let (session, memory) = self.link()?;
        let remote = memory.for_write(offset, data.len()).map_err(|error| self.refused(error.to_string()))?;
        session.write(remote, data).map_err(|error| self.failed(error))
    }

    /// Ends the access of a client. Nothing of the client can reach the store afterwards.
    ///
    /// # Errors
    /// [`OwnerError`]. The client may still have access, unless the store is lost.
    pub fn fence(&self, client: ClientId) -> Result<(), OwnerError> {
        let (session, _) = self.link()?;
        self.ordered(&session, Order::Fence { client, epoch: u32::MAX }).map(|_| ())
    }

    /// Returns the session and the memory.
    fn link(&self) -> Result<(Arc<Session>, RemoteMr), OwnerError> {
        let mut link = self.link.lock();
        let (store, address) = (self.id, self.address.clone());
        if let Some((session, memory)) = link.session.as_ref().filter(|(session, _)| session.is_connected()) {
            return Ok((Arc::clone(session), *memory));
        }
        if link.is_lost {
            return Err(OwnerError::Lost { store, address });
        }
        if link.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            let reason = "the last attempt failed a moment ago".into();
            return Err(OwnerError::Unreachable { store, address, reason });
        }
        if let Some((before, _)) = link.session.take() {
            // The store obeys the next session when this one has ended.
            before.close(Duration::ZERO);
        }
        let made = self.own().and_then(|(session, incarnation, _)| {
            if incarnation != self.incarnation {
                link.is_lost = true;
                return Err(OwnerError::Lost { store, address });
            }
            let memory = self.locate(&session)?;
            Ok((session, memory))
        });
        link.failed = made.is_err().then(Instant::now);
        if let Ok((session, memory)) = &made {
            link.session = Some((Arc::clone(session), *memory));
        }
        made
    }

    /// Connects, and takes the store over. Returns its incarnation and capacity.
    fn own(&self) -> Result<(Arc<Session>, Incarnation, u64), OwnerError> {
        let (store, address) = (self.id, self.address.clone());
        let session = Session::connect(&self.address, &self.options).map_err(|error| match error {
            ConnectError::Unreachable { .. } => {
                OwnerError::Unreachable { store, address, reason: error.to_string() }
            }
            other => self.refused(other.to_string()),
        })?;
        match self.call(&session, &StoreRequest::Own { epoch: self.epoch })? {
            StoreAnswer::Owned { incarnation, capacity } => Ok((session, incarnation, capacity)),
            StoreAnswer::Refused(reason) => Err(self.refused(reason)),
            other => Err(self.refused(format!("unexpected reply: {other:?}"))),
        }
    }

    fn locate(&self, session: &Session) -> Result<RemoteMr, OwnerError> {
        match self.call(session, &StoreRequest::Locate(vec![self.chunk]))? {
            StoreAnswer::Located(places) if places.len() == 1 => {
                RemoteMr::from_le_bytes(places[0]).map_err(|error| self.refused(error.to_string()))
            }
            other => Err(self.refused(format!("unexpected reply: {other:?}"))),
        }
    }

    fn ordered(&self, session: &Session, order: Order) -> Result<Outcome, OwnerError> {
        match self.call(session, &StoreRequest::Order(order))? {
            StoreAnswer::Outcome(Outcome::Failed(error)) => Err(self.refused(error.to_string())),
            StoreAnswer::Outcome(outcome) => Ok(outcome),
            other => Err(self.refused(format!("unexpected reply: {other:?}"))),
        }
    }

    fn call(&self, session: &Session, request: &StoreRequest) -> Result<StoreAnswer, OwnerError> {
        let mut reply = Vec::new();
        session.call(&request.to_bytes(), &mut reply).map_err(|error| self.failed(error))?;
        let other = || self.refused("the host is no store of this version".into());
        StoreAnswer::decode(&reply).ok_or_else(other)
    }

    fn failed(&self, error: RequestError) -> OwnerError {
        match error {
            RequestError::Rejected { reason } => self.refused(reason),
            other => OwnerError::Unreachable {
                store: self.id,
                address: self.address.clone(),
                reason: other.to_string(),
            },
        }
    }

    fn refused(&self, reason: String) -> OwnerError {
        OwnerError::Refused { store: self.id, address: self.address.clone(), reason }
    }
}
