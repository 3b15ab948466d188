//! Latency of small reads, and bandwidth over sizes (the paper's Sections IV-C and Figure 6).
//!
//! # Concurrency
//! One thread.

use std::{
    error::Error,
    io::{Write, stdout},
    time::Instant,
};

use measure::interrupt::Interrupt;
use rstore::AllocFlags;

use super::{
    pool::Pool,
    tables::{median, table},
};

/// Compares reads of a mapping with READs of its session, in turn.
pub(super) fn latency(pool: &Pool, rounds: usize) -> Result<(), Box<dyn Error>> {
    let client = pool.client()?;
    let namespace = client.create("latency")?;
    let region = namespace.alloc_reserved(1 << 20, AllocFlags::InPlace)?;
    let mut mapping = region.map_all()?;
    let (session, remote) = mapping.locate(0)?;
    writeln!(stdout(), "## Small reads\n")?;
    writeln!(stdout(), "Paper: 12 us for 8 bytes, where the network has 9.6 us: 1.25 times (IV-C).\n")?;
    let mut table = table(&["bytes", "READ us", "RStore read us", "ratio"]);
    for bytes in [8, 64, 512, 1024, 4096] {
        let (mut raw, mut own) = (Vec::new(), Vec::new());
        let mut out = vec![0; bytes];
        for _ in 0..rounds {
            let begun = Instant::now();
            session.read(remote, &mut out)?;
            raw.push(begun.elapsed().as_secs_f64() * 1e6);
            let begun = Instant::now();
            mapping.read(0..bytes as u64)?;
            own.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        let (raw, own) = (median(raw), median(own));
        table.add_row([
            bytes.to_string(),
            format!("{raw:.2}"),
            format!("{own:.2}"),
            format!("{:.2}", own / raw),
        ]);
    }
    writeln!(stdout(), "{table}\n")?;
    drop(mapping);
    region.free()?;
    Ok(namespace.delete()?)
}

/// Reads whole mappings of several sizes. Returns sizes in bytes with rates in MiB/s. With the rate
/// of each store's link in MiB/s, also shows the limit of the links.
pub(super) fn bandwidth(
    pool: &Pool,
    rounds: usize,
    link: Option<f64>,
    interrupt: &Interrupt,
) -> Result<Vec<(u64, f64)>, Box<dyn Error>> {
    let client = pool.client()?;
    let namespace = client.create("bandwidth")?;
    let chunk = client.chunk_bytes();
    writeln!(stdout(), "## Bandwidth of one client over 4 stores, chunks of {}\n", byte_size::show(chunk))?;
    writeln!(
        stdout(),
        "Paper: the rate grows up to one chunk for each card, falls when chunks divide unevenly, and rises \
         again (Figure 6).\n"
    )?;
    let mut table = match link {
        Some(_) => table(&["bytes", "chunks", "stores", "read MiB/s", "links permit", "of that"]),
        None => table(&["bytes", "chunks", "stores", "read MiB/s"]),
    };
    let mut points = Vec::new();
    for halves in [1, 2, 3, 4, 6, 8, 9, 10, 12, 14, 16, 18, 24, 32] {
        interrupt.check()?;
        let bytes = halves * chunk / 2;
        let region = namespace.alloc_reserved(bytes, AllocFlags::InPlace)?;
        let mut mapping = region.map_all()?;
        mapping.write(0..bytes)?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            mapping.read(0..bytes)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        let rate = bytes as f64 / f64::from(1 << 20) / median(times);
        points.push((bytes, rate));
        let (chunks, stores) = (bytes.div_ceil(chunk), region.stores());
        let mut row =
            vec![byte_size::show(bytes), chunks.to_string(), stores.to_string(), format!("{rate:.0}")];
        if let Some(link) = link {
            let most = link * bytes as f64 / longest_share(bytes, chunk, 4) as f64;
            row.extend([format!("{most:.0}"), format!("{:.0} %", rate / most * 100.0)]);
        }
        table.add_row(row);
        drop(mapping);
        region.free()?;
        namespace.release(bytes)?;
    }
    writeln!(stdout(), "{table}\n")?;
    namespace.delete()?;
    Ok(points)
}

/// Returns the most bytes of a region that one store has, if the stores take turns.
fn longest_share(bytes: u64, chunk: u64, stores: u64) -> u64 {
    let (whole, rest) = (bytes / chunk, bytes % chunk);
    let last = if whole.is_multiple_of(stores) { rest } else { chunk };
    whole / stores * chunk + last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an expectation without the saw-tooth.
    #[test]
    fn a_share_grows_by_a_chunk_when_the_chunks_exceed_the_stores() {
        let share = |bytes| longest_share(bytes, 10, 4);
        assert_eq!([5, 10, 15, 40, 45, 50, 75, 80].map(share), [5, 10, 10, 10, 15, 20, 20, 20]);
    }
}
