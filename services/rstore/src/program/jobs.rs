//! `rstore sort` and `rstore rank`.
//!
//! # Concurrency
//! One thread, which the library gives workers.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Instant,
};

use rstore::{
    ClientOptions,
    cli::{RankOptions, SortOptions, StatusOptions},
    graph::{Csr, page_rank, page_rank_locally, rmat},
    sort::{RECORD_BYTES, SortJob},
};

use super::show;

fn client(options: &StatusOptions) -> Result<ClientOptions, Box<dyn Error>> {
    let mut client = ClientOptions::default();
    client.session = show::session(options)?;
    Ok(client)
}

pub(crate) fn sort(options: &SortOptions) -> Result<(), Box<dyn Error>> {
    let job = SortJob {
        name: format!("sort-{}", std::process::id()),
        workers: usize::from(options.workers),
        records_per_worker: options.records,
        ranges_per_worker: usize::from(options.ranges),
    };
    let report = rstore::sort::sort(&options.master.master, &client(&options.master)?, &job)?;
    if !report.is_valid() {
        return Err(format!("the output is not the sorted input: {report:?}").into());
    }
    let bytes = report.output.records * RECORD_BYTES as u64;
    writeln!(
        stdout(),
        "{} in {:.2?}: classification {:.2?}, assembly and sort {:.2?}; {} records, valid",
        byte_size::show(bytes),
        report.time(),
        report.classification,
        report.assembly,
        report.output.records
    )?;
    Ok(())
}

pub(crate) fn rank(options: &RankOptions) -> Result<(), Box<dyn Error>> {
    let graph = Csr::new(1 << options.scale, &rmat(options.scale, 16, 1));
    let name = format!("rank-{}", std::process::id());
    let (workers, steps) = (usize::from(options.workers), options.supersteps);
    let client = client(&options.master)?;
    let report = page_rank(&options.master.master, &client, &name, &graph, workers, steps)?;
    let begun = Instant::now();
    let local = page_rank_locally(&graph, steps);
    let time = begun.elapsed();
    if report.ranks != local {
        return Err("the ranks differ from those of one process".into());
    }
    writeln!(
        stdout(),
        "{} vertices, {} edges, {steps} supersteps: {:.2?} with {workers} workers, {time:.2?} in one process; equal ranks",
        graph.vertices(),
        graph.edges(),
        report.time
    )?;
    Ok(())
}
