//! PageRank in supersteps, on partitions that are threads with clients of their own.
//!
//! In a superstep a partition reads its messages and computes the ranks of its vertices. It writes
//! the ranks to the namespace of ranks, and sends messages for the next superstep. The barrier ends
//! it. A partition that fails drops its side of the barrier, which ends the others.
//!
//! # Concurrency
//! One thread for each partition, and the coordinator.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use rdmabox::Address;

use super::{
    csr::Csr,
    layout::{EDGE, GraphStore, VERTEX, targets, word},
    mailbox::{Mailbox, Places},
    partition::partition,
    rank,
};
use crate::{
    barrier::{Coordinator, Worker, outcome},
    client::{AllocFlags, Client, ClientOptions, Region},
    error::Error,
};

/// Time limit of a superstep.
const LIMIT: Duration = Duration::from_secs(3600);
/// Length of a rank in bytes.
const RANK: u64 = 8;

/// The result of PageRank.
#[derive(Clone, Debug)]
pub struct PageRankReport {
    /// The rank of each vertex, of [`SCALE`](super::SCALE).
    pub ranks: Vec<u64>,
    /// Time of the supersteps, without the import of the graph and the first messages.
    pub time: Duration,
}

/// The plan of a run, which all partitions know.
#[derive(Clone, Debug)]
struct Plan {
    name: String,
    ranges: Vec<Range<u32>>,
    places: Places,
    supersteps: u32,
    vertices: u32,
}

/// Imports a graph, and computes PageRank with `workers` partitions. All namespaces begin with
/// `name`, and are deleted at the end.
///
/// # Errors
/// As [`Error`] says. Namespaces may be left.
pub fn page_rank(
    master: &Address,
    options: &ClientOptions,
    name: &str,
    graph: &Csr,
    workers: usize,
    supersteps: u32,
) -> Result<PageRankReport, Error> {
    let client = Client::connect(master, options.clone())?;
    let store = GraphStore::import(&client, name, graph)?;
    let degrees: Vec<u64> = (0..graph.vertices()).map(|v| graph.neighbours(v).len() as u64).collect();
    let ranges = partition(&degrees, workers);
    let places = Places::new(workers, &crossings(graph, &ranges));
    let make = |kind: &str, bytes: u64| -> Result<Region, Error> {
        client.create(&format!("{name}/{kind}"))?.alloc_reserved(bytes, AllocFlags::InPlace)
    };
    let mail = make("mail", places.len())?;
    let ranks = make("ranks", u64::from(graph.vertices().max(1)) * RANK)?;
    let barrier = client.create(&format!("{name}/barrier"))?;
    let coordinator = Coordinator::new(&barrier, workers)?;
    // All have joined before the first phase, so that a failure ends the waits of the others.
    let mut parties = Vec::new();
    for number in 0..workers {
        let client = Client::connect(master, options.clone())?;
        let namespace = client.join(&format!("{name}/barrier"))?;
        let worker = Worker::join(&namespace, coordinator.address(), number)?;
        parties.push((client, worker));
    }
    let vertices = graph.vertices();
    let plan = Plan { name: name.to_owned(), ranges, places, supersteps, vertices };
    let (time, _) = thread::scope(|scope| {
        let plan = &plan;
        let spawn = |(own, (client, worker))| {
            scope.spawn(move || -> Result<(), Error> {
                Partition::open(&client, worker, plan, own)?.run(plan)
            })
        };
        let threads: Vec<_> = parties.into_iter().enumerate().map(spawn).collect();
        let time = coordinate(coordinator, supersteps);
        outcome(time, threads.into_iter().map(|thread| thread.join().expect("no panic")).collect())
    })?;
    let mut mapping = ranks.map_all()?;
    let len = mapping.len();
    let found = mapping.read(0..len)?.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let found = found.take(vertices as usize).collect();
    drop((mapping, ranks, mail));
    barrier.delete()?;
    ["mail", "ranks"].into_iter().try_for_each(|kind| client.join(&format!("{name}/{kind}"))?.delete())?;
    store.delete(&client)?;
    Ok(PageRankReport { ranks: found, time })
}

/// Runs the first messages, then the supersteps. Returns the time of the latter. The drop of the
/// coordinator ends the waits of the workers after a failure.
fn coordinate(mut coordinator: Coordinator, supersteps: u32) -> Result<Duration, Error> {
    coordinator.run(LIMIT)?;
    let begun = Instant::now();
    (0..supersteps).try_for_each(|_| coordinator.run(LIMIT))?;
    Ok(begun.elapsed())
}

/// Returns the number of edges between each pair of partitions, row by row.
fn crossings(graph: &Csr, ranges: &[Range<u32>]) -> Vec<u64> {
    let mut counts = vec![0; ranges.len() * ranges.len()];
    for (from, range) in ranges.iter().enumerate() {
        for target in range.clone().flat_map(|vertex| graph.neighbours(vertex)) {
            counts[from * ranges.len() + partition_of(ranges, *target)] += 1;
        }
    }
    counts
}

fn partition_of(ranges: &[Range<u32>], vertex: u32) -> usize {
    ranges.partition_point(|range| range.end <= vertex)
}

/// One partition.
struct Partition {
    worker: Worker,
    mailbox: Mailbox,
    ranks: Region,
    range: Range<u32>,
    degrees: Vec<u64>,
    targets: Vec<u32>,
}

impl Partition {
    /// Loads the vertices and edges of a partition, in one read each.
    fn open(client: &Client, worker: Worker, plan: &Plan, own: usize) -> Result<Partition, Error> {
        let graph = GraphStore::open(client, &plan.name)?;
        let region = |kind: &str| {
            let namespace = client.join(&format!("{}/{kind}", plan.name))?;
            namespace.open(namespace.first_address(), 1)
        };
        let mailbox = Mailbox::new(&region("mail")?, plan.places.clone(), own)?;
        let range = plan.ranges[own].clone();
        let (mut degrees, mut loaded) = (Vec::new(), Vec::new());
        if !range.is_empty() {
            let places = u64::from(range.start) * VERTEX..u64::from(range.end) * VERTEX;
            let mut places = graph.vertices.map(places)?;
            let len = places.len();
            let places = places.read(0..len)?;
            let first = word(places).saturating_mul(EDGE);
            degrees = places.as_chunks::<16>().0.iter().map(|place| word(&place[8..])).collect();
            let end = first + degrees.iter().sum::<u64>() * EDGE;
            if first < end {
                let mut edges = graph.edges.map(first..end)?;
                let len = edges.len();
                loaded = targets(edges.read(0..len)?).collect();
            }
        }
        Ok(Partition { worker, mailbox, ranks: region("ranks")?, range, degrees, targets: loaded })
    }

    fn run(mut self, plan: &Plan) -> Result<(), Error> {
        let mut ranks = vec![rank::first(plan.vertices); self.range.len()];
        for step in 0..=plan.supersteps {
            self.worker.wait(LIMIT)?;
            self.step(plan, step, &mut ranks)?;
            self.worker.finish(true)?;
        }
        Ok(())
    }

    /// Runs a superstep. Step 0 only sends the first messages.
    fn step(&mut self, plan: &Plan, step: u32, ranks: &mut [u64]) -> Result<(), Error> {
        if step > 0 {
            let (mut sums, start) = (vec![0_u64; ranks.len()], self.range.start);
            self.mailbox.receive(step.is_multiple_of(2), |target, value| {
                if let Some(sum) = sums.get_mut(target.wrapping_sub(start) as usize) {
                    *sum = sum.wrapping_add(value);
                }
            })?;
            ranks.iter_mut().zip(sums).for_each(|(rank, sum)| *rank = rank::next(plan.vertices, sum));
        }
        self.write_ranks(ranks)?;
        let mut filling = self.mailbox.fill(!step.is_multiple_of(2));
        let mut rest = &self.targets[..];
        for (rank, degree) in ranks.iter().zip(&self.degrees) {
            let (own, later) = rest.split_at((*degree as usize).min(rest.len()));
            rest = later;
            let message = rank::message(*rank, *degree);
            own.iter().for_each(|to| filling.push(partition_of(&plan.ranges, *to), *to, message));
        }
        filling.send()
    }

    fn write_ranks(&self, ranks: &[u64]) -> Result<(), Error> {
        if ranks.is_empty() {
            return Ok(());
        }
        let place = u64::from(self.range.start) * RANK..u64::from(self.range.end) * RANK;
        let mut mapping = self.ranks.map(place)?;
        for (place, rank) in mapping.local_mut().as_chunks_mut().0.iter_mut().zip(ranks) {
            *place = rank.to_le_bytes();
        }
        mapping.write(0..mapping.len())
    }
}
