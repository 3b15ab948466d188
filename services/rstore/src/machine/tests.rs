//! Random inputs against the invariants, with stores that are slow, fail and vanish, and with
//! writers that write until a store has fenced them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pool::{ChunkId, ClientId, Incarnation, Order, OrderError, Outcome, StoreId};
use proptest::prelude::*;

use super::{Input, Machine, Output, Settings};
use crate::{
    proto::{Answer, NamespaceId, RegionId, Request, Resume, StoreCard},
    refusal::Refusal,
};

const CHUNK: u64 = 4096;
const CAPACITY: u64 = 6;

fn settings() -> Settings {
    Settings { chunk_bytes: CHUNK, cache_chunks: 5, lease_millis: 100, grace_millis: 50 }
}

/// A writer with chunks that it may write until it is fenced.
#[derive(Clone, Debug)]
struct Writer {
    client: ClientId,
    epoch: u32,
    region: RegionId,
    lease: u64,
    first: usize,
    chunks: Vec<ChunkId>,
}

/// The machine with its surroundings.
struct World {
    machine: Machine,
    now: u64,
    calls: u64,
    answers: BTreeMap<u64, Answer>,
    /// Orders that the stores have not executed.
    orders: BTreeMap<StoreId, VecDeque<(u64, Order)>>,
    /// Chunks of each store that runs.
    stores: BTreeMap<StoreId, BTreeSet<u32>>,
    /// Number of the last link of each store.
    links: BTreeMap<StoreId, u64>,
    next_chunk: u32,
    fenced: BTreeMap<(StoreId, ClientId), u32>,
    clients: Vec<Resume>,
    namespaces: Vec<NamespaceId>,
    /// References by client, region and version.
    held: Vec<(ClientId, RegionId, u64)>,
    writers: Vec<Writer>,
    /// The last value that was written to each chunk.
    memory: BTreeMap<ChunkId, u64>,
    /// Values of the newest version of each copy-on-write region.
    expected: BTreeMap<RegionId, Vec<u64>>,
    value: u64,
    lost_store: bool,
}

impl World {
    fn new() -> World {
        let mut world = World {
            machine: Machine::new(settings()),
            now: 0,
            calls: 0,
            answers: BTreeMap::new(),
            orders: BTreeMap::new(),
            stores: BTreeMap::new(),
            links: BTreeMap::new(),
            next_chunk: 0,
            fenced: BTreeMap::new(),
            clients: Vec::new(),
            namespaces: Vec::new(),
            held: Vec::new(),
            writers: Vec::new(),
            memory: BTreeMap::new(),
            expected: BTreeMap::new(),
            value: 0,
            lost_store: false,
        };
        (0..3).for_each(|number| world.register(number));
        (0..3).for_each(|_| world.hello());
        world
    }

    fn apply(&mut self, input: Input) {
        for output in self.machine.apply(self.now, input) {
            match output {
                Output::Reply { call, answer, .. } => _ = self.answers.insert(call, answer),
                Output::Order { store, number, order } => {
                    self.orders.entry(store).or_default().push_back((number, order));
                }
                Output::Connect { store, link, .. } => {
                    self.stores.entry(store).or_default();
                    self.links.insert(store, link);
                }
                Output::Disconnect(store) => {
                    self.orders.remove(&store);
                    if !self.machine.stores.contains_key(&store) {
                        self.stores.remove(&store);
                        self.lost_store = true;
                    }
                }
            }
        }
        if let Err(fault) = self.machine.check() {
            panic!("{fault}: {:#?}", self.machine);
        }
    }

    fn register(&mut self, number: u128) {
        self.calls += 1;
        let card = StoreCard {
            address: format!("store-{number}"),
            incarnation: Incarnation(number),
            capacity: CAPACITY * CHUNK + 1,
        };
        self.apply(Input::Register { call: self.calls, card });
        if let Some(Answer::Registered(store)) = self.answers.remove(&self.calls) {
            self.ready(store);
        }
    }

    fn ready(&mut self, store: StoreId) {
        // The link begins anew: orders that were not executed are given again.
        self.orders.remove(&store);
        let chunks = self.stores.get(&store).map(|chunks| chunks.iter().copied().collect());
        if let Some(chunks) = chunks {
            self.apply(Input::StoreReady { store, link: self.links[&store], chunks });
        }
    }

    fn hello(&mut self) {
        self.calls += 1;
        self.apply(Input::Hello { call: self.calls, resume: None, nonce: u128::from(self.calls) });
        match self.answers.remove(&self.calls) {
            Some(Answer::Welcome(welcome)) => self.clients.push(welcome.resume),
            other => panic!("{other:?}"),
        }
    }

    /// Makes a call. `None` if its answer waits for stores.
    fn call(&mut self, client: ClientId, request: Request) -> Option<Answer> {
        self.calls += 1;
        self.apply(Input::Call { call: self.calls, client, request });
        self.answers.remove(&self.calls)
    }

    /// Returns the nth store of those that run.
    fn store(&self, n: u8) -> StoreId {
        self.stores.keys().copied().cycle().nth(n as usize).unwrap_or(StoreId(0))
    }

    /// Lets all stores execute all of their orders.
    fn execute_all(&mut self) {
        while let Some(store) = self
            .orders
            .iter()
            .find(|(store, orders)| !orders.is_empty() && self.stores.contains_key(store))
            .map(|(store, _)| *store)
        {
            self.execute(store, false);
        }
    }

    /// Lets a store execute its next order.
    fn execute(&mut self, store: StoreId, fails: bool) {
        let Some((number, order)) = self.orders.get_mut(&store).and_then(VecDeque::pop_front) else { return };
        let Some(chunks) = self.stores.get_mut(&store) else { return };
        let outcome = match order {
            Order::Prepare { .. } if fails => Outcome::Failed(OrderError::NoMemory("no".into())),
            Order::Prepare { count, .. } => {
                let numbers: Vec<u32> = (self.next_chunk..self.next_chunk + count).collect();
                self.next_chunk += count;
                chunks.extend(&numbers);
                assert!(chunks.len() as u64 <= CAPACITY, "more than the capacity");
                Outcome::Chunks(numbers)
            }
            Order::Discard(numbers) => {
                numbers.iter().for_each(|number| assert!(chunks.remove(number), "no chunk {number}"));
                Outcome::Done
            }
            Order::Fence { client, epoch } => {
                let last = self.fenced.entry((store, client)).or_insert(epoch);
                *last = epoch.max(*last);
                Outcome::Done
            }
            Order::Mark { .. } | Order::Join(_) | Order::List { .. } | Order::Zero { .. } => Outcome::Done,
        };
        self.apply(Input::OrderDone { link: self.links[&store], order: number, outcome });
    }

    /// Writes to the chunks of a writer, if no store has fenced it. The writer knows nothing of the
    /// master's state.
    fn write(&mut self, at: usize) {
        let Some(writer) = self.writers.get(at) else { return };
        self.value += 1;
        for chunk in &writer.chunks {
            let fenced = self.fenced.get(&(chunk.store, writer.client));
            if fenced.is_none_or(|epoch| *epoch < writer.epoch) {
                self.memory.insert(*chunk, self.value);
            }
        }
    }

    /// Checks that the newest version of each region has the committed bytes.
    fn check_memory(&self) {
        if self.lost_store {
            return;
        }
        for (id, values) in &self.expected {
            let namespace = self.machine.namespaces.get(&id.namespace);
            let Some(region) = namespace.and_then(|namespace| namespace.regions.get(&id.address)) else {
                continue;
            };
            let chunks = &region.versions[&region.newest].chunks;
            let found: Vec<u64> = chunks.iter().map(|chunk| *self.memory.get(chunk).unwrap_or(&0)).collect();
            assert_eq!(&found, values, "the newest version of {id:?}");
        }
    }

    fn step(&mut self, step: Step) {
        let client = |world: &World, n: u8| world.clients[n as usize % world.clients.len()].client;
        match step {
            Step::Create(n, name) => {
                let request = Request::CreateNamespace(format!("ns{}", name % 3));
                if let Some(Answer::Namespace(id)) = self.call(client(self, n), request) {
                    self.namespaces.push(id);
                }
            }
            Step::Delete(n, at) => _ = self.on_namespace(n, at, Request::DeleteNamespace),
            Step::Reserve(n, at, chunks) => {
                let bytes = u64::from(chunks) * CHUNK;
                _ = self.on_namespace(n, at, |id| Request::Reserve(id, bytes));
            }
            Step::Release(n, at, chunks) => {
                let bytes = u64::from(chunks) * CHUNK;
                _ = self.on_namespace(n, at, |id| Request::Release(id, bytes));
            }
            Step::Alloc(n, at, chunks) => {
                let bytes = u64::from(chunks) * CHUNK;
                let alloc = |namespace| Request::Alloc { namespace, bytes, copy_on_write: true };
                let answer = self.on_namespace(n, at, alloc);
                self.enter(client(self, n), answer, true);
            }
            Step::Init(n, at) => {
                let Some((_, region, _)) = self.held.get(at as usize).copied() else { return };
                let RegionId { namespace, address } = region;
                let answer = self.call(client(self, n), Request::Init { namespace, address, bytes: 1 });
                self.enter(client(self, n), answer, false);
            }
            Step::Free(at) => {
                let Some((of, region, _)) = self.held.get(at as usize).copied() else { return };
                if self.call(of, Request::Free(region)) == Some(Answer::Done) {
                    self.held.retain(|held| held.1 != region);
                    self.expected.remove(&region);
                    // A client writes nothing more to a region that it frees.
                    self.writers.retain(|writer| writer.region != region || writer.client != of);
                }
            }
            Step::Drop(at) if (at as usize) < self.held.len() => {
                let (of, region, version) = self.held.swap_remove(at as usize);
                self.call(of, Request::Drop(region, version));
            }
            Step::Lease(at, first) => self.lease(at as usize, u32::from(first)),
            Step::Write(at) => self.write(at as usize),
            Step::Commit(at) => self.commit(at as usize),
            Step::Abort(at) if (at as usize) < self.writers.len() => {
                let writer = self.writers.swap_remove(at as usize);
                self.call(writer.client, Request::Abort(writer.region, writer.lease));
            }
            step => self.step_of_world(step),
        }
        self.check_memory();
    }

    /// Takes a step that is no call.
    fn step_of_world(&mut self, step: Step) {
        match step {
            Step::Execute(n, fails) => {
                let store = self.store(n);
                self.execute(store, fails);
            }
            Step::Wait(millis) => {
                self.now += u64::from(millis);
                self.apply(Input::Tick);
            }
            Step::Gone(n) => {
                let client = self.clients[n as usize % self.clients.len()].client;
                self.apply(Input::ClientGone(client));
            }
            Step::Resume(n) => {
                self.calls += 1;
                let resume = Some(self.clients[n as usize % self.clients.len()]);
                self.apply(Input::Hello { call: self.calls, resume, nonce: 0 });
            }
            Step::Hello => self.hello(),
            Step::StoreGone(n) => {
                let store = self.store(n);
                self.apply(Input::StoreGone(store));
            }
            Step::LinkLost(n, age) => {
                let store = self.store(n);
                let link = self.links.get(&store).copied().unwrap_or(0).saturating_sub(u64::from(age));
                self.apply(Input::LinkLost { store, link });
            }
            Step::Stale(n) => {
                let store = self.store(n);
                let link = self.links.get(&store).copied().unwrap_or(0).saturating_sub(1);
                self.apply(Input::StoreReady { store, link, chunks: vec![7] });
                let orders = self.orders.get(&store).into_iter().flatten();
                let order = orders.map(|(number, _)| *number).next().unwrap_or(0);
                self.apply(Input::OrderDone { link, order, outcome: Outcome::Done });
            }
            Step::Register(number) => self.register(u128::from(number % 4)),
            Step::Restart => {
                let bytes = postcard::to_stdvec(&self.machine).expect("plain values");
                let restored: Machine = postcard::from_bytes(&bytes).expect("the same values");
                assert_eq!(restored, self.machine);
                self.machine = restored;
                self.apply(Input::Restart);
            }
            _ => {}
        }
    }

    fn on_namespace(
        &mut self,
        n: u8,
        at: u8,
        request: impl FnOnce(NamespaceId) -> Request,
    ) -> Option<Answer> {
        let id = *self.namespaces.get(at as usize % self.namespaces.len().max(1))?;
        let client = self.clients[n as usize % self.clients.len()].client;
        self.call(client, request(id))
    }

    fn enter(&mut self, client: ClientId, answer: Option<Answer>, is_new: bool) {
        let Some(Answer::Region(info)) = answer else { return };
        self.held.push((client, info.region, info.version));
        if is_new {
            self.value += 1;
            info.chunks.iter().for_each(|chunk| _ = self.memory.insert(*chunk, self.value));
            self.expected.insert(info.region, vec![self.value; info.chunks.len()]);
        }
    }

    fn lease(&mut self, at: usize, first: u32) {
        let Some((client, region, _)) = self.held.get(at).copied() else { return };
        // The client introduces itself with the epoch of the reply.
        let answer = self.call(client, Request::Lease { region, first, count: 1 });
        let epoch = self.machine.epoch(client);
        if let Some(Answer::Lease(info)) = answer {
            let (lease, chunks, first) = (info.lease, info.chunks, first as usize);
            self.writers.push(Writer { client, epoch, region, lease, first, chunks });
        }
    }

    fn commit(&mut self, at: usize) {
        if at >= self.writers.len() {
            return;
        }
        self.write(at);
        let writer = self.writers.swap_remove(at);
        let (client, region) = (writer.client, writer.region);
        let answer = self.call(client, Request::Commit(region, writer.lease));
        if let Some(Answer::Region(info)) = answer {
            let values = self.expected.get_mut(&region).expect("a region");
            values[writer.first] = self.memory[&writer.chunks[0]];
            self.held.push((client, region, info.version));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, u8),
    Delete(u8, u8),
    Reserve(u8, u8, u8),
    Release(u8, u8, u8),
    Alloc(u8, u8, u8),
    Init(u8, u8),
    Free(u8),
    Drop(u8),
    Lease(u8, u8),
    Write(u8),
    Commit(u8),
    Abort(u8),
    Execute(u8, bool),
    Wait(u8),
    Gone(u8),
    Resume(u8),
    Hello,
    StoreGone(u8),
    /// The link fails, or one of before.
    LinkLost(u8, u8),
    /// A link of before is ready, and answers.
    Stale(u8),
    Register(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (n, at) = (0..4_u8, 0..6_u8);
    prop_oneof![
        2 => (n.clone(), n.clone()).prop_map(|(n, name)| Step::Create(n, name)),
        1 => (n.clone(), n.clone()).prop_map(|(n, at)| Step::Delete(n, at)),
        6 => (n.clone(), n.clone(), 0..8_u8).prop_map(|(n, at, chunks)| Step::Reserve(n, at, chunks)),
        1 => (n.clone(), n.clone(), 0..4_u8).prop_map(|(n, at, chunks)| Step::Release(n, at, chunks)),
        5 => (n.clone(), n.clone(), 0..4_u8).prop_map(|(n, at, chunks)| Step::Alloc(n, at, chunks)),
        2 => (n.clone(), at.clone()).prop_map(|(n, at)| Step::Init(n, at)),
        1 => at.clone().prop_map(Step::Free),
        2 => at.clone().prop_map(Step::Drop),
        5 => (at.clone(), 0..3_u8).prop_map(|(at, first)| Step::Lease(at, first)),
        4 => at.clone().prop_map(Step::Write),
        4 => at.clone().prop_map(Step::Commit),
        1 => at.clone().prop_map(Step::Abort),
        12 => (1..4_u8, proptest::bool::weighted(0.1)).prop_map(|(store, fails)| Step::Execute(store, fails)),
        2 => (0..60_u8).prop_map(Step::Wait),
        1 => n.clone().prop_map(Step::Gone),
        1 => n.clone().prop_map(Step::Resume),
        1 => Just(Step::Hello),
        1 => (1..4_u8).prop_map(Step::StoreGone),
        1 => (1..4_u8, 0..2_u8).prop_map(|(n, age)| Step::LinkLost(n, age)),
        1 => (1..4_u8).prop_map(Step::Stale),
        1 => n.prop_map(Step::Register),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_chunk_has_one_use_and_the_last_version_survives(
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        // When all clients have gone and all namespaces are deleted, every chunk is free.
        (0..world.clients.len()).for_each(|n| {
            let client = world.clients[n].client;
            world.apply(Input::ClientGone(client));
        });
        (0..4).for_each(|number| world.register(number));
        world.now += 1000;
        world.apply(Input::Tick);
        (0..4).for_each(|number| world.register(number));
        world.execute_all();
        prop_assert!(world.machine.clients.is_empty(), "{:#?}", world.machine);
        world.hello();
        let client = world.clients.last().expect("a client").client;
        for id in std::mem::take(&mut world.namespaces) {
            world.call(client, Request::DeleteNamespace(id));
        }
        world.execute_all();
        let chunks = world.machine.status().chunks;
        prop_assert_eq!(chunks.reserved + chunks.bound + chunks.leased + chunks.fenced, 0);
        let free: usize = world.stores.values().map(BTreeSet::len).sum();
        prop_assert_eq!(chunks.free, free as u64);
    }
}

#[test]
fn sizes_that_no_pool_has_are_refused_without_an_effect() {
    let mut world = World::new();
    let client = world.clients[0].client;
    let Some(Answer::Namespace(id)) = world.call(client, Request::CreateNamespace("a".into())) else {
        panic!("no namespace")
    };
    let before = world.machine.clone();
    let refused = |world: &mut World, request| match world.call(client, request) {
        Some(Answer::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut world, Request::Reserve(id, 0)), Refusal::InvalidSize(0));
    for bytes in [1 << 63, u64::MAX] {
        let refusal = refused(&mut world, Request::Reserve(id, bytes));
        assert!(matches!(refusal, Refusal::NotEnoughMemory { room: 18, .. }), "{refusal}");
        let alloc = Request::Alloc { namespace: id, bytes, copy_on_write: false };
        let refusal = refused(&mut world, alloc);
        assert!(matches!(refusal, Refusal::NotReserved { .. } | Refusal::InvalidSize(_)), "{refusal}");
        let init = Request::Init { namespace: id, address: bytes, bytes };
        assert!(matches!(refused(&mut world, init), Refusal::InvalidSize(_) | Refusal::NoSuchRegion { .. }));
    }
    assert_eq!(
        refused(&mut world, Request::CreateNamespace("a".into())),
        Refusal::NamespaceExists("a".into())
    );
    assert_eq!(refused(&mut world, Request::CreateNamespace(String::new())), Refusal::InvalidName);
    assert_eq!(world.machine, before);
}

/// Returns a world with one namespace, and the orders of a reservation of three chunks outstanding.
fn reserving() -> (World, ClientId, NamespaceId) {
    let mut world = World::new();
    let client = world.clients[0].client;
    let Some(Answer::Namespace(id)) = world.call(client, Request::CreateNamespace("a".into())) else {
        panic!("no namespace")
    };
    assert_eq!(world.call(client, Request::Reserve(id, 3 * CHUNK)), None);
    (world, client, id)
}

#[test]
fn a_reservation_succeeds_after_an_interrupted_first_one() {
    let (mut world, client, id) = reserving();
    let call = world.calls;
    // The stores prepare the chunks, and their answers are lost.
    for store in world.stores.keys().copied().collect::<Vec<_>>() {
        let chunk = world.next_chunk;
        world.next_chunk += 1;
        world.stores.get_mut(&store).expect("a store").insert(chunk);
        world.orders.remove(&store);
        world.apply(Input::StoreGone(store));
    }
    assert!(matches!(world.answers.remove(&call), Some(Answer::Refused(Refusal::StoreLost(_)))));
    (0..3).for_each(|number| world.register(number));
    assert_eq!(world.machine.status().chunks.free, 3, "the chunks are this master's");
    assert_eq!(world.call(client, Request::Reserve(id, 3 * CHUNK)), Some(Answer::Done));
}

#[test]
fn chunks_of_another_master_are_not_used() {
    let mut world = World::new();
    let card = StoreCard { address: "x".into(), incarnation: Incarnation(77), capacity: CAPACITY * CHUNK };
    world.apply(Input::Register { call: 1, card });
    let (store, link) = world.links.last_key_value().map(|(store, link)| (*store, *link)).expect("a link");
    // An order that waits for the store does not make its chunks known.
    let client = world.clients[0].client;
    world.call(client, Request::Goodbye);
    world.apply(Input::StoreReady { store, link, chunks: vec![1, 2] });
    assert!(!world.machine.stores.contains_key(&store));
    assert_eq!(world.machine.status().chunks.free, 0);
}

#[test]
fn a_store_whose_link_is_lost_registers_again_and_keeps_its_chunks() {
    let (mut world, client, id) = reserving();
    world.execute_all();
    let store = world.store(0);
    let link = world.links[&store];
    let outputs = world.machine.apply(world.now, Input::LinkLost { store, link });
    assert_eq!(outputs, [Output::Disconnect(store)], "its sessions end, so that it registers");
    world.register(0);
    assert!(world.links[&store] > link, "the store has another link under its old number");
    let alloc = Request::Alloc { namespace: id, bytes: 3 * CHUNK, copy_on_write: false };
    assert!(matches!(world.call(client, alloc), Some(Answer::Region(_))));
    // Late messages of the previous link have no effect.
    let machine = world.machine.clone();
    world.apply(Input::LinkLost { store, link });
    world.apply(Input::StoreReady { store, link, chunks: Vec::new() });
    assert_eq!(world.machine, machine);
}

#[test]
fn a_store_does_not_take_the_address_of_one_that_is_up() {
    let mut world = World::new();
    let register = |world: &mut World| {
        let address = "store-0".into();
        let card = StoreCard { address, incarnation: Incarnation(77), capacity: CAPACITY * CHUNK };
        world.apply(Input::Register { call: 1, card });
        world.answers.remove(&1)
    };
    let refused = register(&mut world);
    assert!(matches!(refused, Some(Answer::Refused(Refusal::InvalidStore(_)))), "{refused:?}");
    assert_eq!(world.machine.stores.len(), 3);
    // The next run of the same store.
    let store = world.store(0);
    world.apply(Input::StoreGone(store));
    assert!(matches!(register(&mut world), Some(Answer::Registered(_))));
    assert!(!world.machine.stores.contains_key(&store));
}
