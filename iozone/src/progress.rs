//! Progress over all phases of all runs.

use crate::sample::Phase;

/// A progress bar, or a line per run.
#[derive(Debug)]
pub struct Progress {
    bar: measure::progress::Progress,
    base: u64,
}

impl Progress {
    /// Returns a display for `runs` runs.
    pub fn new(runs: usize) -> Self {
        let steps = (runs * Phase::ALL.len()) as u64;
        Self { bar: measure::progress::Progress::new(steps).ticking(), base: 0 }
    }

    /// Shows the start of a run.
    pub fn begin(&mut self, label: String) {
        self.bar.begin(label);
        self.phases(0);
    }

    /// Shows the number of completed phases of the current run.
    pub fn phases(&self, done: usize) {
        self.bar.at(self.base + done as u64);
        self.bar.note(Phase::ALL.get(done).map_or("stopping", |phase| phase.name()));
    }

    /// Shows the end of the current run.
    pub fn end(&mut self) {
        self.base += Phase::ALL.len() as u64;
        self.bar.at(self.base);
    }
}
