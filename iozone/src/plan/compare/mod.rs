//! Compares rfs with other file systems on one machine.
//!
//! In every round all targets are running, but only one of them is measured at a time. Compared
//! measurements are therefore seconds apart. A result is a ratio of medians over the rounds.
//!
//! [`lineup`] has the targets and their tests. [`ratios`] computes ratios of medians,
//! [`requirements`] judges them, and [`report`], [`table`] and [`charts`] show them.

pub mod charts;
pub mod lineup;
mod options;
pub mod ratios;
pub mod report;
pub mod requirements;
pub mod table;

use std::time::Duration;

pub use options::{Extent, Group, Options};

use self::report::Comparison;
use super::require;
use crate::{
    Result,
    engine::{self, fio::Fio, meter::Instruments},
    harness::{self, Plan, Start, sorted},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size,
};

impl Options {
    /// Runs the comparison and reports it. Returns false if the results are to be checked and miss
    /// a requirement.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let extent = self.extent();
        size::check(extent.size, &extent.records, 1, machine::memory_available())?;
        let engine = engine::choose(self.engine)?;
        let fio = Fio::find();
        let mut entrants = lineup::entrants(self)?;
        if fio.is_none() && self.wants(Group::Fio) {
            eprintln!("rfs-iozone: there is no fio: no O_DIRECT and no latencies (package: fio)");
            lineup::without_fio(&mut entrants);
        }
        require(&entrants)?;
        let mut programs = vec![engine.describe()];
        programs.extend(fio.as_ref().map(|fio| fio.describe().to_owned()));
        let instruments = Instruments {
            engine: engine.as_ref(),
            fio: fio.as_ref(),
            size: extent.size,
            threads: 1,
            fio_ms: extent.fio_ms,
            limit: self.common.timeout(300),
            library: None,
        };
        let plan = Plan {
            tests: sorted(entrants.iter().flat_map(|entrant| entrant.tests.iter().copied())),
            entrants,
            rounds: extent.rounds,
            limit: self.common.round_limit(Some(60)),
            start: Start::SideBySide(Duration::from_millis(extent.idle_ms)),
        };
        let setting = Setting::now(&self.common.output);
        let stem = setting.stem("compare");
        let measured = harness::run(&plan, &instruments, &interrupt)?;
        let comparison = Comparison::new(setting, programs, extent.size, &measured);
        println!("{}", table::render(&comparison));
        let written = report::write(&comparison, &measured.log, &self.common.output.dir(), &stem)?;
        files::tell(&written);
        Ok(!self.common.check || comparison.passes())
    }
}
