//! Bandwidth over links of a limited rate (the paper's Figure 6, and linear growth in IV-C).
//!
//! Each store is a host of a simulated network, and its link has a limited rate. So the links set
//! the bandwidth, and not the memory of this machine.
//!
//! # Concurrency
//! One thread measures.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Instant,
};

use measure::{interrupt::Interrupt, network::Network};
use rstore::AllocFlags;

use super::{
    chart, data,
    pool::{Extent, Pool, Site},
    setup,
    tables::{median, table},
};
use rstore::cli::FiguresOptions;

/// Stores of the largest pool.
const STORES: usize = 4;
const MIB: u64 = 1 << 20;

/// Measures over links of `rate` MB/s. This thread stays in the network.
pub(super) fn run(options: &FiguresOptions, rate: u32, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
    let network = Network::new(STORES, interrupt)?;
    network.limit(u64::from(rate) * 1_000_000, interrupt)?;
    network.enter()?;
    writeln!(stdout(), "RStore over TCP, each store with a link of {rate} MB/s (10^6 bytes) by HTB\n")?;
    let (chunk, rounds) = if options.quick { (MIB, 2) } else { (4 * MIB, 5) };
    let extent = |stores| Extent { stores, chunk, memory: 32 * chunk };
    let pool = Pool::start(Site::Network(&network), &extent(STORES), interrupt)?;
    setup::measure(&pool, 4 * chunk, interrupt)?;
    let link = f64::from(rate) * 1e6 / MIB as f64;
    let points = data::bandwidth(&pool, rounds, Some(link), interrupt)?;
    drop(pool);
    if let Some(path) = &options.chart {
        chart::bandwidth(path, &points, chunk)?;
    }
    writeln!(stdout(), "## Bandwidth over stores, regions of 4 chunks for each store\n")?;
    writeln!(stdout(), "Paper: the aggregate bandwidth grows linearly with the stores (IV-C).\n")?;
    let mut table = table(&["stores", "read MiB/s", "of one store", "of linear growth"]);
    let mut one = None;
    for stores in [1, 2, STORES] {
        let pool = Pool::start(Site::Network(&network), &extent(stores), interrupt)?;
        let rate = region_rate(&pool, 4 * stores as u64 * chunk, rounds, interrupt)?;
        let one = *one.get_or_insert(rate);
        table.add_row([
            stores.to_string(),
            format!("{rate:.0}"),
            format!("{:.2}x", rate / one),
            format!("{:.0} %", rate / one / stores as f64 * 100.0),
        ]);
    }
    writeln!(stdout(), "{table}")?;
    Ok(())
}

/// Returns the rate of reads of a whole region in MiB/s.
fn region_rate(pool: &Pool, bytes: u64, rounds: usize, interrupt: &Interrupt) -> Result<f64, Box<dyn Error>> {
    let client = pool.client()?;
    let namespace = client.create("growth")?;
    let region = namespace.alloc_reserved(bytes, AllocFlags::InPlace)?;
    let mut mapping = region.map_all()?;
    mapping.write(0..bytes)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        interrupt.check()?;
        let begun = Instant::now();
        mapping.read(0..bytes)?;
        times.push(begun.elapsed().as_secs_f64());
    }
    drop(mapping);
    region.free()?;
    namespace.delete()?;
    Ok(bytes as f64 / MIB as f64 / median(times))
}
