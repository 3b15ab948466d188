//! The coordinator of RSort.
//!
//! # Concurrency
//! One thread, and one thread for each worker.

use std::{
    thread,
    time::{Duration, Instant},
};

use rdmabox::Address;

use super::{records::Digest, worker::Share};
use crate::{
    barrier::{Coordinator, Worker, outcome},
    client::{Client, ClientOptions},
    error::Error,
};

/// Time limit of a phase.
const LIMIT: Duration = Duration::from_secs(3600);

/// A sort.
#[derive(Clone, Debug)]
pub struct SortJob {
    /// Prefix of its namespaces, which no other job has.
    pub name: String,
    /// Number of workers.
    pub workers: usize,
    /// Records of each worker.
    pub records_per_worker: u64,
    /// Number of key ranges for each worker.
    pub ranges_per_worker: usize,
}

/// The result of a sort.
#[derive(Clone, Copy, Debug)]
pub struct SortReport {
    /// Time of the first phase.
    pub classification: Duration,
    /// Time of the second phase.
    pub assembly: Duration,
    /// Digest of the input.
    pub input: Digest,
    /// Digest of the output.
    pub output: Digest,
    /// The keys of the output ascend.
    pub is_sorted: bool,
}

impl SortReport {
    /// Returns true if the output has the records of the input, in order.
    pub fn is_valid(&self) -> bool {
        self.is_sorted && self.input == self.output
    }

    /// Returns the time from the start of phase one to the end of phase two.
    pub fn time(&self) -> Duration {
        self.classification + self.assembly
    }
}

/// Generates input, sorts and validates it, and deletes all of it.
///
/// # Errors
/// As [`Error`] says. Namespaces of the job may be left.
pub fn sort(master: &Address, options: &ClientOptions, job: &SortJob) -> Result<SortReport, Error> {
    let client = Client::connect(master, options.clone())?;
    let name = format!("{}/barrier", job.name);
    let namespace = client.create(&name)?;
    let coordinator = Coordinator::new(&namespace, job.workers)?;
    // All have joined before the first phase, so that a failure ends the waits of the others.
    let mut parties = Vec::new();
    for number in 0..job.workers {
        let client = Client::connect(master, options.clone())?;
        let worker = Worker::join(&client.join(&name)?, coordinator.address(), number)?;
        parties.push((client, worker));
    }
    let share = |worker| Share {
        job: job.name.clone(),
        worker,
        workers: job.workers,
        records: job.records_per_worker,
        buckets: job.workers * job.ranges_per_worker,
    };
    let (report, inputs) = thread::scope(|scope| {
        let spawn = |(number, (client, worker))| scope.spawn(move || work(&share(number), &client, worker));
        let workers: Vec<_> = parties.into_iter().enumerate().map(spawn).collect();
        let report = coordinate(&client, coordinator, &share(0));
        outcome(report, workers.into_iter().map(|worker| worker.join().expect("no panic")).collect())
    })?;
    namespace.delete()?;
    let mut input = Digest::default();
    inputs.into_iter().for_each(|of_worker| input.merge(of_worker));
    Ok(SortReport { input, ..report })
}

/// Runs a worker. Returns the digest of its input.
fn work(share: &Share, client: &Client, mut worker: Worker) -> Result<Digest, Error> {
    let mut input = Digest::default();
    for phase in 0..4 {
        worker.wait(LIMIT)?;
        match phase {
            0 => input = share.generate(client)?,
            1 => share.classify(client)?,
            2 => share.assemble(client)?,
            _ => share.clean(client)?,
        }
        worker.finish(true)?;
    }
    Ok(input)
}

/// Runs the phases. The drop of the coordinator ends the waits of the workers after a failure.
fn coordinate(client: &Client, mut coordinator: Coordinator, any: &Share) -> Result<SortReport, Error> {
    let mut timed = || {
        let begun = Instant::now();
        coordinator.run(LIMIT).map(|()| begun.elapsed())
    };
    timed()?;
    let (classification, assembly) = (timed()?, timed()?);
    let (is_sorted, output) = any.validate(client)?;
    timed()?;
    Ok(SortReport { classification, assembly, input: Digest::default(), output, is_sorted })
}
