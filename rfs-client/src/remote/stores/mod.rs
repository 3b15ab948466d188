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
use pool::{ChunkId, ClientId, Link, LinkError, StoreId, Stores, queue_pairs};
use rdmabox::{
    Address, Key, Op as Step, ProviderKind, RemoteAddr, RequestError, Secret, Session, SessionOptions,
    WcStatus, across,
};
use rfs_proto::{DataPlace, Errno, Reply, Request, StoreAccess, decode_reply, encode_request};
use smallvec::SmallVec;

use self::late_writes::{ALL_STORES, LateWrites};
use crate::remote::{
    address::Place,
    operation::{Transfer, start_at},
};

/// Most steps of a list for one session, below the depth of every queue pair.
const MAX_STEPS: usize = 16;
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

/// The known state of a store.
#[derive(Debug, Default)]
struct StoreState {
    /// The way to the store, once the server has told it.
    known: Option<(Stores, ChunkId, Address)>,
    outage: Option<Outage>,
}

/// A store to which no connection could be made since a loss.
#[derive(Clone, Debug)]
struct Outage {
    since: Instant,
    last_attempt: Instant,
    reason: String,
}

/// Why a transfer failed.
enum Failure {
    /// A request failed for good.
    Final(RequestError),
    /// The session to a store was lost, at this time.
    Lost(u16, Instant, String),
}

/// The steps of several sessions.
#[derive(Debug, Default)]
struct Lists<'a> {
    lists: SmallVec<[List<'a>; 4]>,
}

/// The steps of a session.
#[derive(Debug)]
struct List<'a> {
    store: u16,
    session: Arc<Session>,
    steps: Vec<Step<'a>>,
}

/// A step on a place: bytes to write, or a buffer to fill.
#[derive(Debug)]
pub(crate) enum Move<'a> {
    Write(Place, &'a [u8]),
    Read(Place, &'a mut [u8]),
}

impl Move<'_> {
    fn place(&self) -> Place {
        match self {
            Move::Write(place, _) | Move::Read(place, _) => *place,
        }
    }
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

impl StoreState {
    /// Returns a link to the chunk, or why there is none.
    fn connect(&self) -> Result<Link, LinkFailure> {
        let other = |reason: String| LinkFailure::Other(reason);
        let (stores, chunk, address) = self.known.as_ref().ok_or_else(|| other("is not known".into()))?;
        let links = stores.link(&[*chunk]).map_err(|error| {
            let reason = format!("at {address}: {error}");
            if matches!(error, LinkError::Refused { .. }) {
                LinkFailure::Refused(reason)
            } else {
                other(reason)
            }
        })?;
        links.into_iter().next().ok_or_else(|| other(format!("at {address}: it has no chunk")))
    }

    /// Forgets the way to the store, and ends the session.
    fn forget_access(&mut self) {
        if let Some((stores, ..)) = self.known.take() {
            stores.close();
        }
    }
}

/// Why there is no link to a store.
#[derive(Debug)]
enum LinkFailure {
    /// The store refuses the client.
    Refused(String),
    Other(String),
}

impl LinkFailure {
    fn into_reason(self) -> String {
        match self {
            LinkFailure::Refused(reason) | LinkFailure::Other(reason) => reason,
        }
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

fn own_step<'a>(step: &'a mut Move<'_>, remote: RemoteAddr) -> Step<'a> {
    match step {
        Move::Write(_, data) => Step::Write { remote, data },
        Move::Read(_, out) => Step::Read { remote, out },
    }
}

/// Returns the step at a store, or why the store has no such bytes.
fn store_step<'a>(step: &'a mut Move<'_>, link: &Link) -> Result<Step<'a>, String> {
    let offset = DataPlace::from_number(step.place().offset).offset();
    let memory = link.memory();
    match step {
        Move::Write(_, data) => {
            let remote = memory.for_write(offset, data.len()).map_err(|error| error.to_string())?;
            Ok(Step::Write { remote, data })
        }
        Move::Read(_, out) => {
            let remote = memory.for_read(offset, out.len()).map_err(|error| error.to_string())?;
            Ok(Step::Read { remote, out })
        }
    }
}

/// Starts a transfer at a store. It fails if the store has no such bytes.
fn start_stored(link: &Link, transfer: Transfer) {
    let place = transfer.place();
    let (memory, offset) = (link.memory(), DataPlace::from_number(place.offset).offset());
    let remote = match transfer.is_write() {
        false => memory.for_read(offset, transfer.byte_len()),
        true => memory.for_write(offset, transfer.byte_len()),
    };
    match remote {
        Ok(remote) => start_at(link.session(), &|_| remote, transfer),
        Err(error) => transfer.fail(invalid(place.store(), &error.to_string())),
    }
}

fn invalid(store: u16, reason: &str) -> RequestError {
    RequestError::Invalid(format!("store {store}: {reason}"))
}

impl<'a> Lists<'a> {
    fn push(&mut self, store: u16, session: &Arc<Session>, step: Step<'a>) {
        match self.lists.iter_mut().find(|list| list.store == store) {
            Some(list) => list.steps.push(step),
            None => self.lists.push(List { store, session: Arc::clone(session), steps: vec![step] }),
        }
    }

    /// Runs the lists of all sessions, in rounds of up to [`MAX_STEPS`] steps for each. Returns the
    /// first error with its store. An error of the server comes first.
    fn run(mut self) -> Result<(), (u16, RequestError)> {
        let longest = self.lists.iter().map(|list| list.steps.len()).max().unwrap_or(0);
        for round in 0..longest.div_ceil(MAX_STEPS) {
            let (mut stores, mut parts) = (SmallVec::<[u16; 4]>::new(), SmallVec::<[_; 4]>::new());
            for List { store, session, steps } in &mut self.lists {
                let end = steps.len().min((round + 1) * MAX_STEPS);
                if let Some(part) = steps.get_mut(round * MAX_STEPS..end).filter(|part| !part.is_empty()) {
                    stores.push(*store);
                    parts.push((&**session, part));
                }
            }
            let outcomes = stores.into_iter().zip(across(&mut parts));
            let errors = outcomes.filter_map(|(store, outcome)| Some((store, outcome.err()?)));
            if let Some(first) = errors.min_by_key(|(store, _)| *store) {
                return Err(first);
            }
        }
        Ok(())
    }
}
