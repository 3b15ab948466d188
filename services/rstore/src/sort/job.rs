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
    barrier::{Coordinator, Worker},
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

    /// Time from the start of phase one to the end of phase two.
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
    let namespace = client.create(&format!("{}/barrier", job.name))?;
    let mut coordinator = Coordinator::new(&namespace, job.workers)?;
    let address = coordinator.address();
    let share = |worker| Share {
        job: job.name.clone(),
        worker,
        workers: job.workers,
        records: job.records_per_worker,
        buckets: job.workers * job.ranges_per_worker,
    };
    let report = thread::scope(|scope| {
        let run_worker = |share: Share| {
            let client = Client::connect(master, options.clone())?;
            let namespace = client.join(&format!("{}/barrier", share.job))?;
            let mut worker = Worker::join(&namespace, address, share.worker)?;
            let mut input = Digest::default();
            for phase in 0..4 {
                worker.wait(LIMIT)?;
                let outcome = match phase {
                    0 => share.generate(&client).map(|digest| input = digest),
                    1 => share.classify(&client),
                    2 => share.assemble(&client),
                    _ => share.clean(&client),
                };
                worker.finish(outcome.is_ok())?;
                outcome?;
            }
            Ok(input)
        };
        let workers: Vec<_> =
            (0..job.workers).map(|worker| scope.spawn(move || run_worker(share(worker)))).collect();
        let report = coordinate(&client, &mut coordinator, &share(0));
        let mut input = Digest::default();
        let mut failure = None;
        for worker in workers {
            match worker.join().expect("no panic") {
                Ok(digest) => input.merge(digest),
                // The reason of a worker says more than the barrier.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => report.map(|report| SortReport { input, ..report }),
        }
    })?;
    drop(coordinator);
    namespace.delete()?;
    Ok(report)
}

fn coordinate(client: &Client, coordinator: &mut Coordinator, any: &Share) -> Result<SortReport, Error> {
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
