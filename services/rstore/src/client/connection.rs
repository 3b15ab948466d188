//! The session of a client with the master.
//!
//! A call that finds the session ended connects again, under the client's old name. A call during
//! which the session ends fails, because its effect is not known.
//!
//! # Concurrency
//! Any thread may call. The lock of the session is held while it connects, not during calls.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use pool::{ClientId, StoreId, Stores, wire::Message};
use rdmabox::{Address, Cancel, ConnectError, RequestError, Session, SessionOptions};

use super::buffers::Buffers;
use crate::{
    error::Error,
    proto::{Answer, LeaseInfo, PAGE_CHUNKS, RegionInfo, Reply, Request, Resume, Status, Welcome},
};

/// Settings of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Options of the sessions with the master and with stores, such as a key or a provider.
    pub session: SessionOptions,
    /// Most bytes of local memory that stay registered for later mappings.
    pub cache_bytes: u64,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions { session: SessionOptions::default(), cache_bytes: 1 << 30 }
    }
}

/// The state that all objects of a client share.
#[derive(Debug)]
pub(super) struct Connection {
    master: Address,
    options: ClientOptions,
    resume: Resume,
    pub(super) chunk_bytes: u64,
    session: Mutex<Arc<Session>>,
    /// Calls that were not sent, because the master was not there.
    unsent: Mutex<Vec<Request>>,
    epoch: AtomicU32,
    calls: AtomicU64,
    pub(super) stores: Stores,
    pub(super) buffers: Buffers,
}

impl Connection {
    /// Connects to a master as a new client.
    pub(super) fn open(master: &Address, options: ClientOptions) -> Result<Connection, Error> {
        let session = Session::connect(master, &options.session)?;
        let Welcome { resume, chunk_bytes } = hello(&session, None)?;
        let stores = Stores::new(resume.client, options.session.clone());
        Ok(Connection {
            master: master.clone(),
            buffers: Buffers::new(options.cache_bytes),
            options,
            resume,
            chunk_bytes,
            session: Mutex::new(session),
            unsent: Mutex::default(),
            epoch: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            stores,
        })
    }

    /// Returns the number of this client.
    pub(super) fn client(&self) -> ClientId {
        self.resume.client
    }

    /// Returns the last epoch that the master has told.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the number of calls that were made to the master.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Makes a call to the master. A refusal is an error.
    pub(super) fn call(&self, request: &Request) -> Result<Answer, Error> {
        self.call_in_epoch(request).map(|(answer, _)| answer)
    }

    /// Makes a call to the master. Returns the answer, and the epoch in which the master gave it.
    pub(super) fn call_in_epoch(&self, request: &Request) -> Result<(Answer, u32), Error> {
        let session = self.session()?;
        self.send_late_calls(&session)?;
        match self.send(&session, request)? {
            Reply { answer: Answer::Refused(refusal), .. } => Err(refusal.into()),
            Reply { answer, epoch } => Ok((answer, epoch)),
        }
    }

    fn send_late_calls(&self, session: &Session) -> Result<(), Error> {
        loop {
            let Some(late) = self.unsent.lock().pop() else { return Ok(()) };
            // A reference to a region that is gone is no failure.
            self.send(session, &late)?;
        }
    }

    /// Returns the clients of a list that reach no store and hold no reference any more.
    pub(super) fn lost(&self, clients: Vec<ClientId>) -> Result<Vec<ClientId>, Error> {
        let mut lost = Vec::new();
        for part in clients.chunks(PAGE_CHUNKS) {
            match self.call(&Request::Lost(part.to_vec()))? {
                Answer::Lost(clients) => lost.extend(clients),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(lost)
    }

    /// Makes a call without a result that matters, such as the drop of a reference. It is made
    /// later if the master is not there now.
    pub(super) fn call_sometime(&self, request: Request) {
        match self.session() {
            Ok(session) => {
                if let Err(error) = self.send(&session, &request) {
                    log::debug!("{request:?}: {error}");
                }
            }
            Err(_) => self.unsent.lock().push(request),
        }
    }

    /// Sends a call. Learns from the reply about stores.
    fn send(&self, session: &Session, request: &Request) -> Result<Reply, Error> {
        let mut reply = Vec::new();
        self.calls.fetch_add(1, Ordering::Relaxed);
        // A reservation takes as long as the stores need.
        session.call_waiting(&request.to_bytes(), &mut reply, &Cancel::new()).map_err(Error::MasterLost)?;
        let reply = decode(&reply)?;
        // Before sessions of the epoch can begin: see `Update::new`.
        self.epoch.fetch_max(reply.epoch, Ordering::AcqRel);
        if let Answer::Region(RegionInfo { stores, .. })
        | Answer::Lease(LeaseInfo { stores, .. })
        | Answer::Places(_, stores) = &reply.answer
        {
            self.learn(stores, reply.epoch)?;
        }
        Ok(reply)
    }

    /// Returns the session, or a new one under the old name.
    fn session(&self) -> Result<Arc<Session>, Error> {
        let mut session = self.session.lock();
        if !session.is_connected() {
            let new = Session::connect(&self.master, &self.options.session)?;
            hello(&new, Some(self.resume))?;
            *session = new;
        }
        Ok(Arc::clone(&session))
    }

    /// Learns addresses of stores, as they are in an epoch.
    fn learn(&self, stores: &[(StoreId, String)], epoch: u32) -> Result<(), Error> {
        for (store, address) in stores {
            let address: Address =
                address.parse().map_err(|error| Error::Protocol(format!("{store}: {error}")))?;
            self.stores.set(*store, &address, epoch);
        }
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Before the master tells the stores: so they find nothing to end.
        self.stores.close();
        let session = self.session.get_mut();
        if session.is_connected() {
            // Otherwise the client ends with its grace time.
            let _ = session.call(&Request::Goodbye.to_bytes(), &mut Vec::new());
        }
    }
}

fn hello(session: &Session, resume: Option<Resume>) -> Result<Welcome, Error> {
    let mut reply = Vec::new();
    session.call(&Request::Hello(resume).to_bytes(), &mut reply).map_err(|error| match error {
        RequestError::Rejected { reason } => Error::Protocol(reason),
        error => Error::MasterLost(error),
    })?;
    match decode(&reply)?.answer {
        Answer::Welcome(welcome) => Ok(welcome),
        Answer::Refused(refusal) => Err(refusal.into()),
        other => Err(unexpected(&other)),
    }
}

fn decode(bytes: &[u8]) -> Result<Reply, Error> {
    Reply::decode(bytes).ok_or_else(|| Error::Protocol("the host is no master of this version".into()))
}

pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::Protocol(format!("{answer:?}"))
}

/// Returns the state of a master, as no client.
///
/// # Errors
/// As [`Error`] says. A retry is safe.
pub fn master_status(master: &Address, options: &SessionOptions) -> Result<Status, Error> {
    let session = Session::connect(master, options).map_err(|error: ConnectError| Error::Connect(error))?;
    let mut reply = Vec::new();
    session.call(&Request::Status.to_bytes(), &mut reply).map_err(Error::MasterLost)?;
    match decode(&reply)?.answer {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}
