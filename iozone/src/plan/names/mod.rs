//! Measures operations on names and attributes.
//!
//! On each target, files are created, looked up on a fresh mount and once more, and removed. They
//! are in one directory, and in a tree of a hundred directories. A large directory is listed with
//! `ls -l`. The output shows the requests to the server for each rate.
//!
//! [`step`] has the steps and their requirements, [`meter`] measures them, [`counters`] reads the
//! counters of the server, and [`table`] has the output.

pub mod counters;
pub mod meter;
pub mod step;
pub mod table;

use clap::Args;

use self::meter::{AllSteps, Extent, Steps};
use super::entrants;
use crate::{
    Result,
    cli::{Common, Kind, Switches, among},
    harness::{self, Plan, Start},
    interrupt::Interrupt,
    report::{Setting, results},
    size::KIB,
    target::Setup,
};

/// Space per file. Files are empty, so only the inode is used.
const EACH: u64 = 16 * KIB;

/// Options of the plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Measure operations on names of many small files.
    #[arg(long)]
    pub names: bool,

    /// Targets to measure.
    #[arg(
        long,
        alias = "providers",
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::Null, Kind::Tmpfs, Kind::Glusterfs]),
        value_delimiter = ',',
        default_value = "shm,tcp,null,tmpfs,glusterfs",
        value_name = "LIST"
    )]
    pub targets: Vec<Kind>,

    /// Files to create, look up and remove [default: 20000].
    #[arg(long, value_name = "N", value_parser = count)]
    pub files: Option<usize>,

    /// Files in the listed directory; skipped for GlusterFS, which would take minutes to create
    /// them [default: 100000].
    #[arg(long, value_name = "N", value_parser = count)]
    pub listed: Option<usize>,

    /// Number of threads that share the files.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

fn count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=10_000_000) => Ok(count),
        _ => Err("a number of files from 1 to 10000000 is needed".into()),
    }
}

impl Options {
    /// Returns the extent of the measurement.
    fn extent(&self) -> Extent {
        let common = &self.common;
        Extent {
            files: common.usual(self.files, 20_000, 1000),
            listed: common.usual(self.listed, 100_000, 5000),
            threads: usize::from(self.threads),
            rounds: common.rounds(3),
        }
    }

    /// Runs the plan and reports its results. Returns false if the results are to be checked and
    /// miss a requirement.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let extent = self.extent();
        let setup = Setup {
            switches: self.switches.clone(),
            server_memory: 2 * EACH * (extent.files + extent.listed) as u64 + (1 << 30),
            ..Setup::at(&self.common.places)?
        };
        let plan = Plan {
            entrants: entrants(&self.targets, &setup, &[AllSteps])?,
            tests: vec![AllSteps],
            rounds: extent.rounds,
            limit: self.common.round_limit(None),
            start: Start::EachTest,
        };
        let setting = Setting::now(&self.common.output);
        let steps = Steps { extent, limit: self.common.timeout(600) };
        let measured = harness::run(&plan, &steps, &interrupt)?;
        let names: Vec<&str> = measured.targets.iter().map(|info| info.name.as_str()).collect();
        let (text, all) = table::render(&measured.series, &names);
        println!("{}\n\n{text}", setting.head(&extent.describe()));
        results::write("names", &setting, &measured, &self.common.output)?;
        let fulfilled = all || !self.common.check;
        if !fulfilled {
            eprintln!("rfs-iozone: rfs is slower than it has to be");
        }
        Ok(fulfilled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn defaults_and_quick() {
        let options = |args: &[&str]| parse::<Options>(&[&["--names"], args].concat()).unwrap();
        let all = options(&[]).extent();
        assert_eq!((all.files, all.listed, all.rounds), (20_000, 100_000, 3));
        assert_eq!(options(&[]).targets.len(), 5);
        let quick = options(&["--quick", "--targets", "shm,tcp"]);
        assert_eq!(quick.targets.len(), 2);
        let quick = quick.extent();
        assert_eq!((quick.files, quick.listed, quick.rounds), (1000, 5000, 1));
        for args in [["--files", "0"], ["--rounds", "0"], ["--targets", "nfs"]] {
            assert!(parse::<Options>(&args).is_err(), "{args:?}");
        }
    }

    #[test]
    fn the_head_describes_the_rates() {
        let extent = parse::<Options>(&["--quick"]).unwrap().extent();
        assert_eq!(extent.describe(), "1000 files, 5000 listed, 1 thread(s), 1 round(s), medians");
    }
}
