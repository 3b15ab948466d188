//! Command line options, and the extent that they select.

use clap::Args;

use super::case::Case;
use crate::{
    Result,
    cli::{Common, Switches},
    harness::sorted,
    plan::unique,
    size::{self, KIB, MIB},
    target::PoolSetup,
};

/// Options of the plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Measure growing numbers of stores.
    #[arg(long, value_parser = ["stores"], num_args = 0..=1, require_equals = true, value_name = "stores")]
    pub scaling: Option<String>,

    /// Numbers of stores. The memory of the server is the first store [default: 1,2,4; 1,2 with
    /// --quick].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=16), value_name = "LIST")]
    pub stores: Vec<u64>,

    /// Cases to measure [default: all].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub cases: Vec<Case>,

    /// Rate of each store's link in each direction, in MB/s (10^6 bytes).
    #[arg(long, value_name = "MB/s", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub link: u64,

    /// Rate of each store's link for reads of 4 KiB, in MB/s. At this rate the links are slower
    /// than everything else.
    #[arg(long, value_name = "MB/s", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub block_link: u64,

    /// Length of the pieces of a file: `--stripe-unit` of rfs-server [default: the server's].
    #[arg(long, value_name = "SIZE", value_parser = size::parse_nonzero)]
    pub stripe_unit: Option<u64>,

    /// Bytes of all files together, a multiple of 4 MiB [default: 256m; 16m with --quick]. Four
    /// times as many without limits, but with --quick.
    #[arg(long, value_parser = whole, value_name = "SIZE")]
    pub size: Option<u64>,

    /// How long random requests are measured, in milliseconds [default: 3000; 300 with --quick].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=600_000))]
    pub random_ms: Option<u32>,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,

    /// Options of the mounts.
    #[command(flatten)]
    pub switches: Switches,
}

/// Bytes of the file that is read in blocks of 4 KiB: it has pieces in all stores, and little to
/// write over slow links.
const BLOCKS_FILE: u64 = 16 * MIB;

fn whole(text: &str) -> std::result::Result<u64, String> {
    let bytes = size::parse_nonzero(text).map_err(|err| err.to_string())?;
    if bytes.is_multiple_of(4 * MIB) { Ok(bytes) } else { Err("a multiple of 4 MiB is needed".into()) }
}

impl Options {
    /// Returns the numbers of stores, in ascending order. One store is the reference.
    pub fn counts(&self) -> Vec<u64> {
        let given: &[u64] = match (&self.stores[..], self.common.quick) {
            ([], false) => &[1, 2, 4],
            ([], true) => &[1, 2],
            (given, _) => given,
        };
        sorted(given.iter().copied().chain([1]))
    }

    /// Returns the cases.
    pub fn chosen_cases(&self) -> Vec<Case> {
        if self.cases.is_empty() { Case::ALL.to_vec() } else { unique(&self.cases) }
    }

    /// Returns the bytes of all files of a case together.
    pub fn bytes(&self, case: Case) -> u64 {
        let all = self.common.usual(self.size, 256 * MIB, 16 * MIB);
        match case {
            Case::Blocks => all.min(BLOCKS_FILE),
            // The kernel takes about 0.1 s to place the threads of all processes on the cores. That
            // is as long as 256 MiB take.
            Case::Loopback if !self.common.quick => 4 * all,
            _ => all,
        }
    }

    /// Returns the duration of random requests in milliseconds.
    pub fn random_ms(&self) -> u32 {
        self.common.usual(self.random_ms, 3000, 300)
    }

    /// Returns the bytes per second of each link in a case; `None` without a limit.
    pub fn link(&self, case: Case) -> Option<u64> {
        let mb = if case == Case::Blocks { self.block_link } else { self.link };
        case.is_limited().then_some(mb * 1_000_000)
    }

    /// Returns the programs of a case.
    pub fn setup(&self, case: Case, stores: u64) -> Result<PoolSetup> {
        // Each store has room for all files, and for the space that mounts reserve.
        let memory = size::server_memory(self.bytes(case), 1) + u64::from(case.mounts()) * 64 * MIB;
        Ok(PoolSetup {
            bin_dir: self.common.places.bin_dir()?,
            // At most 16.
            stores: stores as usize,
            memory,
            mounts: case.mounts(),
            link: self.link(case),
            stripe_unit: self.stripe_unit,
            mount_args: self.switches.all_args(),
        })
    }

    /// Returns the approximate seconds of a case over `stores` stores, in proportion.
    pub fn cost(&self, case: Case) -> f64 {
        let requests = f64::from(self.random_ms()) / 1000.0 * case.patterns().len() as f64 / 2.0;
        let link = self.link(case).unwrap_or(1_000_000_000) as f64;
        2.0 + requests + 2.0 * self.bytes(case) as f64 / link
    }

    /// Describes the measurement.
    pub fn describe(&self) -> String {
        let unit = self.stripe_unit.map_or("the server's default".to_owned(), size::show);
        format!(
            "each store's link: {} MB/s in each direction ({} MB/s for blocks of 4 KiB), limited by HTB; bursts of \
             {}\nfiles of {} together ({} without limits); pieces of files: {unit}",
            self.link,
            self.block_link,
            size::show(measure::network::BURST / KIB * KIB),
            size::show(self.bytes(Case::OneFile)),
            size::show(self.bytes(Case::Loopback)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn one_store_is_always_there() {
        let counts = |args: &[&str]| parse::<Options>(args).unwrap().counts();
        assert_eq!(counts(&["--scaling=stores"]), [1, 2, 4]);
        assert_eq!(counts(&["--quick"]), [1, 2]);
        assert_eq!(counts(&["--stores=8,2,8"]), [1, 2, 8]);
        assert!(parse::<Options>(&["--stores=0"]).is_err());
        assert!(parse::<Options>(&["--scaling=stores,threads"]).is_err());
    }

    /// Catches a limit in the wrong unit, and one where there must be none.
    #[test]
    fn links_are_limited_by_case() {
        let options: Options = parse(&["--bin-dir=/bin", "--link=50", "--size=64m"]).unwrap();
        let link = |case| options.setup(case, 2).unwrap().link;
        assert_eq!(link(Case::OneFile), Some(50_000_000));
        assert_eq!(link(Case::Blocks), Some(20_000_000));
        assert_eq!(link(Case::Loopback), None);
        let bytes = [Case::Clients, Case::Blocks, Case::Loopback].map(|case| options.bytes(case));
        assert_eq!(bytes, [64 * MIB, 16 * MIB, 256 * MIB]);
        assert!(parse::<Options>(&["--size=6m"]).is_err());
    }
}
