//! `rstore figures`: measurements beside the statements of the paper.
//!
//! # Concurrency
//! One thread measures. The master and the stores are processes.

mod applications;
mod chart;
mod data;
mod links;
mod pool;
mod setup;
mod tables;

use std::{
    error::Error,
    io::{Write, stdout},
};

use measure::interrupt::Interrupt;

use self::pool::{Extent, Pool, Site};
use rstore::cli::FiguresOptions;

pub(crate) fn run(options: &FiguresOptions) -> Result<(), Box<dyn Error>> {
    // The children have process groups of their own, and end with this program.
    let interrupt = Interrupt::on_signals()?;
    match options.links {
        Some(rate) => links::run(options, rate, &interrupt),
        None => on_this_host(options, &interrupt),
    }
}

fn on_this_host(options: &FiguresOptions, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
    let (provider, site) = match options.tcp {
        true => ("TCP over loopback", Site::Loopback),
        false => ("shared memory", Site::SharedMemory),
    };
    let cores = std::thread::available_parallelism()?;
    writeln!(stdout(), "RStore on one machine with {cores} cores, over {provider}\n")?;
    let mib = 1 << 20;
    let (chunk, memory) = if options.quick { (mib, 64 * mib) } else { (16 * mib, 512 * mib) };
    let data_pool = Pool::start(site, &Extent { stores: 4, chunk, memory }, interrupt)?;
    setup::measure(&data_pool, 4 * chunk, interrupt)?;
    data::latency(&data_pool, if options.quick { 500 } else { 20_000 })?;
    let points = data::bandwidth(&data_pool, if options.quick { 2 } else { 10 }, None, interrupt)?;
    drop(data_pool);
    if let Some(path) = &options.chart {
        chart::bandwidth(path, &points, chunk)?;
    }
    let (chunk, memory) = if options.quick { (mib / 4, 256 * mib) } else { (mib, 2048 * mib) };
    let applications = Pool::start(site, &Extent { stores: 2, chunk, memory }, interrupt)?;
    applications::sort(&applications, if options.quick { 10_000 } else { 400_000 }, interrupt)?;
    applications::rank(&applications, if options.quick { (10, 3) } else { (20, 10) }, interrupt)
}
