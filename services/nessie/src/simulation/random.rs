//! Random histories: clients on several nodes, single steps in any order, kills, stops and aborts.
//!
//! One number decides everything about a history, so that a failure can be repeated:
//! `NESSIE_SEED=N cargo test -p nessie --lib simulation::random`.

use fastrand::Rng;

use crate::logic::{
    allocator::Allocator,
    context::{Context, Rules},
    entry,
    operations::put::{Leftover, Repair},
    placement::{Place, Slot},
    verb::{Answer, Step, Stored, Verb},
    word::{EntryRef, Fields},
};

use super::{
    history::{Event, Record, is_linearizable},
    operation::{Operation, Order, Outcome, plan_move},
    world::{Table, UnderWay, World},
};

/// Parameters of a history.
#[derive(Clone, Debug)]
struct Plan {
    nodes: u16,
    slots: u32,
    entries: u32,
    keys: u8,
    ways: usize,
    clients: usize,
    operations: usize,
    /// Steps that an operation may take, and that an entry waits before it is used again.
    limit: u64,
    /// A node may be killed, and a client may stop.
    has_faults: bool,
    rules: Rules,
    is_bounded: bool,
    fields: Fields,
}

impl Plan {
    fn random(rng: &mut Rng) -> Plan {
        let nodes = rng.u16(1..4);
        Plan {
            nodes,
            slots: rng.u32(3..6),
            entries: rng.u32(4..12),
            keys: rng.u8(1..5),
            ways: rng.usize(2..4),
            clients: rng.usize(2..5),
            operations: rng.usize(6..40),
            limit: rng.u64(150..2000),
            has_faults: rng.bool(),
            rules: Rules::SAFE,
            is_bounded: true,
            fields: Fields::new(u32::from(nodes), 3),
        }
    }

    fn table(&self, rng: &mut Rng) -> Table {
        let all: Vec<Slot> = (0..self.nodes)
            .flat_map(|node| (0..self.slots).map(move |number| Slot { node, number }))
            .collect();
        // Few slots, so that keys meet in them.
        let near = rng.usize(self.ways..=all.len());
        let near = rng.choose_multiple(all, near);
        let mut place = |key: u8| Place {
            slots: rng.choose_multiple(near.iter().copied(), self.ways).into(),
            // Distinct, so that a lost entry of one key is never taken for another key's.
            filter: u16::from(key),
        };
        Table { places: (0..self.keys).map(&mut place).collect(), fields: self.fields }
    }
}

/// A client and the operation that it executes.
struct Client {
    node: u16,
    run: Option<Run>,
    leftovers: Vec<Leftover>,
    is_stopped: bool,
}

struct Run {
    order: Option<Order>,
    operation: Operation,
    called: u64,
    under_way: UnderWay,
    held: Vec<u32>,
}

struct Simulation {
    plan: Plan,
    table: Table,
    world: World,
    allocators: Vec<Allocator>,
    clients: Vec<Client>,
    now: u64,
    next_value: u64,
    histories: Vec<Vec<Record>>,
    rng: Rng,
}

impl Simulation {
    fn new(plan: Plan, mut rng: Rng) -> Simulation {
        let table = plan.table(&mut rng);
        let clients = (0..plan.clients)
            .map(|at| Client {
                node: at as u16 % plan.nodes,
                run: None,
                leftovers: Vec::new(),
                is_stopped: false,
            })
            .collect();
        Simulation {
            world: World::new(plan.nodes.into(), plan.slots as usize, plan.entries as usize),
            allocators: (0..plan.nodes).map(|_| Allocator::new(plan.entries, plan.limit)).collect(),
            clients,
            now: 0,
            next_value: 0,
            histories: vec![Vec::new(); plan.keys.into()],
            table,
            plan,
            rng,
        }
    }

    fn record(&mut self, order: Order, called: u64, returned: Option<u64>, event: Event) {
        self.histories[usize::from(order.key())].push(Record { called, returned, event });
    }

    fn begin(&mut self, at: usize) {
        let patience = self.rng.u16(0..3);
        let cx = Context { placement: &self.table, max_depth: 3, patience, rules: self.plan.rules };
        let (order, operation) = match self.clients[at].leftovers.pop() {
            Some(left) => (None, Operation::Repair(Box::new(Repair::new(left)))),
            None => {
                let key = self.rng.u8(..self.plan.keys);
                let order = match self.rng.u8(..12) {
                    0..=3 => Order::Get(key),
                    4..=6 => {
                        self.next_value += 1;
                        Order::Put(key, self.next_value)
                    }
                    7..=8 => Order::Delete(key),
                    _ => {
                        let (from, to) = (self.rng.usize(..self.plan.ways), self.rng.usize(..self.plan.ways));
                        let Some(order) = plan_move(&mut self.world, &self.table, key, from, to) else {
                            return;
                        };
                        return self.start(at, None, Operation::migrate(order));
                    }
                };
                (Some(order), Operation::new(&cx, order))
            }
        };
        self.start(at, order, operation);
    }

    fn start(&mut self, at: usize, order: Option<Order>, mut operation: Operation) {
        self.now += 1;
        let called = self.now;
        let cx = Context { placement: &self.table, max_depth: 3, patience: 1, rules: self.plan.rules };
        match operation.step(&cx, Answer::None) {
            Step::Done(_) => {}
            Step::Issue(verb) => {
                let mut held = Vec::new();
                let under_way = self.issue(at, verb, &mut held);
                self.clients[at].run = Some(Run { order, operation, called, under_way, held });
            }
        }
    }

    fn issue(&mut self, at: usize, verb: Verb, held: &mut Vec<u32>) -> UnderWay {
        let node = self.clients[at].node;
        let mut target = None;
        if let Verb::Store(_) = verb {
            let world = &self.world;
            let taken = self.allocators[usize::from(node)].take(self.now, |offset| world.head(node, offset));
            if let Ok(offset) = taken {
                held.push(offset);
                let life = entry::split_head(world.head(node, offset)).0 + 1;
                target = Some(Stored { entry: EntryRef { table: node, offset }, life });
            }
        }
        let rng = &mut self.rng;
        UnderWay::new(verb, target, |order| rng.shuffle(order))
    }

    fn end(&mut self, at: usize, run: Run, outcome: Option<Outcome>) {
        let is_late = self.plan.is_bounded && self.now > run.called + self.plan.limit;
        match (run.order, outcome) {
            (Some(order), Some(Outcome::Event(event))) if !is_late => {
                self.record(order, run.called, Some(self.now), event);
            }
            (Some(_), Some(Outcome::Nothing)) | (None, _) => {}
            (Some(order), _) => {
                if let Some(event) = order.unknown() {
                    self.record(order, run.called, None, event);
                }
            }
        }
        let allocator = &mut self.allocators[usize::from(self.clients[at].node)];
        run.held.into_iter().for_each(|offset| allocator.end_hold(offset, self.now));
    }

    /// Executes one part of a verb of a client.
    fn advance(&mut self, at: usize) {
        self.now += 1;
        let Some(mut run) = self.clients[at].run.take() else { return self.begin(at) };
        let Some(answer) = run.under_way.advance(&mut self.world) else {
            self.clients[at].run = Some(run);
            return;
        };
        let cx = Context { placement: &self.table, max_depth: 3, patience: 1, rules: self.plan.rules };
        // The network fails: it is unknown whether the last verb took effect.
        let is_broken = self.plan.has_faults && self.rng.u32(..2000) == 0;
        let step = if is_broken { None } else { Some(run.operation.step(&cx, answer)) };
        let is_late = self.plan.is_bounded && self.now > run.called + self.plan.limit;
        match step {
            Some(Step::Done(outcome)) => {
                // As in the driver, a result that comes late is none.
                if is_late {
                    let left = run.operation.clone().leftover(&cx, true);
                    self.clients[at].leftovers.extend(left);
                }
                self.end(at, run, Some(outcome));
            }
            Some(Step::Issue(verb)) if !is_late => {
                let mut held = std::mem::take(&mut run.held);
                run.under_way = self.issue(at, verb, &mut held);
                run.held = held;
                self.clients[at].run = Some(run);
            }
            given_up => {
                let left = run.operation.clone().leftover(&cx, given_up.is_none());
                self.clients[at].leftovers.extend(left);
                self.end(at, run, None);
            }
        }
    }

    fn kill(&mut self, node: u16) {
        self.world.lose(node);
        for at in 0..self.clients.len() {
            if self.clients[at].node == node {
                self.clients[at].is_stopped = true;
            }
        }
    }

    fn run(mut self) -> Vec<Vec<Record>> {
        let mut begun = 0;
        for _ in 0..200_000 {
            let ready: Vec<usize> = (0..self.clients.len())
                .filter(|at| !self.clients[*at].is_stopped)
                .filter(|at| {
                    let client = &self.clients[*at];
                    client.run.is_some() || begun < self.plan.operations || !client.leftovers.is_empty()
                })
                .collect();
            let Some(&at) = self.rng.choice(&ready) else { break };
            begun += usize::from(self.clients[at].run.is_none());
            // A client that runs for a while, or a single step.
            for _ in 0..if self.rng.bool() { 1 } else { self.rng.u32(1..30) } {
                self.advance(at);
                if self.clients[at].run.is_none() {
                    break;
                }
            }
            if self.plan.has_faults && self.rng.u32(..400) == 0 {
                match self.rng.u32(..4) {
                    0 if self.plan.nodes > 1 => {
                        let alive: Vec<u16> =
                            (0..self.plan.nodes).filter(|node| !self.world.is_lost(*node)).collect();
                        if alive.len() > 1 {
                            let node = alive[self.rng.usize(..alive.len())];
                            self.kill(node);
                        }
                    }
                    // A stop, and the end of a stop.
                    _ => {
                        let at = self.rng.usize(..self.clients.len());
                        if !self.world.is_lost(self.clients[at].node) {
                            self.clients[at].is_stopped ^= true;
                        }
                    }
                }
            }
        }
        for at in 0..self.clients.len() {
            if let Some(run) = self.clients[at].run.take() {
                self.end(at, run, None);
            }
        }
        self.histories
    }
}

/// Runs a history, and returns the first key whose history is not linearizable.
fn check(plan: Plan, rng: Rng) -> Option<Vec<Record>> {
    Simulation::new(plan, rng).run().into_iter().find(|records| !is_linearizable(records))
}

fn run_seed(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::random(&mut rng);
    let shown = format!("{plan:?}");
    if let Some(mut records) = check(plan, rng) {
        records.sort_by_key(|record| record.called);
        let records: Vec<String> = records.iter().map(|record| format!("{record:?}")).collect();
        panic!("NESSIE_SEED={seed}: not linearizable\n{shown}\n{}", records.join("\n"));
    }
}

/// Returns the number of histories of a run, or the seconds that a soak runs.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn ten_thousand_random_histories_are_linearizable() {
    if let Some(seed) = setting("NESSIE_SEED") {
        return run_seed(seed);
    }
    (0..setting("NESSIE_HISTORIES").unwrap_or(10_000)).for_each(run_seed);
}

#[test]
fn a_put_keeps_the_value_that_replaced_its_own() {
    let find_fault = |put_scans_up| {
        let mut rng = Rng::with_seed(12835151759919071750);
        let mut plan = Plan::random(&mut rng);
        plan.rules.put_scans_up = put_scans_up;
        check(plan, rng)
    };
    assert!(find_fault(false).is_some(), "the seed shows the fault of a scan from high to low");
    assert_eq!(find_fault(true), None);
}

#[test]
fn the_repair_of_a_put_leaves_a_valid_entry_alone() {
    run_seed(7807115023151911172);
}

/// Returns the number of histories after which a fault of the protocol shows.
fn histories_until_fault(change: impl Fn(&mut Plan)) -> Option<u64> {
    (0..100_000).find(|seed| {
        let mut rng = Rng::with_seed(*seed);
        let mut plan = Plan::random(&mut rng);
        change(&mut plan);
        let failed = std::panic::catch_unwind(|| check(plan, rng).is_some());
        failed.unwrap_or(true)
    })
}

#[test]
fn random_histories_find_faults() {
    type Fault = (&'static str, fn(&mut Plan));
    let faults: [Fault; 4] = [
        ("get_verifies", |plan| plan.rules.get_verifies = false),
        ("delete_verifies", |plan| plan.rules.delete_verifies = false),
        ("put_verifies", |plan| plan.rules.put_verifies = false),
        // An operation takes any time, and an entry is used again at once.
        ("is_bounded", |plan| (plan.is_bounded, plan.limit) = (false, 0)),
    ];
    for (name, change) in faults {
        let histories = histories_until_fault(change);
        println!("without {name}: a fault after {histories:?} histories");
        assert!(histories.is_some(), "{name}");
    }
}

#[test]
#[ignore = "runs for NESSIE_SECONDS, an hour by default: ci/soak"]
fn soak() {
    let begun = std::time::Instant::now();
    let seconds = setting("NESSIE_SECONDS").unwrap_or(3600);
    let mut rng = Rng::new();
    let mut histories = 0u64;
    while begun.elapsed().as_secs() < seconds {
        run_seed(rng.u64(..));
        histories += 1;
    }
    println!("{histories} random histories in {seconds} s");
}
