//! Sessions of the master to its stores.
//!
//! One thread keeps the table of links, and one thread for each store gives it orders, in order. A
//! fence may wait long for a stopped client, so each fence has a thread of its own. A link that
//! fails is reported, and the machine then lets the store register again.
//!
//! # Concurrency
//! See above. No locks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use pool::{Incarnation, Order, Outcome, StoreAnswer, StoreId, StoreRequest, wire::Message};
use rdmabox::{Address, Cancel, Session, SessionOptions};

use super::service::Desk;
use crate::machine::{Input, Output};

/// Links to stores.
#[derive(Debug)]
pub(super) struct Links {
    desk: Weak<Desk>,
    options: SessionOptions,
    /// Where the orders of each link go. A link ends with its sender.
    links: HashMap<StoreId, Sender<(u64, Order)>>,
}

impl Links {
    pub(super) fn new(desk: Weak<Desk>, options: SessionOptions) -> Links {
        Links { desk, options, links: HashMap::new() }
    }

    /// Does the work that the machine asks for until the master stops.
    pub(super) fn run(mut self, outputs: &Receiver<Output>) {
        for output in outputs {
            match output {
                Output::Connect { store, link, address, incarnation } => {
                    let name = LinkName { store, number: link, desk: self.desk.clone() };
                    self.connect(name, address, incarnation);
                }
                // Without a link, the machine gives the order again when the store is ready.
                Output::Order { store, number, order } => {
                    if let Some(link) = self.links.get(&store) {
                        let _ = link.send((number, order));
                    }
                }
                Output::Disconnect(store) => {
                    self.links.remove(&store);
                    if let Some(desk) = self.desk.upgrade() {
                        desk.end_store(store);
                    }
                }
                // The engine answers calls.
                Output::Reply { .. } => {}
            }
        }
    }

    fn connect(&mut self, name: LinkName, address: String, incarnation: Incarnation) {
        let (sender, orders) = channel();
        self.links.insert(name.store, sender);
        let options = self.options.clone();
        let (thread_name, spare) = (format!("rstore-store-{}", name.store.0), name.clone());
        let run = move || {
            let outcome = Link::open(&name, &address, incarnation, &options)
                .and_then(|(link, chunks)| link.run(chunks, &orders));
            if let Err(reason) = outcome {
                log::warn!("{} at {address}: {reason}", name.store);
                name.report_loss();
            }
        };
        if let Err(error) = thread::Builder::new().name(thread_name).spawn(run) {
            log::error!("{}: cannot start a thread: {error}", spare.store);
            spare.report_loss();
        }
    }
}

/// The name under which a link reports to the master.
#[derive(Clone, Debug)]
struct LinkName {
    store: StoreId,
    number: u64,
    desk: Weak<Desk>,
}

impl LinkName {
    /// Passes an event to the master, if it has not stopped.
    fn feed(&self, input: Input) {
        if let Some(desk) = self.desk.upgrade() {
            desk.feed(input);
        }
    }

    fn report_loss(&self) {
        self.feed(Input::LinkLost { store: self.store, link: self.number });
    }
}

/// A session to one store.
struct Link {
    name: LinkName,
    session: Arc<Session>,
}

impl Link {
    /// Connects as the owner of the store. Returns the chunks of the store.
    fn open(
        name: &LinkName,
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
        match call(&session, &StoreRequest::Order(Order::Join(name.store)))? {
            StoreAnswer::Outcome(Outcome::Done) => {}
            other => return Err(format!("unexpected reply: {other:?}")),
        }
        let chunks = list(&session)?;
        Ok((Link { name: name.clone(), session }, chunks))
    }

    /// Gives orders until the link is replaced, or the session ends.
    fn run(self, chunks: Vec<u32>, orders: &Receiver<(u64, Order)>) -> Result<(), String> {
        let LinkName { store, number: link, .. } = self.name;
        self.name.feed(Input::StoreReady { store, link, chunks });
        log::info!("{store} is ready");
        for (number, order) in orders {
            if matches!(order, Order::Fence { .. }) {
                let (session, name) = (Arc::clone(&self.session), self.name.clone());
                let fence = move || {
                    if let Err(reason) = execute(&session, &name, number, order) {
                        log::warn!("{store}: a fence is given again when the store is back: {reason}");
                        // The thread of the orders may have none that fails.
                        name.report_loss();
                    }
                };
                thread::Builder::new().spawn(fence).map_err(|error| error.to_string())?;
            } else {
                execute(&self.session, &self.name, number, order)?;
            }
        }
        self.session.close(Duration::ZERO);
        Ok(())
    }
}

/// Lists all chunks of a store, page by page.
fn list(session: &Session) -> Result<Vec<u32>, String> {
    let (mut chunks, mut from) = (Vec::<u32>::new(), Some(0));
    while let Some(first) = from {
        match call(session, &StoreRequest::Order(Order::List { from: first }))? {
            StoreAnswer::Outcome(Outcome::Chunks(page)) => {
                if page.first().is_some_and(|number| *number < first) || !page.is_sorted() {
                    return Err("it lists its chunks out of order".into());
                }
                from = page.last().and_then(|last| last.checked_add(1));
                chunks.extend(page);
            }
            other => return Err(format!("unexpected reply: {other:?}")),
        }
    }
    Ok(chunks)
}

fn execute(session: &Session, name: &LinkName, number: u64, order: Order) -> Result<(), String> {
    match call(session, &StoreRequest::Order(order))? {
        StoreAnswer::Outcome(outcome) => {
            name.feed(Input::OrderDone { link: name.number, order: number, outcome });
            Ok(())
        }
        other => Err(format!("unexpected reply: {other:?}")),
    }
}

/// Makes a call that may take as long as the store lives.
fn call(session: &Session, request: &StoreRequest) -> Result<StoreAnswer, String> {
    let mut reply = Vec::new();
    let outcome = session.call_waiting(&request.to_bytes(), &mut reply, &Cancel::new());
    outcome.map_err(|error| error.to_string())?;
    StoreAnswer::decode(&reply).ok_or_else(|| "the host is no store of this version".into())
}
