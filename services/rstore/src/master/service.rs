//! The service of the master's host: sessions of clients and stores, and their calls.
//!
//! # Concurrency
//! Threads of the host, of the links and of the clock. `state` is held while an input is applied.

use std::{collections::HashMap, sync::OnceLock};

use parking_lot::Mutex;
use pool::{ClientId, StoreId, wire::Message};
use rdmabox::{CallError, Peer, Reply as CallReply, Service, SessionTerminator};

use super::engine::Engine;
use crate::{
    machine::Input,
    proto::{Answer, Reply, Request, Status},
    refusal::Refusal,
};

/// The desk of the master.
#[derive(Debug)]
pub(super) struct Desk {
    terminator: OnceLock<SessionTerminator>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the master stops.
    engine: Option<Engine>,
    clients: HashMap<u64, ClientId>,
    stores: HashMap<u64, StoreId>,
}

impl Desk {
    pub(super) fn new(engine: Engine) -> Desk {
        let state = State { engine: Some(engine), clients: HashMap::new(), stores: HashMap::new() };
        Desk { terminator: OnceLock::new(), state: Mutex::new(state) }
    }

    pub(super) fn begin(&self, terminator: SessionTerminator) {
        // Called once.
        let _ = self.terminator.set(terminator);
    }

    /// Applies no further inputs.
    pub(super) fn stop(&self) {
        self.state.lock().engine.take();
    }

    /// Applies an event.
    pub(super) fn feed(&self, input: Input) {
        if let Some(engine) = &mut self.state.lock().engine {
            engine.event(input);
        }
    }

    /// Lets time pass. Returns false once the master stops.
    pub(super) fn tick(&self) -> bool {
        let mut state = self.state.lock();
        let Some(engine) = &mut state.engine else { return false };
        engine.tick();
        true
    }

    pub(super) fn status(&self) -> Status {
        self.state.lock().engine.as_ref().map(Engine::status).unwrap_or_default()
    }

    /// Ends the sessions in which a store has registered, so that it registers again.
    pub(super) fn end_store(&self, store: StoreId) {
        let state = self.state.lock();
        let sessions: Vec<u64> =
            state.stores.iter().filter(|(_, of)| **of == store).map(|(session, _)| *session).collect();
        drop(state);
        let Some(terminator) = self.terminator.get() else { return };
        for session in sessions {
            terminator.end(session, "the master uses the store no more");
        }
    }

    /// Answers a call, or keeps it until stores have answered.
    fn answer(&self, peer: &Peer, request: Request, reply: &mut CallReply<'_>) -> Option<Reply> {
        let refused = |refusal| Some(Reply { epoch: 0, answer: Answer::Refused(refusal) });
        let mut state = self.state.lock();
        let State { engine, clients, stores } = &mut *state;
        let Some(engine) = engine else { return refused(Refusal::UnknownClient) };
        let call = engine.number();
        let read = |answer| Some(Reply { epoch: 0, answer });
        let input = match request {
            Request::Status => return read(Answer::Status(Box::new(engine.status()))),
            Request::Lost(clients) => return read(Answer::Lost(engine.lost(clients))),
            Request::Hello(resume) => {
                let mut nonce = [0; 16];
                if let Err(error) = getrandom::fill(&mut nonce) {
                    return refused(Refusal::Log(format!("getrandom failed: {error}")));
                }
                Input::Hello { call, resume, nonce: u128::from_le_bytes(nonce) }
            }
            Request::Register(card) => Input::Register { call, card },
            request => {
                let Some(client) = clients.get(&peer.id()).copied() else { return refused(Refusal::NoHello) };
                Input::Call { call, client, request }
            }
        };
        let Some(answer) = engine.call(call, input) else {
            engine.wait(call, reply.defer());
            return None;
        };
        match &answer.answer {
            Answer::Welcome(welcome) => {
                let client = welcome.resume.client;
                if let Some(former) = clients.insert(peer.id(), client)
                    && has_no_session(clients, &former)
                {
                    engine.event(Input::ClientGone(former));
                }
            }
            Answer::Registered(store) => {
                if let Some(former) = stores.insert(peer.id(), *store)
                    && has_no_session(stores, &former)
                {
                    engine.event(Input::StoreGone(former));
                }
            }
            _ => {}
        }
        Some(match clients.get(&peer.id()) {
            Some(client) => Reply { epoch: engine.epoch(*client), ..answer },
            None => answer,
        })
    }
}

impl Service for Desk {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut CallReply<'_>) -> Result<(), CallError> {
        let Some(request) = Request::decode(request) else {
            return Err("not a call of this version of the master".into());
        };
        if let Some(answer) = self.answer(peer, request, reply) {
            answer.encode(reply);
        }
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        let mut state = self.state.lock();
        let State { engine, clients, stores } = &mut *state;
        let Some(engine) = engine else { return };
        if let Some(client) = clients.remove(&peer.id())
            && has_no_session(clients, &client)
        {
            engine.event(Input::ClientGone(client));
        }
        if let Some(store) = stores.remove(&peer.id())
            && has_no_session(stores, &store)
        {
            engine.event(Input::StoreGone(store));
        }
    }
}

fn has_no_session<T: PartialEq>(sessions: &HashMap<u64, T>, of: &T) -> bool {
    !sessions.values().any(|other| other == of)
}
