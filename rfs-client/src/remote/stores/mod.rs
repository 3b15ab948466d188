//! Sessions to the stores that have a part of the data.
//!
//! A session is made when the first place of a store is used. The server tells the address of the
//! store and a ticket. A transfer moves data to and from several stores at once. Requests for the
//! places of a store that cannot be reached wait for it for [`GRACE`], and fail then. Other
//! requests go on.
//!
//! Invariant: a failed write to a store is in [`LateWrites`] before the error is returned. The
//! server hears of the doubt before any other request of the client ([`StoreLinks::settle`]). So it
//! gives no space to another file while bytes of the write may arrive there.
//!
//! # Concurrency
//! Any thread. The lock of a store is held while its session connects: threads that need the store
//! wait for one connection. Links that are in use are found under a shared lock.

mod late_writes;
mod lists;
mod moves;
mod store_state;

pub(crate) use self::moves::Move;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use pool::{ChunkId, ClientId, Link, StoreId, Stores, queue_pairs};
use rdmabox::{
    Address, Key, ProviderKind, RemoteAddr, RequestError, Secret, Session, SessionOptions, WcStatus,
};
use rfs_proto::{Errno, Reply, Request, StoreAccess, decode_reply, encode_request};

use self::{
    late_writes::{ALL_STORES, LateWrites},
    lists::Lists,
    moves::{invalid, own_step, start_stored, store_step},
    store_state::{LinkFailure, Outage, StoreState},
};
use crate::remote::{address::Place, operation::Transfer};

/// Time after a failed connection in which no other is tried.
const PAUSE: Duration = Duration::from_millis(500);
/// Limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time from the loss of a store on in which requests wait for it. A waiting request holds layouts,
/// so the time is well below the recall timeout of a server.
const GRACE: Duration = Duration::from_secs(2);
/// Pause of a request that waits.
const GRACE_PAUSE: Duration = Duration::from_millis(20);

/// The sessions of a client to stores.
#[derive(Debug)]
pub(crate) struct StoreLinks {
    /// The session to the server.
    server: Arc<Session>,
    /// Whether the server knows [`Request::FenceStore`].
    can_fence: bool,
    links: RwLock<HashMap<u16, Arc<Link>>>,
    stores: Mutex<HashMap<u16, Arc<Mutex<StoreState>>>>,
    doubts: LateWrites,
    /// Whether the client has asked for access to a store in this session or in an earlier one.
    reached: Arc<AtomicBool>,
}

/// Why a transfer failed.
enum Failure {
    /// A request failed for good.
    Final(RequestError),
    /// The session to a store was lost, at this time.
    Lost(u16, Instant, String),
}

impl StoreLinks {
    /// Makes the table of a client that is attached over `server`, without a session. The session
    /// to the server speaks `version`. With `continues`, the client continues a session of the
    /// server. `reached` tells whether a store was reached in that session: its writes may be under
    /// way.
    pub(crate) fn new(
        server: Arc<Session>,
        (continues, version): (bool, u32),
        reached: Arc<AtomicBool>,
    ) -> StoreLinks {
        let can_fence = Request::FenceStore { store: ALL_STORES }.since() <= version;
        let (links, stores) = Default::default();
        let table = StoreLinks { server, can_fence, links, stores, doubts: LateWrites::default(), reached };
        if continues && table.reached.load(Ordering::Acquire) {
            table.doubt(ALL_STORES);
        }
        table
    }

    /// Notes that a write may arrive at a store late.
    fn doubt(&self, store: u16) {
        // A server that does not know the request would end the session.
        if self.can_fence {
            self.doubts.add(store);
        }
    }

    /// Moves bytes of any places, at all stores at once. `own` translates places of the server.
    ///
    /// # Errors
    /// The error of the server's session, if there is one, else [`RequestError::Invalid`] with the
    /// name of a store.
    pub(crate) fn run(
        &self,
        moves: &mut [Move<'_>],
        own: impl Fn(Place) -> RemoteAddr,
    ) -> Result<(), RequestError> {
        let outcome = self.run_until_done(moves, own);
        if outcome.is_err() {
            let written = moves.iter().filter(|step| matches!(step, Move::Write(..)));
            written.map(|step| step.place().store()).filter(|store| *store != 0).for_each(|store| {
                self.doubt(store);
            });
            // If the server cannot be asked now, it is asked before the next request.
            let _ = self.settle();
        }
        outcome
    }

    /// Tells the server at which stores writes of this client may arrive late. Returns at once if
    /// there are none. Every request of the client comes after this call: its effect may be that
    /// the server frees space which the client has used.
    ///
    /// # Errors
    /// The server has not answered, so the request must not be sent.
    pub(crate) fn settle(&self) -> Result<(), RequestError> {
        if !self.doubts.any() {
            return Ok(());
        }
        for (store, number) in self.doubts.all() {
            let (mut request, mut reply) = (Vec::new(), Vec::new());
            encode_request(&Request::FenceStore { store }, &mut request);
            self.server.call(&request, &mut reply)?;
            match decode_reply(&reply) {
                // EPROTO: the session has no access to stores any more.
                Ok(Reply::Done | Reply::Error(Errno::EPROTO)) => self.doubts.settled(store, number),
                Ok(Reply::Error(errno)) => {
                    log::warn!("the server does not end the access to store {store} now: {errno}");
                }
                _ => log::warn!("the server does not end the access to store {store} now"),
            }
        }
        Ok(())
    }

    fn run_until_done(
        &self,
        moves: &mut [Move<'_>],
        own: impl Fn(Place) -> RemoteAddr,
    ) -> Result<(), RequestError> {
        let give_up = Instant::now() + 2 * GRACE;
        loop {
            match self.run_once(moves, &own) {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Lost(_, since, _)) if since.elapsed() < GRACE && Instant::now() < give_up => {
                    thread::sleep(GRACE_PAUSE);
                }
                Err(Failure::Lost(store, _, reason)) => return Err(invalid(store, &reason)),
            }
        }
    }

    fn run_once(&self, moves: &mut [Move<'_>], own: &impl Fn(Place) -> RemoteAddr) -> Result<(), Failure> {
        let mut lists = Lists::default();
        for step in moves {
            let place = step.place();
            match place.store() {
                0 => lists.push(0, &self.server, own_step(step, own(place))),
                store => {
                    let link = self.link(store)?;
                    let step = store_step(step, &link);
                    let step = step.map_err(|reason| Failure::Final(invalid(store, &reason)))?;
                    lists.push(store, link.session(), step);
                }
            }
        }
        lists.run().map_err(|(store, error)| match store {
            0 => Failure::Final(error),
            store => self.failed(store, &error),
        })
    }

    /// Returns true if there is a session to a store.
    pub(crate) fn is_connected(&self, store: u16) -> bool {
        self.connected(store).is_some()
    }

    /// Returns the link to a store whose session is up.
    fn connected(&self, store: u16) -> Option<Arc<Link>> {
        self.present(store).filter(|link| link.session().is_connected())
    }

    /// Returns the link to a store, whether its session is up or not. A look at the session may
    /// find its end, and run callbacks of requests, which use the links. So no look is made under
    /// the lock.
    fn present(&self, store: u16) -> Option<Arc<Link>> {
        self.links.read().get(&store).cloned()
    }

    /// Starts transfers, those of one store in one batch, without blocking. They fail if there is
    /// no session to their store, or if the store has no such bytes.
    pub(crate) fn start(&self, mut transfers: Vec<Transfer>) {
        while let Some(store) = transfers.first().map(|transfer| transfer.place().store()) {
            let batch: Vec<_> =
                transfers.extract_if(.., |transfer| transfer.place().store() == store).collect();
            match self.connected(store) {
                Some(link) => {
                    link.session().together(|| batch.into_iter().for_each(|one| start_stored(&link, one)));
                }
                None => batch.into_iter().for_each(|transfer| transfer.fail(RequestError::Disconnected)),
            }
        }
    }

    /// Closes all sessions to stores.
    pub(crate) fn close(&self) {
        let links = std::mem::take(&mut *self.links.write());
        // The end of a session runs callbacks, which use the links.
        drop(links);
        let stores: Vec<_> = self.stores.lock().drain().map(|(_, store)| store).collect();
        for store in stores {
            if let Some((stores, ..)) = &store.lock().known {
                stores.close();
            }
        }
    }

    /// Returns the failure of a request to a store. The next attempt makes a new session if this
    /// one has ended.
    fn failed(&self, store: u16, error: &RequestError) -> Failure {
        if let Some(ended) = self.present(store).filter(|link| !link.session().is_connected()) {
            self.remove(store, &ended);
        }
        match error {
            RequestError::Disconnected
            | RequestError::Flushed
            | RequestError::Completion(WcStatus::RetryExcErr | WcStatus::WrFlushErr) => {
                Failure::Lost(store, Instant::now(), error.to_string())
            }
            other => Failure::Final(invalid(store, &other.to_string())),
        }
    }

    /// Removes a link to a store, unless a later one has taken its place.
    fn remove(&self, store: u16, ended: &Arc<Link>) {
        let mut links = self.links.write();
        if links.get(&store).is_some_and(|link| Arc::ptr_eq(link, ended)) {
            // The caller has the link, so it is not dropped under the lock.
            links.remove(&store);
        }
    }

    /// Returns a link to a store whose session is up.
    fn link(&self, store: u16) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.connected(store) {
            return Ok(link);
        }
        let entry = Arc::clone(self.stores.lock().entry(store).or_default());
        let mut entry = entry.lock();
        // Another thread may have connected meanwhile.
        if let Some(link) = self.connected(store) {
            return Ok(link);
        }
        if let Some(outage) = entry.outage.as_ref().filter(|outage| outage.last_attempt.elapsed() < PAUSE) {
            return Err(Failure::Lost(store, outage.since, outage.reason.clone()));
        }
        if entry.known.is_none() {
            entry.known = Some(self.ask(store).map_err(Failure::Final)?);
        }
        let mut linked = entry.connect();
        if matches!(linked, Err(LinkFailure::Refused(_))) {
            // The server has ended the access. It tells another one.
            entry.forget_access();
            entry.known = Some(self.ask(store).map_err(Failure::Final)?);
            linked = entry.connect();
        }
        match linked.map_err(LinkFailure::into_reason) {
            Ok(link) => {
                if entry.outage.take().is_some() {
                    log::info!("store {store} is back");
                }
                let link = Arc::new(link);
                // An earlier link is dropped after the lock is released.
                let _earlier = self.links.write().insert(store, Arc::clone(&link));
                Ok(link)
            }
            Err(reason) => {
                let now = Instant::now();
                if entry.outage.is_none() {
                    log::error!("store {store} {reason}: requests for the data there fail (EIO)");
                }
                let since = entry.outage.as_ref().map_or(now, |outage| outage.since);
                entry.outage = Some(Outage { since, last_attempt: now, reason: reason.clone() });
                Err(Failure::Lost(store, since, reason))
            }
        }
    }

    /// Asks the server for the way to a store.
    fn ask(&self, store: u16) -> Result<(Stores, ChunkId, Address), RequestError> {
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        encode_request(&Request::ReachStore { store }, &mut request);
        self.reached.store(true, Ordering::Release);
        self.server.call(&request, &mut reply)?;
        let access = match decode_reply(&reply) {
            Ok(Reply::Store(access)) => access,
            Ok(Reply::Error(errno)) => return Err(invalid(store, &errno.to_string())),
            Ok(other) => return Err(invalid(store, &format!("unexpected reply: {other:?}"))),
            Err(error) => return Err(invalid(store, &error.to_string())),
        };
        let StoreAccess { address, chunk, client, ticket, secret } = access;
        let wrong = |what: &str| invalid(store, &format!("the server names {what} that is not valid"));
        let address: Address = address.parse().map_err(|_| wrong("an address"))?;
        let id = ticket.parse().map_err(|_| wrong("a ticket"))?;
        let secret = Secret::new(&secret).map_err(|_| wrong("a secret"))?;
        let mut options = options_for(self.server.options(), &address, Key { id, secret });
        // The store is in the table already.
        options.queue_pairs = queue_pairs(options.queue_pairs, self.stores.lock().len());
        let stores = Stores::new(ClientId(client), options);
        stores.set(StoreId(store), &address, 0);
        Ok((stores, ChunkId { store: StoreId(store), number: chunk }, address))
    }
}

/// Returns the options of a session to a store, from those of the session to the server.
fn options_for(server: &SessionOptions, address: &Address, ticket: Key) -> SessionOptions {
    let mut options = server.clone();
    options.key = Some(ticket);
    options.started_reply = None;
    options.connect_timeout = options.connect_timeout.min(CONNECT_TIMEOUT);
    // A store may listen on another kind of address than the server.
    let is_tcp = matches!(address, Address::Tcp { .. });
    options.provider = options.provider.filter(|provider| is_tcp && *provider == ProviderKind::Tcp);
    options
}
