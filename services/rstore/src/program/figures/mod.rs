//! `rstore figures`: measurements beside the statements of the paper.
//!
//! # Concurrency
//! One thread measures. The master and the stores are processes.

mod applications;
mod chart;
mod data;
mod pool;
mod setup;

use std::{
    error::Error,
    io::{Write, stdout},
};

use comfy_table::{Table, presets::ASCII_MARKDOWN};

use self::pool::Pool;
use rstore::cli::FiguresOptions;

/// Returns the median of times, of which there is at least one.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Makes a table with a header.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN).set_header(header);
    table
}

pub(crate) fn run(options: &FiguresOptions) -> Result<(), Box<dyn Error>> {
    let provider = if options.tcp { "TCP over loopback" } else { "shared memory" };
    let cores = std::thread::available_parallelism()?;
    writeln!(stdout(), "RStore on one machine with {cores} cores, over {provider}\n")?;
    let mib = 1 << 20;
    let (chunk, memory) = if options.quick { (mib, 64 * mib) } else { (16 * mib, 512 * mib) };
    let data_pool = Pool::start(options.tcp, 4, chunk, memory)?;
    setup::measure(&data_pool, 4 * chunk)?;
    data::latency(&data_pool, if options.quick { 500 } else { 20_000 })?;
    let points = data::bandwidth(&data_pool, if options.quick { 2 } else { 10 })?;
    drop(data_pool);
    if let Some(path) = &options.chart {
        chart::bandwidth(path, &points, chunk)?;
    }
    let small = if options.quick { 256 << 10 } else { mib };
    let applications =
        Pool::start(options.tcp, 2, small, if options.quick { 256 * mib } else { 2048 * mib })?;
    applications::sort(&applications, if options.quick { 10_000 } else { 400_000 })?;
    applications::rank(&applications, if options.quick { 10 } else { 20 }, if options.quick { 3 } else { 10 })
}
