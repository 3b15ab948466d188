//! Progress over all phases of all runs.

use crate::sample::Phase;

/// A bar, or a line per run.
#[derive(Debug)]
pub struct Progress {
    bar: measure::progress::Progress,
    base: u64,
}

impl Progress {
    /// For that many runs.
    pub fn new(runs: usize) -> Self {
        let steps = (runs * Phase::ALL.len()) as u64;
        Self { bar: measure::progress::Progress::new(steps).ticking(), base: 0 }
    }

    /// A run begins.
    pub fn begin(&mut self, label: String) {
        self.bar.begin(label);
        self.phases(0);
    }

    /// That many phases of the current run are done.
    pub fn phases(&self, done: usize) {
        self.bar.at(self.base + done as u64);
        self.bar.note(Phase::ALL.get(done).map_or("stopping", |phase| phase.name()));
    }

    /// The current run has ended.
    pub fn end(&mut self) {
        self.base += Phase::ALL.len() as u64;
        self.bar.at(self.base);
    }
}
