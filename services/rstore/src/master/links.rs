//! Sessions of the master to its stores.
//!
//! One thread keeps the table of links, and one thread for each store gives it orders, in order. A
//! fence may wait long for a stopped client, so each fence has a thread of its own.
//!
//! # Concurrency
//! See above. No locks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use pool::{Incarnation, Order, Outcome, StoreAnswer, StoreId, StoreRequest};
use rdmabox::{Address, Cancel, Session, SessionOptions};

use super::{engine::LinkTask, service::Desk};
use crate::machine::Input;

/// The orders of a link, and whether another link has replaced it.
type Entry = (Sender<(u64, Order)>, Arc<AtomicBool>);

/// Links to stores.
#[derive(Debug)]
pub(super) struct Links {
    desk: Weak<Desk>,
    options: SessionOptions,
    links: HashMap<StoreId, Entry>,
}

impl Links {
    pub(super) fn new(desk: Weak<Desk>, options: SessionOptions) -> Links {
        Links { desk, options, links: HashMap::new() }
    }

    /// Runs until the master stops.
    pub(super) fn run(mut self, tasks: &Receiver<LinkTask>) {
        for task in tasks {
            match task {
                LinkTask::Connect(store, address, incarnation) => self.connect(store, address, incarnation),
                // Without a link, the machine gives the order again when the store is ready.
                LinkTask::Order(store, number, order) => {
                    if let Some((link, _)) = self.links.get(&store) {
                        let _ = link.send((number, order));
                    }
                }
                LinkTask::Disconnect(store) => {
                    self.retire(store);
                    if let Some(desk) = self.desk.upgrade() {
                        desk.end_store(store);
                    }
                }
            }
        }
    }

    /// Ends the link to a store with its sender. Its failures count no more.
    fn retire(&mut self, store: StoreId) {
        if let Some((_, replaced)) = self.links.remove(&store) {
            replaced.store(true, Ordering::Release);
        }
    }

    fn connect(&mut self, store: StoreId, address: String, incarnation: Incarnation) {
        let (sender, orders) = channel();
        self.retire(store);
        let replaced = Arc::new(AtomicBool::new(false));
        self.links.insert(store, (sender, Arc::clone(&replaced)));
        let (desk, options) = (self.desk.clone(), self.options.clone());
        let run = move || {
            let outcome = Link::open(store, &address, incarnation, &options)
                .and_then(|(link, chunks)| link.run(&desk, chunks, &orders));
            if let Err(reason) = outcome
                && !replaced.load(Ordering::Acquire)
            {
                log::warn!("{store} at {address}: {reason}");
                feed(&desk, Input::StoreGone(store));
            }
        };
        if let Err(error) = thread::Builder::new().name(format!("rstore-store-{}", store.0)).spawn(run) {
            log::error!("{store}: cannot start a thread: {error}");
        }
    }
}

/// A session to one store.
struct Link {
    store: StoreId,
    session: Arc<Session>,
}

impl Link {
    /// Connects as the owner of the store. Returns the chunks of the store.
    fn open(
        store: StoreId,
        address: &str,
        incarnation: Incarnation,
        options: &SessionOptions,
    ) -> Result<(Link, Vec<u32>), String> {
        let address: Address = address.parse().map_err(|error| format!("{error}"))?;
        let session = Session::connect(&address, options).map_err(|error| error.to_string())?;
        match call(&session, &StoreRequest::Lead(incarnation))? {
            StoreAnswer::Welcome => {}
            other => return Err(format!("refused: {other:?}")),
        }
        match call(&session, &StoreRequest::Order(Order::Join(store)))? {
            StoreAnswer::Outcome(Outcome::Chunks(chunks)) => Ok((Link { store, session }, chunks)),
            other => Err(format!("unexpected reply: {other:?}")),
        }
    }

    /// Gives orders until the link is replaced, or the session ends.
    fn run(self, desk: &Weak<Desk>, chunks: Vec<u32>, orders: &Receiver<(u64, Order)>) -> Result<(), String> {
        let store = self.store;
        feed(desk, Input::StoreReady { store, chunks });
        log::info!("{store} is ready");
        for (number, order) in orders {
            if matches!(order, Order::Fence { .. }) {
                let (session, desk) = (Arc::clone(&self.session), desk.clone());
                let fence = move || {
                    if let Err(reason) = execute(&session, &desk, number, order) {
                        log::warn!("{store}: a fence is given again when the store is back: {reason}");
                    }
                };
                thread::Builder::new().spawn(fence).map_err(|error| error.to_string())?;
            } else {
                execute(&self.session, desk, number, order)?;
            }
        }
        self.session.close(Duration::ZERO);
        Ok(())
    }
}

/// Passes an input to the master, if it has not stopped.
fn feed(desk: &Weak<Desk>, input: Input) {
    if let Some(desk) = desk.upgrade() {
        desk.feed(input);
    }
}

fn execute(session: &Session, desk: &Weak<Desk>, number: u64, order: Order) -> Result<(), String> {
    match call(session, &StoreRequest::Order(order))? {
        StoreAnswer::Outcome(outcome) => {
            feed(desk, Input::OrderDone { order: number, outcome });
            Ok(())
        }
        other => Err(format!("unexpected reply: {other:?}")),
    }
}

/// Makes a call that may take as long as the store lives.
fn call(session: &Session, request: &StoreRequest) -> Result<StoreAnswer, String> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    request.encode(&mut bytes);
    session.call_waiting(&bytes, &mut reply, &Cancel::new()).map_err(|error| error.to_string())?;
    StoreAnswer::decode(&reply).ok_or_else(|| "the host is no store of this version".into())
}
