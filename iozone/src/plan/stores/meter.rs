//! Measures a case: its loads on the mounts one after the other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{case::Case, options::Options};
use crate::{
    Result,
    cli::name_of,
    harness::{self, Meter, Outcome, Site},
    load::{
        self, Pattern,
        data::{BLOCK, RECORD},
        latency::{Done, read},
        memory,
    },
    sample::{Latency, median},
    size::{MIB, peak},
};

/// A column of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Files and clients.
    pub case: Case,
    /// Pattern of the requests.
    pub pattern: Pattern,
}

/// The measurements of one column in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Rate in MiB/s, of all clients together.
    pub mib_per_s: f64,
    /// Latency of the requests.
    pub latency: Latency,
}

impl harness::Reading for Reading {
    fn median(rounds: &[Self]) -> Self {
        let latencies: Vec<Latency> = rounds.iter().map(|round| round.latency).collect();
        Self {
            mib_per_s: median(&rounds.iter().map(|round| round.mib_per_s).collect::<Vec<_>>()).unwrap_or(0.0),
            latency: Latency::median(&latencies).unwrap_or_default(),
        }
    }

    fn rate(&self) -> f64 {
        self.mib_per_s
    }
}

/// Loads in child processes.
#[derive(Debug)]
pub struct Loads<'a>(pub &'a Options);

impl Loads<'_> {
    fn load(&self, (case, pattern): (Case, Pattern), files: &[PathBuf], site: &Site<'_>) -> Result<Reading> {
        let bytes = self.0.bytes(case) / files.len().max(1) as u64;
        let command = load::command("data")?
            .args(["--pattern".to_owned(), name_of(&pattern)])
            .args(["--bytes".to_owned(), bytes.to_string()])
            .args(["--threads".to_owned(), threads(case, pattern).to_string()])
            .args(["--ms".to_owned(), self.0.random_ms().to_string()])
            .args(files);
        let said = load::run(&command, self.0.common.timeout(600), site.interrupt, |_| ())?;
        let done: Done = read(said.trim())?;
        let each = if pattern == Pattern::RandomRead { BLOCK as u64 } else { RECORD };
        let mib_per_s = (done.operations * each) as f64 / MIB as f64 / done.seconds.max(1e-9);
        Ok(Reading { mib_per_s, latency: done.latency })
    }
}

/// Returns the threads on each file. One thread writes the file that many threads read.
fn threads(case: Case, pattern: Pattern) -> u64 {
    if pattern == Pattern::Write { 1 } else { case.threads() }
}

impl Meter for Loads<'_> {
    type Test = Case;
    type Column = Column;
    type Reading = Reading;

    fn describe(&self, case: Case) -> String {
        case.title().to_owned()
    }

    fn cost(&self, case: Case) -> Option<f64> {
        Some(self.0.cost(case))
    }

    fn measure(&self, case: Case, site: &mut Site<'_>) -> Result<Outcome<Column, Reading>> {
        memory::have_at_hand(peak(self.0.bytes(case), 1), site.interrupt)?;
        let files: Vec<PathBuf> = site.running.mountpoints().iter().map(|point| point.join("data")).collect();
        // Files of different mounts have different names, because they share one tree.
        let named = files.iter().enumerate().map(|(n, file)| file.with_extension(n.to_string()));
        let files: Vec<PathBuf> = named.collect();
        // Without limits, the first use of memory would be a part of the time.
        if !case.patterns().contains(&Pattern::Write) || case == Case::Loopback {
            self.load((case, Pattern::Write), &files, site)?;
        }
        let take = |pattern: &Pattern| {
            let reading = self.load((case, *pattern), &files, site)?;
            Ok((Column { case, pattern: *pattern }, reading))
        };
        Ok(Outcome::of(case.patterns().iter().map(take).collect::<Result<_>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Reading as _;

    #[test]
    fn a_reading_is_the_median_of_its_rounds() {
        let reading = |rate, p50| Reading { mib_per_s: rate, latency: Latency { p50, ..Latency::default() } };
        let median = Reading::median(&[reading(1.0, 9.0), reading(5.0, 2.0), reading(3.0, 4.0)]);
        assert_eq!(median, reading(3.0, 4.0));
    }

    /// Catches sixteen writers of the file whose reads are measured.
    #[test]
    fn one_thread_writes_a_file() {
        assert_eq!(threads(Case::Blocks, Pattern::Write), 1);
        assert_eq!(threads(Case::Blocks, Pattern::RandomRead), 16);
        assert_eq!(threads(Case::Clients, Pattern::Read), 1);
    }
}
