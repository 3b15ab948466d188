//! Measures a server that has just started: the time until it can be used, and the cost of the
//! first use of its memory.
//!
//! In every round each provider gets a new server of the full size and a mount. A file is written
//! five times, beginning when the mount is ready; the server meanwhile allocates memory in the
//! background. The first pass writes to unused memory, the second to the same memory.

pub mod table;

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::{
    Error, Result,
    cli::{Common, Kind, Switches, among},
    harness::{self, Entrant, Meter, Outcome, Plan, Site, Start},
    interrupt::Interrupt,
    load::{
        self,
        latency::{Done, read},
    },
    machine,
    report::{Setting, results},
    sample::median,
    size::{GIB, MIB, parse_nonzero, show},
    target::{self, Setup},
};

/// Options of the plan.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Measure servers that have just started.
    #[arg(long)]
    pub fresh: bool,

    /// Targets to measure, in this order.
    #[arg(
        long,
        value_parser = among([Kind::Shm, Kind::Tcp, Kind::Null]),
        value_delimiter = ',',
        default_value = "shm,tcp,null",
        value_name = "LIST"
    )]
    pub providers: Vec<Kind>,

    /// Memory of the server [default: 16g].
    #[arg(long, value_name = "SIZE", value_parser = parse_nonzero)]
    pub memory: Option<u64>,

    /// Size of the file, in whole MiB [default: 1g].
    #[arg(long, value_name = "SIZE", value_parser = parse_nonzero)]
    pub size: Option<u64>,

    /// Options of every plan.
    #[command(flatten)]
    pub common: Common,

    /// Options of the runtime and of the mount.
    #[command(flatten)]
    pub switches: Switches,
}

impl Options {
    /// Returns the extent of the measurement. Returns an error if it needs more than `available`
    /// bytes of memory.
    fn extent(&self, available: u64) -> Result<Extent> {
        let memory = self.common.usual(self.memory, 16 * GIB, 256 * MIB);
        let size = self.common.usual(self.size, GIB, 64 * MIB);
        if !size.is_multiple_of(MIB) || size > memory / 2 {
            return Err(Error::Usage(format!(
                "--size {}: whole mebibytes are needed, and no more than half of --memory {}",
                show(size),
                show(memory)
            )));
        }
        // Includes a copy of the file in the page cache, and space for the programs.
        let peak = memory.saturating_add(size).saturating_add(GIB / 2);
        match peak <= available {
            true => Ok(Extent { memory, size, rounds: self.common.rounds(5) }),
            false => Err(Error::Usage(format!(
                "a server of {} takes {} with all beside it, {} are available; give a smaller --memory",
                show(memory),
                show(peak),
                show(available)
            ))),
        }
    }

    /// Returns the targets, with the page cache and without it.
    fn entrants(&self, memory: u64) -> Result<Vec<Entrant<FreshMeter>>> {
        // A given option selects its kind of caching only.
        let caches = if self.switches.cache.is_some() { &[None][..] } else { &[None, Some("none")][..] };
        let mut all = Vec::new();
        for &kind in &self.providers {
            for &cache in caches {
                let cache = cache.map(str::to_owned).or(self.switches.cache.clone());
                let past =
                    if self.switches.cache.is_none() && cache.is_some() { ", --cache none" } else { "" };
                let switches = Switches { cache, ..self.switches.clone() };
                let setup = Setup { switches, server_memory: memory, ..Setup::at(&self.common.places)? };
                all.extend(target::of(kind, &setup)?.map(|target| {
                    let entrant = Entrant::new(target, vec![FreshMeter]);
                    Entrant { name: format!("{}{past}", entrant.name), ..entrant }
                }));
            }
        }
        Ok(all)
    }

    /// Runs the plan and reports its results. Returns false if the results are to be checked and
    /// miss a requirement.
    pub fn perform(&self) -> Result<bool> {
        let extent = self.extent(machine::memory_available())?;
        let interrupt = Interrupt::on_signals()?;
        let setting = Setting::now(&self.common.output);
        let plan = Plan {
            entrants: self.entrants(extent.memory)?,
            tests: vec![FreshMeter],
            rounds: extent.rounds,
            limit: self.common.round_limit(None),
            start: Start::EachTest,
        };
        let writer = Writer { size: extent.size, limit: self.common.timeout(600) };
        let measured = harness::run(&plan, &writer, &interrupt)?;
        let (text, all) = table::render(&measured);
        println!("{}\n\n{text}", setting.head(&extent.describe()));
        results::write("fresh", &setting, &measured, &self.common.output)?;
        Ok(all || !self.common.check)
    }
}

/// The extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// Memory of the server in bytes.
    memory: u64,
    /// Bytes of the file.
    size: u64,
    rounds: u32,
}

impl Extent {
    fn describe(self) -> String {
        let (memory, size, rounds) = (show(self.memory), show(self.size), self.rounds);
        format!("a server of {memory}, a file of {size} written {PASSES} times, {rounds} round(s), medians")
    }
}

/// Number of times that the file is written: the first time, the second time, and again after the
/// work that the first passes deferred.
pub const PASSES: usize = 5;

/// The test: all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FreshMeter;

/// The measurements of one target in one round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Round {
    /// Seconds until the server is ready and mounted.
    pub start: f64,
    /// Throughput of each pass in MiB/s.
    pub passes: [f64; PASSES],
}

impl harness::Reading for Round {
    fn median(rounds: &[Self]) -> Self {
        let of = |value: &dyn Fn(&Self) -> f64| {
            median(&rounds.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
        };
        Self {
            start: of(&|round| round.start),
            passes: std::array::from_fn(|pass| of(&|round| round.passes[pass])),
        }
    }

    fn rate(&self) -> f64 {
        self.passes[0]
    }
}

/// Writes the file.
struct Writer {
    size: u64,
    limit: Duration,
}

impl Writer {
    /// Writes the file sequentially in requests of 1 MiB, until the server has all data. Returns
    /// the seconds.
    fn write(&self, site: &Site<'_>) -> Result<f64> {
        let command = load::command("data")?
            .args(["--pattern", "write", "--threads", "1", "--ms", "0"])
            .args(["--bytes".to_owned(), self.size.to_string()])
            .arg(site.running.mountpoint().join("data"));
        let said = load::run(&command, self.limit, site.interrupt, |_| ())?;
        read::<Done>(said.trim()).map(|done| done.seconds)
    }
}

impl Meter for Writer {
    type Test = FreshMeter;
    type Column = FreshMeter;
    type Reading = Round;

    fn describe(&self, _: FreshMeter) -> String {
        format!("{PASSES} passes")
    }

    fn measure(&self, _: FreshMeter, site: &mut Site<'_>) -> Result<Outcome<FreshMeter, Round>> {
        let mut passes = [0.0; PASSES];
        for pass in &mut passes {
            *pass = self.size as f64 / MIB as f64 / self.write(site)?.max(1e-9);
        }
        Ok(Outcome::of(vec![(FreshMeter, Round { start: site.start.as_secs_f64(), passes })]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    fn extent(args: &[&str], available: u64) -> Result<Extent> {
        parse::<Options>(&[&["--fresh"], args].concat()).unwrap().extent(available)
    }

    #[test]
    fn each_provider_is_there_with_the_page_cache_and_without_it() {
        let names = |args: &[&str]| -> Vec<String> {
            let options = parse::<Options>(args).unwrap();
            options.entrants(GIB).unwrap().into_iter().map(|entrant| entrant.name).collect()
        };
        assert_eq!(
            names(&["--providers=tcp,null"]),
            ["tcp", "tcp, --cache none", "null", "null, --cache none"]
        );
        assert_eq!(names(&["--providers=shm", "--cache=none"]), ["shm"]);
    }

    #[test]
    fn measurements_that_exceed_the_memory_are_refused() {
        let all = extent(&[], 17 * GIB + GIB / 2).unwrap();
        assert_eq!((all.memory, all.size, all.rounds), (16 * GIB, GIB, 5));
        assert_eq!(parse::<Options>(&[]).unwrap().providers, [Kind::Shm, Kind::Tcp, Kind::Null]);
        let quick = extent(&["--quick", "--providers", "tcp"], GIB).unwrap();
        assert_eq!((quick.memory, quick.size, quick.rounds), (256 * MIB, 64 * MIB, 1));
        let error = extent(&[], 17 * GIB).unwrap_err().to_string();
        assert_eq!(
            error,
            "a server of 16 GiB takes 17.5 GiB with all beside it, 17 GiB are available; give a smaller --memory"
        );
        for (memory, size) in [("2g", "1025m"), ("2g", "1000k")] {
            assert!(extent(&["--memory", memory, "--size", size], 64 * GIB).is_err(), "{size}");
        }
        assert!(extent(&["--memory", "2g", "--size", "1g"], 64 * GIB).is_ok());
    }
}
