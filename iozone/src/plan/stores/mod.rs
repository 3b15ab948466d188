//! Measures how rfs scales with the number of stores.
//!
//! Each store is a host of a simulated network, and its link has a limited rate, so that two
//! processors are sufficient for several stores. Every case runs over each number of stores, in
//! interleaved rounds. The reference is one store, which is a server alone.
//!
//! [`case`] has the cases and their requirements, [`meter`] takes one. [`report`] is the result as
//! data, and [`table`] and [`chart`] show it.

pub mod case;
pub mod chart;
pub mod meter;
mod options;
pub mod report;
pub mod table;

pub use options::Options;

use self::{case::Case, meter::Loads, report::Report};
use super::require;
use crate::{
    Error, Result,
    harness::{self, Entrant, Plan, Start},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size::{MIB, show},
    target::Pool,
};

impl Options {
    /// Returns a target for each case and number of stores.
    fn lineup(&self) -> Result<Vec<Entrant<Case>>> {
        let mut all = Vec::new();
        for stores in self.counts() {
            for case in self.chosen_cases().into_iter().filter(|case| case.has(stores)) {
                let pool = Pool::new(self.setup(case, stores)?);
                all.push(Entrant::new(Box::new(pool), vec![case]));
            }
        }
        Ok(all)
    }

    /// Returns an error if the machine has too little memory.
    fn check(&self, available: u64) -> Result<()> {
        for case in self.chosen_cases() {
            let stores = self.counts().into_iter().filter(|stores| case.has(*stores)).max().unwrap_or(1);
            let setup = self.setup(case, stores)?;
            // The files are also in the page cache, and each mount has buffers.
            let peak = self.bytes(case) * 2 + u64::from(case.mounts()) * 128 * MIB + setup.memory;
            if peak > available {
                let (peak, available) = (show(peak), show(available));
                let what =
                    format!("{peak} of memory are needed, {available} are available; give a smaller --size");
                return Err(Error::Usage(what));
            }
        }
        Ok(())
    }

    /// Runs the plan and reports its results. Returns false if the results are to be checked and
    /// miss a requirement.
    ///
    /// # Errors
    /// There is too little memory, the machine has no network namespaces or no HTB, or a program
    /// fails.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        self.check(machine::memory_available())?;
        let plan = Plan {
            entrants: self.lineup()?,
            tests: self.chosen_cases(),
            rounds: self.common.rounds(3),
            limit: self.common.round_limit(Some(60)),
            start: Start::EachTest,
        };
        require(&plan.entrants)?;
        let setting = Setting::now(&self.common.output);
        let stem = setting.stem("stores");
        let measured = harness::run(&plan, &Loads(self), &interrupt)?;
        let report = Report::new(setting, self, &measured);
        println!("{}", table::render(&report));
        let texts = [("json", files::json(&report)?), ("svg", chart::svg(&report)), ("log", measured.log)];
        let texts = texts.map(|(extension, text)| (format!("{stem}.{extension}"), text));
        files::tell(&files::write(&self.common.output.dir(), texts.into())?);
        table::missed(&report).iter().for_each(|line| eprintln!("rfs-iozone: {line}"));
        Ok(!self.common.check || report.passes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    /// Catches a case that runs over a number of stores without a use, or not over one that it
    /// needs.
    #[test]
    fn each_case_has_its_numbers_of_stores() {
        let options: Options = parse(&["--bin-dir=/bin"]).unwrap();
        let lineup = options.lineup().unwrap();
        let of = |case: Case| -> Vec<&str> {
            let entrants = lineup.iter().filter(|entrant| entrant.tests == [case]);
            entrants.map(|entrant| entrant.name.as_str()).collect()
        };
        assert_eq!(of(Case::OneFile), ["1 store", "2 stores", "4 stores"]);
        assert_eq!(of(Case::Loopback), ["1 store", "2 stores"]);
        assert!(options.check(MIB).unwrap_err().to_string().contains("--size"));
    }
}
