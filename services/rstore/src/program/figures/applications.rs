//! RSort and PageRank (the paper's Figures 10 to 12).
//!
//! # Concurrency
//! The library gives each worker a thread.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Instant,
};

use measure::interrupt::Interrupt;
use rstore::{
    graph::{Csr, page_rank, page_rank_locally, rmat},
    sort::{RECORD_BYTES, SortJob, sort_locally},
};

use super::{pool::Pool, tables::table};

pub(super) fn sort(pool: &Pool, records: u64, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
    writeln!(stdout(), "## RSort: {records} records of {RECORD_BYTES} bytes for each worker\n")?;
    writeln!(
        stdout(),
        "Paper: linear weak scaling; 1.9 to 5.4 times as fast as a local parallel sort (V-C).\n"
    )?;
    let mut table = table(&["workers", "MiB", "phase 1 s", "phase 2 s", "sum s", "local sort s", "valid"]);
    for workers in [1, 2, 4] {
        interrupt.check()?;
        let job = SortJob {
            name: format!("sort {workers}"),
            workers,
            records_per_worker: records,
            ranges_per_worker: 2,
        };
        let report = rstore::sort::sort(&pool.master, &pool.options(), &job)?;
        let (local, digest) = sort_locally(workers, records, 2);
        let valid = report.is_valid() && digest == report.output;
        let mib = report.output.records * RECORD_BYTES as u64 / (1 << 20);
        let seconds = |time: std::time::Duration| format!("{:.3}", time.as_secs_f64());
        table.add_row([
            workers.to_string(),
            mib.to_string(),
            seconds(report.classification),
            seconds(report.assembly),
            seconds(report.time()),
            seconds(local),
            valid.to_string(),
        ]);
        if !valid {
            return Err(format!("the output is not the sorted input: {report:?}").into());
        }
    }
    writeln!(stdout(), "{table}\n")?;
    Ok(())
}

pub(super) fn rank(
    pool: &Pool,
    (scale, supersteps): (u32, u32),
    interrupt: &Interrupt,
) -> Result<(), Box<dyn Error>> {
    let graph = Csr::new(1 << scale, &rmat(scale, 16, 1));
    writeln!(
        stdout(),
        "## PageRank: 2^{scale} vertices, {} edges, {supersteps} supersteps\n",
        graph.edges()
    )?;
    writeln!(
        stdout(),
        "Paper: 2.6 and 4.2 times as fast as GraphLab and GraphX, which are not run here (V-B).\n"
    )?;
    let begun = Instant::now();
    let local = page_rank_locally(&graph, supersteps);
    let one = begun.elapsed().as_secs_f64();
    let mut table = table(&["workers", "s", "one process s", "ratio", "ranks equal"]);
    for workers in [1, 2] {
        interrupt.check()?;
        let report = page_rank(
            &pool.master,
            &pool.options(),
            &format!("rank {workers}"),
            &graph,
            workers,
            supersteps,
        )?;
        let equal = report.ranks == local;
        let time = report.time.as_secs_f64();
        table.add_row([
            workers.to_string(),
            format!("{time:.3}"),
            format!("{one:.3}"),
            format!("{:.2}", time / one),
            equal.to_string(),
        ]);
        if !equal {
            return Err("the ranks differ from those of one process".into());
        }
    }
    writeln!(stdout(), "{table}")?;
    Ok(())
}
