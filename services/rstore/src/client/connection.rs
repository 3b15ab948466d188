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
use pool::{StoreId, Stores};
use rdmabox::{Address, Cancel, ConnectError, RequestError, Session, SessionOptions};

use super::buffers::Buffers;
use crate::{
    error::Error,
    proto::{Answer, Reply, Request, Resume, Status, Welcome},
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

/// What all objects of a client share.
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

    /// Number of calls that were made to the master.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Makes a call to the master. A refusal is an error.
    pub(super) fn call(&self, request: &Request) -> Result<Answer, Error> {
        let session = self.session()?;
        let unsent = std::mem::take(&mut *self.unsent.lock());
        for late in unsent {
            // A reference to a region that is gone is no failure.
            self.send(&session, &late)?;
        }
        match self.send(&session, request)? {
            Answer::Refused(refusal) => Err(refusal.into()),
            answer => Ok(answer),
        }
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

    fn send(&self, session: &Session, request: &Request) -> Result<Answer, Error> {
        let (mut bytes, mut reply) = (Vec::new(), Vec::new());
        request.encode(&mut bytes);
        self.calls.fetch_add(1, Ordering::Relaxed);
        // A reservation takes as long as the stores need.
        session.call_waiting(&bytes, &mut reply, &Cancel::new()).map_err(Error::MasterLost)?;
        let reply = decode(&reply)?;
        self.epoch.fetch_max(reply.epoch, Ordering::AcqRel);
        Ok(reply.answer)
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

    /// Learns addresses of stores.
    pub(super) fn learn(&self, stores: &[(StoreId, String)]) -> Result<(), Error> {
        let epoch = self.epoch.load(Ordering::Acquire);
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
            let mut bytes = Vec::new();
            Request::Goodbye.encode(&mut bytes);
            // Otherwise the client ends with its grace time.
            let _ = session.call(&bytes, &mut Vec::new());
        }
    }
}

fn hello(session: &Session, resume: Option<Resume>) -> Result<Welcome, Error> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    Request::Hello(resume).encode(&mut bytes);
    session.call(&bytes, &mut reply).map_err(|error| match error {
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
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    Request::Status.encode(&mut bytes);
    session.call(&bytes, &mut reply).map_err(Error::MasterLost)?;
    match decode(&reply)?.answer {
        Answer::Status(status) => Ok(*status),
        other => Err(unexpected(&other)),
    }
}
