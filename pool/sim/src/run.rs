//! Runs a model, event by event. No I/O, no locks, no clock.
//!
//! A request is cut into parts by the places of its file. Each part waits for the link of its
//! store, then for the machine of its client, and a request ends with its last part. Writes have
//! the same times in the other direction.
//!
//! Invariant: each issued byte is sent once by a store, and arrives once at a client.

use crate::{
    event::{Events, Nanos},
    link::Link,
    model::{Model, ModelError},
    placement::{File, Space, imbalance},
};

/// Something that happens, with the client and its request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client issues a request.
    Issue { client: usize, slot: usize },
    /// A store has sent a part.
    Sent { client: usize, slot: usize, store: u16, bytes: u64 },
    /// The last part of a request is at the client.
    Done { client: usize, slot: usize },
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    issued: Nanos,
    bytes: u64,
    parts_left: usize,
    arrived: Nanos,
}

/// A client with its file.
#[derive(Debug)]
struct Client {
    file: File,
    next: u64,
    random: fastrand::Rng,
    slots: Vec<Request>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Bytes per second of all clients together.
    pub rate: f64,
    /// Mean time of a request in nanoseconds.
    pub latency: f64,
    /// Bytes that each store sent in the measured time.
    pub sent: Vec<u64>,
    /// Bytes that each store has in use.
    pub used: Vec<u64>,
    /// Stores that each client reaches.
    pub reached: Vec<Vec<u16>>,
}

impl Outcome {
    /// Returns the most bytes that a store sent, divided by the mean.
    pub fn sent_imbalance(&self) -> Option<f64> {
        imbalance(&self.sent)
    }

    /// Returns the most bytes that a store has in use, divided by the mean.
    pub fn used_imbalance(&self) -> Option<f64> {
        imbalance(&self.used)
    }
}

/// Counts of the measured time.
#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    requests: u64,
    time: u128,
}

struct Run<'a> {
    model: &'a Model,
    events: Events<Event>,
    stores: Vec<Link>,
    machines: Vec<Link>,
    clients: Vec<Client>,
    sent: Vec<u64>,
    counted: Counted,
}

/// Simulates a model.
///
/// # Errors
/// There is nothing to simulate.
pub fn run(model: &Model) -> Result<Outcome, ModelError> {
    model.check()?;
    let (space, files) = place(model)?;
    let mut run = Run::new(model, files);
    while let Some((now, event)) = run.events.pop() {
        if now > model.end {
            break;
        }
        run.step(now, event);
    }
    let Counted { bytes, requests, time } = run.counted;
    let reached = |client: &Client| {
        let mut stores = client.file.stores.clone();
        stores.sort_unstable();
        stores.dedup();
        stores
    };
    Ok(Outcome {
        rate: bytes as f64 / model.seconds(),
        latency: if requests == 0 { 0.0 } else { time as f64 / requests as f64 },
        reached: run.clients.iter().map(reached).collect(),
        sent: run.sent,
        used: space.used().to_vec(),
    })
}

/// Creates the files, one after the other. The stores have room for all of them anywhere.
fn place(model: &Model) -> Result<(Space, Vec<File>), ModelError> {
    let shape = model.shape;
    let too_large = || ModelError::TooLarge { clients: shape.clients, file: shape.file };
    let all = shape.file.next_multiple_of(shape.unit).checked_mul(shape.clients as u64);
    // The stores together have numbers for all bytes, too.
    let room = all.filter(|all| all.checked_mul(u64::from(shape.stores)).is_some());
    let mut space = Space::new(shape.placement, shape.unit, shape.stores, room.ok_or_else(too_large)?);
    let files = (0..shape.clients).map(|_| space.create(shape.file));
    let files: Option<Vec<File>> = files.collect();
    files.map(|files| (space, files)).ok_or_else(too_large)
}

impl<'a> Run<'a> {
    fn new(model: &'a Model, files: Vec<File>) -> Self {
        let (rates, requests) = (model.rates, model.requests);
        let mut seeds = fastrand::Rng::with_seed(model.seed);
        let mut client = |file: File| {
            let mut random = fastrand::Rng::with_seed(seeds.u64(..));
            let blocks = file.len / requests.bytes;
            let next = if requests.together { 0 } else { random.u64(..blocks) * requests.bytes };
            Client { file, next, random, slots: vec![Request::default(); requests.depth] }
        };
        let clients: Vec<Client> = files.into_iter().map(&mut client).collect();
        let mut events = Events::default();
        for client in 0..clients.len() {
            for slot in 0..requests.depth {
                events.add(rates.overhead, Event::Issue { client, slot });
            }
        }
        let stores = usize::from(model.shape.stores);
        let machines = clients.len().div_ceil(rates.clients_per_machine);
        Self {
            model,
            events,
            stores: vec![Link::new(rates.link, rates.burst); stores],
            machines: vec![Link::new(rates.client, 0); machines],
            clients,
            sent: vec![0; stores],
            counted: Counted::default(),
        }
    }

    fn step(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Issue { client, slot } => self.issue(now, client, slot),
            Event::Sent { client, slot, store, bytes } => self.arrive(now, (client, slot), store, bytes),
            Event::Done { client, slot } => {
                let request = self.clients[client].slots[slot];
                if now >= self.model.warm_up {
                    self.counted.bytes += request.bytes;
                    self.counted.requests += 1;
                    self.counted.time += u128::from(now - request.issued);
                }
                self.events.add(now + self.model.rates.overhead, Event::Issue { client, slot });
            }
        }
    }

    fn issue(&mut self, now: Nanos, client: usize, slot: usize) {
        let (requests, unit) = (self.model.requests, self.model.shape.unit);
        let from = &mut self.clients[client];
        let blocks = from.file.len / requests.bytes;
        if requests.is_random {
            from.next = from.random.u64(..blocks) * requests.bytes;
        }
        let offset = from.next;
        from.next = (offset / requests.bytes + 1) % blocks * requests.bytes;
        let mut parts_left = 0;
        for (store, bytes) in from.file.parts(unit, offset, requests.bytes) {
            let at = self.stores[usize::from(store)].send(now, bytes);
            self.events.add(at, Event::Sent { client, slot, store, bytes });
            parts_left += 1;
        }
        from.slots[slot] = Request {
            issued: now - self.model.rates.overhead,
            bytes: requests.bytes,
            parts_left,
            arrived: now,
        };
    }

    fn arrive(&mut self, now: Nanos, (client, slot): (usize, usize), store: u16, bytes: u64) {
        if now >= self.model.warm_up {
            self.sent[usize::from(store)] += bytes;
        }
        let machine = client / self.model.rates.clients_per_machine;
        let at = self.machines[machine].send(now, bytes);
        let request = &mut self.clients[client].slots[slot];
        request.arrived = request.arrived.max(at);
        request.parts_left -= 1;
        if request.parts_left == 0 {
            self.events.add(request.arrived, Event::Done { client, slot });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        event::SECOND,
        model::{Rates, Requests, Shape},
        placement::Placement,
    };

    const MIB: u64 = 1 << 20;

    fn model(stores: u16, clients: usize) -> Model {
        let rates = Rates { link: 100e6, burst: 0, client: 1e12, clients_per_machine: 1, overhead: 1000 };
        let requests = Requests { bytes: MIB, depth: 4, is_random: false, together: false };
        let shape = Shape { stores, clients, file: 64 * MIB, placement: Placement::Stripe, unit: MIB / 4 };
        Model { rates, requests, shape, warm_up: SECOND / 2, end: 3 * SECOND, seed: 1 }
    }

    /// Catches a store that serves more than its link carries, or stands still with work to do.
    #[test]
    fn a_store_alone_serves_at_its_rate() {
        for clients in [1, 7] {
            let outcome = run(&model(1, clients)).unwrap();
            assert!((outcome.rate / 100e6 - 1.0).abs() < 0.01, "{}", outcome.rate);
            assert_eq!(outcome.sent_imbalance(), Some(1.0));
        }
    }

    /// Catches a client that is served faster than its machine, and an overhead that is free.
    #[test]
    fn a_client_is_not_faster_than_its_machine() {
        let mut slow = model(4, 1);
        slow.rates.client = 50e6;
        let outcome = run(&slow).unwrap();
        assert!((outcome.rate / 50e6 - 1.0).abs() < 0.01, "{}", outcome.rate);
        let mut waits = model(1, 1);
        waits.requests.depth = 1;
        waits.rates.overhead = SECOND / 100;
        let each = MIB as f64 / 100e6 + 0.01;
        let outcome = run(&waits).unwrap();
        assert!((outcome.rate * each / MIB as f64 - 1.0).abs() < 0.02, "{}", outcome.rate);
        assert!((outcome.latency / (each * 1e9) - 1.0).abs() < 0.02, "{}", outcome.latency);
    }

    /// Catches parts of one request that wait for each other: a request over four stores takes a
    /// quarter of the time.
    #[test]
    fn parts_of_a_request_are_under_way_at_once() {
        let mut one_at_a_time = model(4, 1);
        one_at_a_time.requests.depth = 1;
        let outcome = run(&one_at_a_time).unwrap();
        assert!((outcome.rate / 400e6 - 1.0).abs() < 0.01, "{}", outcome.rate);
        // With pieces as long as requests, one store works at a time.
        one_at_a_time.shape.unit = MIB;
        let outcome = run(&one_at_a_time).unwrap();
        assert!((outcome.rate / 100e6 - 1.0).abs() < 0.01, "{}", outcome.rate);
    }

    #[test]
    fn equal_seeds_give_equal_runs() {
        let mut random = model(5, 9);
        random.requests.is_random = true;
        let first = run(&random).unwrap();
        assert_eq!(run(&random).unwrap(), first);
        random.seed = 2;
        assert_ne!(run(&random).unwrap(), first);
    }

    #[test]
    fn models_without_work_are_refused() {
        let refused = |change: fn(&mut Model)| {
            let mut model = model(1, 1);
            change(&mut model);
            run(&model).unwrap_err()
        };
        assert_eq!(refused(|model| model.shape.stores = 0), ModelError::Zero("the number of stores"));
        assert_eq!(
            refused(|model| model.requests.depth = 0),
            ModelError::Zero("the number of requests in flight")
        );
        assert_eq!(refused(|model| model.end = 0), ModelError::Zero("the measured time"));
        assert!(matches!(refused(|model| model.requests.bytes = 65 * MIB), ModelError::ShortFile { .. }));
        assert!(matches!(refused(|model| model.shape.file = u64::MAX / 2), ModelError::TooLarge { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Catches parts that are lost or sent twice: all that clients got, stores have sent, but
        /// for requests in flight.
        #[test]
        fn bytes_are_conserved(
            stores in 1..9_u16, clients in 1..6_usize, depth in 1..5_usize, is_random in any::<bool>(),
            unit in 1..5_u64, seed in any::<u64>(),
        ) {
            let mut model = model(stores, clients);
            model.requests = Requests { depth, is_random, ..model.requests };
            model.shape.unit = unit * MIB / 4;
            (model.warm_up, model.end, model.seed) = (0, SECOND, seed);
            let outcome = run(&model).unwrap();
            let (got, sent) = (outcome.rate * model.seconds(), outcome.sent.iter().sum::<u64>() as f64);
            let in_flight = (clients * depth) as f64 * MIB as f64;
            prop_assert!(got <= sent + 1.0 && sent <= got + in_flight, "{} {}", got, sent);
            prop_assert!(outcome.sent.iter().all(|sent| *sent as f64 <= 100e6 * model.seconds() * 1.001));
            prop_assert_eq!(outcome.used.iter().sum::<u64>(), clients as u64 * 64 * MIB);
        }
    }
}
