//! A store that registers at a master, and registers again whenever it has to.
//!
//! # Concurrency
//! One thread keeps the registration. It polls the session to the master a few times per second.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pool::{Incarnation, Store, StoreError, StoreOptions, StoreReport, wire::Message};
use rdmabox::{Address, Session, SessionOptions};

use crate::{
    proto::{Answer, Reply, Request, StoreCard},
    refusal::Refusal,
};

/// Interval between looks at the session to the master.
const SESSION_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Looks between attempts to register.
const CHECKS_PER_ATTEMPT: u32 = 10;

/// A store of RStore, until it is dropped.
#[derive(Debug)]
pub struct StoreNode {
    store: Store,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Settings of a store of RStore.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeOptions {
    /// The address of the master.
    pub master: Address,
    /// The address that clients and the master use, if it is not the first that the store listens
    /// at.
    pub advertise: Option<Address>,
    /// Settings of the store.
    pub store: StoreOptions,
    /// Options of the session to the master, such as a key.
    pub session: SessionOptions,
}

impl NodeOptions {
    /// Returns the settings of a store that lends `capacity` bytes, with a new random number.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(master: Address, capacity: u64) -> io::Result<NodeOptions> {
        let store = StoreOptions::new(capacity, Incarnation::random()?);
        Ok(NodeOptions { master, advertise: None, store, session: SessionOptions::default() })
    }
}

impl StoreNode {
    /// Starts a store, and registers it in the background.
    ///
    /// # Errors
    /// As [`StoreError`] says; nothing is left behind.
    pub fn start(addresses: &[Address], options: &NodeOptions) -> Result<StoreNode, StoreError> {
        let store = Store::listen(addresses, &options.store)?;
        let listened = store.addresses().first().map(ToString::to_string).unwrap_or_default();
        let address = options.advertise.as_ref().map_or(listened, ToString::to_string);
        let card = StoreCard { address, incarnation: store.incarnation(), capacity: options.store.capacity };
        let stop = Arc::new(AtomicBool::new(false));
        let registration = Registration {
            master: options.master.clone(),
            options: options.session.clone(),
            card,
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name("rstore-register".into()).spawn(move || registration.keep());
        Ok(StoreNode { store, stop, thread: Some(thread.map_err(StoreError::Thread)?) })
    }

    /// Returns the addresses of the store, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        self.store.addresses()
    }

    /// Returns the numbers of the store.
    pub fn report(&self) -> StoreReport {
        self.store.report()
    }
}

impl Drop for StoreNode {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

struct Registration {
    master: Address,
    options: SessionOptions,
    card: StoreCard,
    stop: Arc<AtomicBool>,
}

impl Registration {
    /// Keeps the store registered until it stops.
    fn keep(&self) {
        let mut session: Option<Arc<Session>> = None;
        let mut last_reason = String::new();
        let mut looks = 0;
        while !self.stop.load(Ordering::Acquire) {
            let is_registered = session.as_ref().is_some_and(|session| session.is_connected());
            if !is_registered && looks == 0 {
                looks = CHECKS_PER_ATTEMPT;
                match self.register() {
                    Ok(registered) => session = Some(registered),
                    // One line for each reason.
                    Err(reason) if reason != last_reason => {
                        log::warn!("not registered at {}, and tries again: {reason}", self.master);
                        last_reason = reason;
                    }
                    Err(_) => {}
                }
            }
            looks = looks.saturating_sub(1);
            thread::sleep(SESSION_CHECK_INTERVAL);
        }
    }

    fn register(&self) -> Result<Arc<Session>, String> {
        let session = Session::connect(&self.master, &self.options).map_err(|error| error.to_string())?;
        let mut reply = Vec::new();
        let request = Request::Register(self.card.clone()).to_bytes();
        session.call(&request, &mut reply).map_err(|error| error.to_string())?;
        match Reply::decode(&reply).map(|reply| reply.answer) {
            Some(Answer::Registered(store)) => {
                log::info!("registered at {} as {store}", self.master);
                Ok(session)
            }
            Some(Answer::Refused(refusal)) => Err(refusal.to_string()),
            Some(_) => Err(Refusal::NoHello.to_string()),
            None => Err("the host is no master of this version".into()),
        }
    }
}
