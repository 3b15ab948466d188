//! The load of a paged program. No I/O, no locks, no clock.
//!
//! The steps are those of the pager in `rfs-paging`: its logic decides which pages a fault reads
//! and which dirty pages leave. The program's pages are at the servers in turn, by chunks.

use clap::ValueEnum;
use rfs_paging::trace::{self, KeyValueLoad, Step, Trace, TraceOptions};
use serde::Serialize;

use crate::{Error, Result};

/// Length of a page in bytes.
pub const PAGE: u64 = trace::PAGE as u64;
/// Pages of a chunk, which are at one server.
const CHUNK_PAGES: u64 = 256;
/// Most pages that a thread moves at a time: two batches of victims, and a block that is read.
pub const MAX_PAGES: u32 = 160;
/// Steps of all threads together. A run that is longer repeats them.
const STEPS: usize = 1 << 15;
/// Compared runs have the same steps.
const SEED: u64 = 0x5eed;

/// The queries of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyValues {
    /// Mostly reads.
    Etc,
    /// Reads and stores.
    Sys,
}

/// A paged program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Paging {
    /// Its queries.
    pub load: KeyValues,
    /// Percentage of its pages in local memory.
    pub local: u32,
}

impl Paging {
    /// Returns a description.
    pub fn summary(self) -> String {
        format!("{} with {} % local", format!("{:?}", self.load).to_lowercase(), self.local)
    }
}

/// Returns the steps of each thread. Each of `peers` servers has `area` bytes for pages.
pub fn steps(paging: Paging, threads: usize, peers: usize, area: u64) -> Result<Vec<Vec<Step>>> {
    let options = TraceOptions {
        load: match paging.load {
            KeyValues::Etc => KeyValueLoad::Etc,
            KeyValues::Sys => KeyValueLoad::Sys,
        },
        pages: pages(peers, area),
        local: paging.local,
        threads,
        seed: SEED,
    };
    let trace = Trace::new(&options).map_err(|e| {
        Error::usage(format!(
            "{e}; they follow from --area {} and --local {}",
            byte_size::show(area),
            paging.local
        ))
    })?;
    let mut steps = vec![Vec::new(); threads];
    for step in trace.take(STEPS.next_multiple_of(threads)) {
        steps[step.thread].push(step);
    }
    Ok(steps)
}

/// Returns the pages of the program: whole chunks on all servers.
fn pages(peers: usize, area: u64) -> usize {
    (area / PAGE / CHUNK_PAGES * CHUNK_PAGES) as usize * peers
}

/// Returns the server of a page, and the offset of the page in its memory.
pub fn place(page: usize, peers: usize) -> (usize, u64) {
    let (chunk, slot) = (page as u64 / CHUNK_PAGES, page as u64 % CHUNK_PAGES);
    let peers = peers as u64;
    ((chunk % peers) as usize, (chunk / peers * CHUNK_PAGES + slot) * PAGE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Catches two pages in one place, and a page beyond the memory of its server.
    #[test]
    fn every_page_has_a_place_of_its_own() {
        let area = 2100 << 10;
        let places: BTreeSet<_> = (0..pages(3, area)).map(|page| place(page, 3)).collect();
        assert_eq!((places.len(), pages(3, area)), (3 * 512, 3 * 512));
        assert!(places.iter().all(|(peer, offset)| *peer < 3 && offset + PAGE <= area));
    }

    /// Catches steps of another thread, and batches for which the buffers are too few.
    #[test]
    fn each_thread_has_its_steps() {
        let steps = steps(Paging { load: KeyValues::Sys, local: 25 }, 5, 1, 8 << 20).unwrap();
        assert_eq!(steps.len(), 5);
        for (thread, steps) in steps.iter().enumerate() {
            assert!(steps.len() >= STEPS / 5 && steps.iter().all(|step| step.thread == thread));
            assert!(steps.iter().all(|step| step.writes.len() + step.reads.len() <= MAX_PAGES as usize));
        }
    }

    #[test]
    fn a_program_with_too_few_pages_is_refused() {
        let err = steps(Paging { load: KeyValues::Etc, local: 25 }, 1, 1, 512 << 10).unwrap_err();
        assert_eq!(err.exit_code(), 2);
        assert!(err.to_string().contains("--area 512 KiB"), "{err}");
    }
}
