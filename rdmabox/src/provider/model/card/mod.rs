//! The card as a network of queues: pure logic that gives each work request its completion time.
//!
//! A post rings a doorbell. The first work request of a list comes with it, and the card fetches
//! the others ([`Card::post`]). Each request then passes the unit of its queue pair, the requester,
//! the wire, the peer's responder and the wire back. Each step is a [`Stage`], and an event heap
//! moves the requests from step to step in the order of model time. Equal calls give equal times.
//!
//! # Concurrency
//! No I/O, no locks, no clock. The owner passes model times in nanoseconds.

mod counters;
mod event;
mod host;
mod lru;
mod queue_pair;
mod request;
mod stage;
#[cfg(test)]
mod tests;
mod wire;
mod work_requests;

use std::collections::BinaryHeap;

use slab::Slab;
use smallvec::SmallVec;

pub use self::counters::CardCounters;
use self::{
    event::{Event, Step},
    host::PAGE,
    lru::Lru,
    queue_pair::CardQp,
    stage::Stage,
    work_requests::WorkRequestCache,
};
pub(crate) use self::{
    host::{copy_ns, registration_ns, threshold},
    request::{CardRequest, Direction},
};
use super::parameters::Values;

/// A queue pair of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QpKey(usize);

/// A peer's card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerKey(usize);

/// A work request on the card.
#[derive(Clone, Copy, Debug)]
struct Job {
    qp: QpKey,
    /// Position among the requests of its queue pair.
    sequence: u64,
    request: CardRequest,
}

/// The other end of some queue pairs.
#[derive(Debug)]
struct PeerCard {
    responder: Stage,
    translations: Lru<u64>,
}

/// A card and the cards of its peers.
#[derive(Debug)]
pub(crate) struct Card {
    values: Values,
    /// Model time of the last event.
    time: u64,
    events: BinaryHeap<Event>,
    /// Number of events so far; orders events of the same time.
    next_event: u64,
    jobs: Slab<Job>,
    /// The jobs of lists whose doorbell the card has not decoded.
    lists: Slab<SmallVec<[usize; 4]>>,
    queue_pairs: Slab<CardQp>,
    peers: Vec<PeerCard>,
    fetches: Stage,
    units: Vec<Stage>,
    /// Number of queue pairs so far, which selects the unit of the next one.
    bound: usize,
    requester: Stage,
    wire_out: Stage,
    wire_in: Stage,
    work_requests: WorkRequestCache,
    contexts: Lru<u64>,
    pub(crate) counters: CardCounters,
}

impl Card {
    pub(crate) fn new(values: Values) -> Card {
        let cache = &values.work_request_cache;
        Card {
            time: 0,
            events: BinaryHeap::new(),
            next_event: 0,
            jobs: Slab::new(),
            lists: Slab::new(),
            queue_pairs: Slab::new(),
            peers: Vec::new(),
            fetches: Stage::default(),
            units: vec![Stage::default(); values.units.count as usize],
            bound: 0,
            requester: Stage::default(),
            wire_out: Stage::default(),
            wire_in: Stage::default(),
            work_requests: WorkRequestCache::new(cache.entries, cache.miss_ns),
            contexts: Lru::new(values.context_cache.entries),
            counters: CardCounters::default(),
            values,
        }
    }

    /// Adds a peer with a card of its own.
    pub(crate) fn add_peer(&mut self) -> PeerKey {
        let translations = Lru::new(self.values.translation_cache.bytes / PAGE);
        self.peers.push(PeerCard { responder: Stage::default(), translations });
        PeerKey(self.peers.len() - 1)
    }

    /// Adds a queue pair and binds it to a unit, in turn.
    pub(crate) fn add_queue_pair(&mut self, peer: PeerKey) -> QpKey {
        let unit = self.bound % self.units.len();
        let context = self.bound as u64;
        self.bound += 1;
        QpKey(self.queue_pairs.insert(CardQp::new(context, unit, peer)))
    }

    /// Removes a queue pair. The card still processes its requests, for no owner.
    pub(crate) fn remove_queue_pair(&mut self, qp: QpKey) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(qp.0) {
            queue_pair.is_removed = true;
            self.drop_if_over(qp);
        }
    }

    fn drop_if_over(&mut self, qp: QpKey) {
        if self.queue_pairs.get(qp.0).is_some_and(CardQp::is_over) {
            self.queue_pairs.remove(qp.0);
        }
    }

    /// Returns the number of work requests on the card.
    pub(crate) fn in_flight(&self) -> u64 {
        self.jobs.len() as u64
    }

    /// Returns the time of the last event.
    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// Returns the time of the next event.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|event| event.at)
    }

    /// Posts a list with one doorbell at time `at`. A time before the last event counts as that
    /// time.
    pub(crate) fn post(&mut self, at: u64, qp: QpKey, list: &[CardRequest]) {
        if list.is_empty() || !self.queue_pairs.contains(qp.0) {
            return;
        }
        let at = at.max(self.time);
        self.counters.doorbells += 1;
        self.counters.work_requests += list.len() as u64;
        self.counters.fetches += list.len() as u64 - 1;
        let jobs = list.iter().map(|request| {
            let sequence = self.queue_pairs[qp.0].post();
            self.jobs.insert(Job { qp, sequence, request: *request })
        });
        let jobs = jobs.collect();
        let list = self.lists.insert(jobs);
        self.schedule(at, list, Step::Doorbell);
        self.counters.in_flight_peak = self.counters.in_flight_peak.max(self.in_flight());
    }

    fn schedule(&mut self, at: u64, job: usize, step: Step) {
        self.next_event += 1;
        self.events.push(Event { at, number: self.next_event, job, step });
    }

    /// Processes all events up to `to`.
    pub(crate) fn advance(&mut self, to: u64) {
        while self.next_event().is_some_and(|at| at <= to) {
            if let Some(event) = self.events.pop() {
                self.time = self.time.max(event.at);
                self.process(event);
            }
        }
    }

    /// Returns the completion time of a request, once all requests before it are complete as well.
    pub(crate) fn completion(&self, qp: QpKey, sequence: u64) -> Option<u64> {
        self.queue_pairs.get(qp.0)?.completion(sequence)
    }

    /// Forgets the completion times up to `sequence`.
    pub(crate) fn forget(&mut self, qp: QpKey, sequence: u64) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(qp.0) {
            queue_pair.forget(sequence);
        }
    }

    fn process(&mut self, Event { at, job, step, .. }: Event) {
        match step {
            Step::Doorbell => self.ring(at, job),
            Step::Unit => self.enter_unit(at, job),
            Step::Requester => self.enter_requester(at, job),
            Step::Wire => self.enter_wire(at, job),
            Step::Responder => self.enter_responder(at, job),
            Step::Return => self.enter_return(at, job),
            Step::Completion => self.complete(at, job),
        }
    }

    /// Decodes a doorbell at the requester, and fetches the list's other requests.
    fn ring(&mut self, at: u64, list: usize) {
        let rung = self.requester.serve(at, self.values.doorbell.card_ns);
        for (index, job) in self.lists.remove(list).into_iter().enumerate() {
            let arrived = match index {
                0 => rung,
                _ => self.fetches.serve(rung, self.values.fetch.request_ns) + self.values.fetch.latency_ns,
            };
            self.schedule(arrived, job, Step::Unit);
        }
    }

    fn enter_unit(&mut self, at: u64, job: usize) {
        let CardQp { unit, context, .. } = self.queue_pairs[self.jobs[job].qp.0];
        let misses = self.contexts.misses(context);
        self.counters.context_misses += u64::from(misses);
        let context = if misses { self.values.context_cache.miss_ns } else { 0 };
        let (fetch, missed) = self.work_requests.miss(self.jobs.len() as u64);
        self.counters.work_request_misses += missed;
        let end = self.units[unit].serve(at, self.values.units.request_ns + context + fetch);
        self.schedule(end, job, Step::Requester);
    }

    fn enter_requester(&mut self, at: u64, job: usize) {
        let (fetch, missed) = self.work_requests.miss(self.jobs.len() as u64);
        self.counters.work_request_misses += missed;
        let end = self.requester.serve(at, self.values.requester.request_ns + fetch);
        let request = &self.jobs[job].request;
        // The card reads a payload that is not in the work request; reads overlap.
        let payload = request.direction == Direction::Out && !request.inline && request.bytes > 0;
        let read = if payload { self.values.fetch.latency_ns } else { 0 };
        self.schedule(end + read, job, Step::Wire);
    }

    fn enter_wire(&mut self, at: u64, job: usize) {
        let request = &self.jobs[job].request;
        let bytes = if request.direction == Direction::Out { request.bytes } else { 0 };
        let end = self.wire_out.serve(at, wire::occupancy(&self.values.wire, bytes));
        self.schedule(end + self.values.wire.latency_ns, job, Step::Responder);
    }

    fn enter_responder(&mut self, at: u64, job: usize) {
        let Job { qp, request, .. } = self.jobs[job];
        let peer = &mut self.peers[self.queue_pairs[qp.0].peer.0];
        let misses = request.pages().filter(|page| peer.translations.misses(*page)).count() as u64;
        self.counters.translation_misses += misses;
        let service = self.values.responder.request_ns + misses * self.values.translation_cache.miss_ns;
        let end = peer.responder.serve(at, service);
        self.schedule(end, job, Step::Return);
    }

    fn enter_return(&mut self, at: u64, job: usize) {
        let request = &self.jobs[job].request;
        let bytes = if request.direction == Direction::In { request.bytes } else { 0 };
        let end = self.wire_in.serve(at, wire::occupancy(&self.values.wire, bytes));
        let completed = end + self.values.wire.latency_ns + self.values.completion.card_ns;
        self.schedule(completed, job, Step::Completion);
    }

    fn complete(&mut self, at: u64, job: usize) {
        let Job { qp, sequence, .. } = self.jobs.remove(job);
        self.counters.completions += 1;
        self.queue_pairs[qp.0].complete(sequence, at);
        self.drop_if_over(qp);
    }
}
