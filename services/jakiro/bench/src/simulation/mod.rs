//! The figures on modelled cards: a simulation of seven client machines and one server.
//!
//! The store is the real one: each call is encoded, executed and its reply measured in bytes. Time
//! is that of a network of queues with the constants of a modelled card. The modelled device of
//! rdmabox has no card at the side of the host. So it cannot show the limit of a server that sends
//! replies. Here each machine has a card, and the cards of a host's clients share its card.
//!
//! # Concurrency
//! No locks, no clock. Equal calls give equal results.

mod card;
mod constants;
mod network;
mod store;

use std::time::Duration;

use rdmabox::provider::model::CardParameters;

pub(crate) use self::store::measure_server_ns;
use self::{
    card::{Card, Wire},
    constants::Constants,
    network::Network,
    store::ServedStore,
};
use crate::{
    figure::Point,
    load::Requests,
    peer::{Fetches, System},
    run::Sample,
};

/// Client machines of the paper.
const MACHINES: usize = 7;
/// Bytes of framing around a record, a fetched reply and a message.
const RECORD_FRAMING: usize = 16;
const REPLY_FRAMING: usize = 24;
const MESSAGE_HEADER: usize = 8;
/// A part of the requests is not measured, because the queues are still empty.
const WARM_UP: u64 = 10;

/// Returns the bytes of a request in memory of the server, and of a reply in memory of the client.
fn record(len: usize) -> usize {
    RECORD_FRAMING + len.next_multiple_of(8)
}

/// The parts of a simulation that the command line selects.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) card: CardParameters,
    pub(crate) server_threads: usize,
    /// Time that a server thread takes for a request, in ns, without network work.
    pub(crate) server_ns: u64,
    /// Number of requests of a point.
    pub(crate) requests: u64,
}

/// The event at the end of a journey through the network. The number is that of the client thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The request is in the memory of the server.
    Arrived(usize),
    /// The client knows that its request has arrived.
    Written(usize),
    /// The server has executed the request.
    Executed(usize),
    /// A READ of the reply is at the server.
    Reading(usize),
    /// A READ has completed. It found the reply, or not.
    Read(usize, bool),
    /// The READ of the rest of a long reply is at the server.
    ReadingRest(usize),
    /// The client has the whole reply.
    Done(usize),
}

/// A client thread and its call.
struct Client {
    requests: Requests,
    machine: usize,
    partition: usize,
    began: u64,
    request_len: usize,
    reply_len: usize,
    is_executed: bool,
}

struct Simulation<'a> {
    plan: &'a Plan,
    point: &'a Point,
    constants: Constants,
    network: Network<Event>,
    server: Card,
    machines: Vec<Card>,
    /// Stage of each server thread.
    threads: Vec<usize>,
    clients: Vec<Client>,
    store: ServedStore,
    sample: Sample,
    done: u64,
    measured_from: u64,
}

/// Simulates a point.
pub(crate) fn simulate(plan: &Plan, point: &Point) -> Sample {
    let constants = Constants::of(&plan.card);
    let mut network = Network::default();
    let card = |network: &mut Network<Event>| Card::new(network, &constants);
    let server = card(&mut network);
    let machines = (0..MACHINES).map(|_| card(&mut network)).collect();
    let threads = (0..plan.server_threads).map(|_| network.add_stage()).collect();
    let clients = (0..point.threads).map(|number| Client {
        requests: Requests::new(point.load, number as u64),
        machine: number % MACHINES,
        partition: 0,
        began: 0,
        request_len: 0,
        reply_len: 0,
        is_executed: false,
    });
    let mut simulation = Simulation {
        clients: clients.collect(),
        store: ServedStore::filled(plan.server_threads, &point.load),
        sample: Sample::new(),
        plan,
        point,
        constants,
        network,
        server,
        machines,
        threads,
        done: 0,
        measured_from: 0,
    };
    simulation.run();
    simulation.sample
}

impl Simulation<'_> {
    fn run(&mut self) {
        (0..self.clients.len()).for_each(|client| self.begin(client as u64 * 10, client));
        let mut now = 0;
        while self.done < self.plan.requests
            && let Some((at, event)) = self.network.next()
        {
            now = at;
            self.handle(at, event);
        }
        self.sample.took(Duration::from_nanos(now - self.measured_from));
    }

    /// Begins the next call of a client.
    fn begin(&mut self, at: u64, number: usize) {
        let client = &mut self.clients[number];
        let request = client.requests.next();
        let call = self.store.call(request.is_get, request.key, &self.point.load);
        (client.began, client.is_executed) = (at, false);
        (client.partition, client.request_len, client.reply_len) = (call.partition, call.request, call.reply);
        let bytes = match self.point.system {
            System::Jakiro | System::ServerWrite => record(call.request),
            System::ServerReply | System::Memcached => MESSAGE_HEADER + call.request,
        };
        self.post(at, number, Wire::Out(bytes), Event::Arrived(number));
    }

    /// Posts a work request of a client. The event comes when it is at the server.
    fn post(&mut self, at: u64, number: usize, wire: Wire, event: Event) {
        let at = at + self.constants.post_ns();
        let machine = &mut self.machines[self.clients[number].machine];
        let hops = machine.request(&self.server, number, wire, &self.constants);
        self.network.send(at, hops, event);
    }

    /// Sends the bytes that answer a work request, with its completion.
    fn complete(&mut self, at: u64, number: usize, bytes: usize, event: Event) {
        let machine = &mut self.machines[self.clients[number].machine];
        let hops = machine.completion(&self.server, bytes, &self.constants);
        self.network.send(at, hops, event);
    }

    fn handle(&mut self, at: u64, event: Event) {
        let fetches = self.point.system == System::Jakiro;
        match event {
            Event::Arrived(number) => {
                let sends = match self.point.system {
                    System::Jakiro => 0,
                    // The thread finds the request in memory.
                    System::ServerWrite => self.constants.post_ns(),
                    System::ServerReply | System::Memcached => {
                        self.constants.post_ns() + self.constants.poll_ns()
                    }
                };
                let thread = self.threads[self.clients[number].partition];
                self.network.work(at, thread, self.plan.server_ns + sends, Event::Executed(number));
                if fetches {
                    self.complete(at, number, 0, Event::Written(number));
                } else {
                    // No thread waits for the acknowledgement of a message.
                    self.machines[self.clients[number].machine].acknowledged();
                }
            }
            Event::Written(number) => self.read(at + self.constants.poll_ns(), number),
            Event::Executed(number) if fetches => self.clients[number].is_executed = true,
            Event::Executed(number) => {
                let reply = self.clients[number].reply_len;
                let bytes = match self.point.system {
                    System::ServerWrite => record(reply),
                    _ => MESSAGE_HEADER + reply,
                };
                let machine = &self.machines[self.clients[number].machine];
                let hops = self.server.request(machine, number, Wire::Out(bytes), &self.constants);
                self.network.send(at, hops, Event::Done(number));
            }
            Event::Reading(number) => {
                let is_found = self.clients[number].is_executed;
                self.complete(at, number, self.point.fetch_size, Event::Read(number, is_found));
            }
            Event::Read(number, false) => {
                self.count(Fetches { replies: 0, reads: 0, early: 1 });
                self.read(at + self.constants.poll_ns(), number);
            }
            Event::Read(number, true) => match self.rest(number) {
                0 => {
                    self.count(Fetches { replies: 1, reads: 1, early: 0 });
                    self.finish(at, number);
                }
                _ => {
                    self.count(Fetches { replies: 1, reads: 2, early: 0 });
                    self.post(at + self.constants.poll_ns(), number, Wire::In, Event::ReadingRest(number));
                }
            },
            Event::ReadingRest(number) => {
                let rest = self.rest(number);
                self.complete(at, number, rest, Event::Done(number));
            }
            Event::Done(number) => {
                if !fetches {
                    self.server.acknowledged();
                }
                self.finish(at, number);
            }
        }
    }

    /// Reads the begin of a reply.
    fn read(&mut self, at: u64, number: usize) {
        self.post(at, number, Wire::In, Event::Reading(number));
    }

    fn count(&mut self, fetches: Fetches) {
        if self.is_measured() {
            self.sample.fetched(fetches);
        }
    }

    /// Returns the bytes of a reply that the first READ did not fetch.
    fn rest(&self, number: usize) -> usize {
        let whole = REPLY_FRAMING + self.clients[number].reply_len.next_multiple_of(8);
        whole.saturating_sub(self.point.fetch_size)
    }

    fn is_measured(&self) -> bool {
        self.done >= self.plan.requests / WARM_UP
    }

    fn finish(&mut self, at: u64, number: usize) {
        let at = at + self.constants.poll_ns();
        self.done += 1;
        if self.is_measured() {
            if self.measured_from == 0 {
                self.measured_from = at;
            }
            self.sample.record(Duration::from_nanos(at - self.clients[number].began));
        }
        self.begin(at, number);
    }
}

#[cfg(test)]
mod tests;
