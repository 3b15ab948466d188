//! The service of a store's host.
//!
//! Calls of clients are answered at once. Orders go to the worker, and their replies are deferred.
//! Only the last session that led with the store's incarnation may order: a former owner cannot
//! interfere with its successor.
//!
//! Invariant: a session of a client or of the owner is welcome only when all its earlier sessions
//! have ended. So no WRITE of an earlier session lands after one of a later session.
//!
//! # Concurrency
//! Threads of the host, and the worker. `state` and `orders` are never held together, and neither
//! is held while memory is allocated or freed, or while a deferred reply is given.

use std::{collections::BTreeSet, sync::OnceLock};

use parking_lot::Mutex;
use rdmabox::{CallError, KeyId, Peer, PendingReply, Reply, Service, SessionTerminator};

use super::{
    chunks::Chunks,
    options::StoreOptions,
    orders::Orders,
    visitors::{Refusal, Visitors},
    waits::Waits,
};
use crate::{
    ids::{Incarnation, StoreId},
    message::{Introduction, MAX_CHUNKS, Order, OrderError, Outcome, StoreAnswer, StoreReport, StoreRequest},
    ticket::Ticket,
    wire::Message,
};

/// The state of a store.
#[derive(Debug)]
pub(super) struct Lending {
    incarnation: Incarnation,
    capacity: u64,
    pool_key: Option<KeyId>,
    terminator: OnceLock<SessionTerminator>,
    orders: Mutex<Option<Orders>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    id: Option<StoreId>,
    /// `None` until the host listens.
    chunks: Option<Chunks>,
    visitors: Visitors,
    /// Replies that wait for the end of sessions.
    waits: Waits<(PendingReply, StoreAnswer)>,
    /// The session of the owner.
    leader: Option<u64>,
    /// All sessions with the key of the pool that have owned the store and have not ended.
    owners: BTreeSet<u64>,
    /// The epoch of the owner that has the key of the pool.
    epoch: u64,
}

impl Lending {
    pub(super) fn new(options: &StoreOptions, orders: Orders) -> Lending {
        Lending {
            incarnation: options.incarnation,
            capacity: options.capacity,
            pool_key: options.pool_key.as_ref().map(|key| key.id),
            terminator: OnceLock::new(),
            orders: Mutex::new(Some(orders)),
            state: Mutex::default(),
        }
    }

    pub(super) fn begin(&self, terminator: SessionTerminator) {
        // Called once.
        let _ = self.terminator.set(terminator);
    }

    pub(super) fn lend(&self, chunks: Chunks) {
        self.state.lock().chunks = Some(chunks);
    }

    /// Takes no further orders.
    pub(super) fn stop(&self) {
        self.orders.lock().take();
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn report(&self) -> StoreReport {
        let state = self.state.lock();
        let chunks = state.chunks.as_ref();
        StoreReport {
            chunks: chunks.map_or(0, Chunks::len),
            registrations: chunks.map_or(0, Chunks::registrations),
            clients: state.visitors.len(),
        }
    }

    /// Makes the caller the owner of the store, once its earlier sessions have ended.
    fn own(&self, peer: &Peer, epoch: u64, reply: &mut Reply<'_>) -> Option<StoreAnswer> {
        let refused = |reason: &str| Some(StoreAnswer::Refused(reason.into()));
        if self.pool_key.is_none() || peer.key() != self.pool_key.as_ref() {
            return refused("only a program with the key of the pool owns its stores");
        }
        let mut state = self.state.lock();
        if epoch < state.epoch {
            return refused("a later server uses this store");
        }
        if epoch > state.epoch && !state.owners.is_empty() {
            return refused("another server uses this store");
        }
        if state.owners.last().is_some_and(|last| *last > peer.id()) {
            return refused("a later session of this server uses this store");
        }
        let (mut ended, mut discarded) = (Vec::new(), Vec::new());
        if epoch > state.epoch {
            (state.epoch, state.id) = (epoch, None);
            ended = state.visitors.begin_anew();
            discarded = state.chunks.as_mut().map(Chunks::clear).unwrap_or_default();
        }
        state.owners.insert(peer.id());
        state.leader = Some(peer.id());
        let earlier: Vec<u64> = state.owners.iter().copied().filter(|owner| *owner != peer.id()).collect();
        let owned = StoreAnswer::Owned { incarnation: self.incarnation, capacity: self.capacity };
        let answer = state.welcome(peer, &earlier, owned, reply);
        drop(state);
        self.end(&ended, "another server has taken the store over");
        self.end(&earlier, "the server has made another session");
        drop(discarded);
        answer
    }

    /// Welcomes a client, once its earlier sessions have ended.
    fn introduce(
        &self,
        peer: &Peer,
        introduction: Introduction,
        reply: &mut Reply<'_>,
    ) -> Option<StoreAnswer> {
        let refused = |reason: String| Some(StoreAnswer::Refused(reason));
        let Introduction { store, client, epoch } = introduction;
        let mut state = self.state.lock();
        let admits = |ticket: Ticket| (ticket.client, ticket.epoch) == (client, state.epoch);
        if self.pool_key.is_some() && !peer.key().and_then(Ticket::of).is_some_and(admits) {
            return refused(format!("no ticket for {client} at this time"));
        }
        if state.id != Some(store) {
            return refused(format!("this is not {store}"));
        }
        let earlier = match state.visitors.enter(peer.id(), client, epoch) {
            Ok(earlier) => earlier,
            Err(Refusal::Ended) => {
                return refused(format!(
                    "the access of {client} in epoch {epoch} has ended: ask the master for the present epoch"
                ));
            }
            Err(Refusal::Superseded) => return refused(format!("{client} has made a later session")),
            Err(Refusal::Known) => return refused("the session has another client".into()),
        };
        let answer = state.welcome(peer, &earlier, StoreAnswer::Welcome, reply);
        drop(state);
        // The client has lost them, or it would not make another.
        self.end(&earlier, "the client has made another session");
        answer
    }

    fn locate(&self, peer: &Peer, numbers: &[u32]) -> Result<StoreAnswer, CallError> {
        let state = self.state.lock();
        let is_known = state.visitors.contains(peer.id()) || state.leader == Some(peer.id());
        if !is_known || state.waits.is_newcomer(peer.id()) {
            return Err("a client introduces itself before it asks for chunks".into());
        }
        if numbers.len() > MAX_CHUNKS {
            return Err(CallError::EndSession(format!("asked for {} chunks at once", numbers.len())));
        }
        let Some(chunks) = &state.chunks else { return Err("the store is starting".into()) };
        Ok(match chunks.locate(peer, numbers) {
            Ok(located) => StoreAnswer::Located(located),
            Err(number) => StoreAnswer::NoChunk(number),
        })
    }

    /// Passes an order to the worker.
    fn order(&self, peer: &Peer, order: Order, reply: &mut Reply<'_>) -> Result<(), CallError> {
        if !self.state.lock().is_led_by(peer.id()) {
            return Err("only the owner of the pool gives orders".into());
        }
        let orders = self.orders.lock();
        let sender = orders.as_ref().ok_or("the store is stopping")?;
        sender.send((order, reply.defer())).map_err(|_| CallError::from("the store has stopped"))
    }

    /// Executes an order on the thread of the worker.
    pub(super) fn execute(&self, order: Order, reply: PendingReply) {
        let outcome = match order {
            Order::Join(id) => {
                self.state.lock().id = Some(id);
                Ok(Outcome::Done)
            }
            Order::List { from } => {
                let state = self.state.lock();
                let listed = state.chunks.as_ref().map(|chunks| chunks.list(from));
                Ok(Outcome::Chunks(listed.unwrap_or_default()))
            }
            Order::Prepare { count, bytes } => self.prepare(count, bytes).map(Outcome::Chunks),
            Order::Discard(numbers) => {
                let removed = self.state.lock().chunks.as_mut().map(|chunks| chunks.remove(&numbers));
                drop(removed);
                Ok(Outcome::Done)
            }
            Order::Mark { chunks: numbers, value } => {
                let marked = self.state.lock().chunks.as_ref().map(|chunks| chunks.mark(&numbers, value));
                marked.transpose().map(|_| Outcome::Done)
            }
            Order::Zero { chunk, offset, len } => self.zero(chunk, offset, len).map(|()| Outcome::Done),
            Order::Fence { client, epoch } => {
                let mut state = self.state.lock();
                let sessions = state.visitors.fence(client, epoch);
                if !sessions.is_empty() {
                    let done = StoreAnswer::Outcome(Outcome::Done);
                    state.waits.add(&sessions, None, (reply, done));
                    drop(state);
                    return self.end(&sessions, "the master ended the client's access");
                }
                Ok(Outcome::Done)
            }
        };
        answer(reply, &StoreAnswer::Outcome(outcome.unwrap_or_else(Outcome::Failed)));
    }

    fn prepare(&self, count: u32, bytes: u64) -> Result<Vec<u32>, OrderError> {
        let starting = || OrderError::NoMemory("the store is starting".into());
        let maker = self.state.lock().chunks.as_ref().ok_or_else(starting)?.maker(count, bytes)?;
        // One worker: no other order changes the number of chunks meanwhile.
        let made = maker.make(count, bytes)?;
        Ok(self.state.lock().chunks.as_mut().ok_or_else(starting)?.enter(made))
    }

    fn zero(&self, chunk: u32, offset: u64, len: u64) -> Result<(), OrderError> {
        let starting = || OrderError::NoMemory("the store is starting".into());
        let memory = self.state.lock().chunks.as_ref().ok_or_else(starting)?.range(chunk, offset, len)?;
        // The range lies inside the memory, whose length is a `usize`.
        memory.zero_present(offset as usize, len as usize);
        Ok(())
    }

    /// Ends sessions. Replies that wait for their end are given in `disconnected`.
    fn end(&self, sessions: &[u64], reason: &str) {
        let Some(terminator) = self.terminator.get() else { return };
        for session in sessions {
            // False: the session is ending already.
            terminator.end(*session, reason);
        }
    }
}

impl State {
    /// Returns true if the session is the owner's, and all its earlier ones have ended.
    fn is_led_by(&self, session: u64) -> bool {
        self.leader == Some(session) && !self.waits.is_newcomer(session)
    }

    /// Returns the welcome of a session, or defers it until the earlier sessions have ended.
    fn welcome(
        &mut self,
        peer: &Peer,
        earlier: &[u64],
        welcome: StoreAnswer,
        reply: &mut Reply<'_>,
    ) -> Option<StoreAnswer> {
        if earlier.is_empty() {
            return Some(welcome);
        }
        self.waits.add(earlier, Some(peer.id()), (reply.defer(), welcome));
        None
    }
}

fn answer(reply: PendingReply, answer: &StoreAnswer) {
    reply.answer(&answer.to_bytes());
}

impl Service for Lending {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        let answer = match StoreRequest::decode(request) {
            Some(StoreRequest::Lead(incarnation)) if incarnation == self.incarnation => {
                self.state.lock().leader = Some(peer.id());
                StoreAnswer::Welcome
            }
            Some(StoreRequest::Lead(_)) => StoreAnswer::Refused("another store runs here".into()),
            Some(StoreRequest::Own { epoch }) => match self.own(peer, epoch, reply) {
                Some(answer) => answer,
                None => return Ok(()),
            },
            Some(StoreRequest::Introduce(introduction)) => match self.introduce(peer, introduction, reply) {
                Some(answer) => answer,
                None => return Ok(()),
            },
            Some(StoreRequest::Locate(numbers)) => self.locate(peer, &numbers)?,
            Some(StoreRequest::Order(order)) => return self.order(peer, order, reply),
            Some(StoreRequest::Report) => StoreAnswer::Report(self.report()),
            None => return Err("not a call of this version of the pool".into()),
        };
        answer.encode(reply);
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        if peer.clings() {
            // The host stops, and the client may still write. Replies that wait are never given.
            return;
        }
        let mut state = self.state.lock();
        state.leader.take_if(|leader| *leader == peer.id());
        state.owners.remove(&peer.id());
        state.visitors.leave(peer.id());
        let released = state.waits.leave(peer.id());
        drop(state);
        released.due.into_iter().for_each(|(reply, due)| answer(reply, &due));
    }
}
