//! What the user sees while it runs: a bar on a terminal, one line per run elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::sample::Phase;

/// Progress over all phases of all runs. Writes to standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    base: u64,
    lines: bool,
    label: String,
}

impl Progress {
    /// For that many runs.
    pub fn new(runs: usize) -> Self {
        let lines = !stderr().is_terminal();
        let bar = if lines {
            ProgressBar::hidden()
        } else {
            let bar = ProgressBar::new((runs * Phase::ALL.len()) as u64);
            // The template is a constant: if it were wrong the default style would do.
            if let Ok(style) = ProgressStyle::with_template(
                "{spinner} [{elapsed_precise}] {wide_bar} {percent:>3}%  {msg}  (left: {eta})",
            ) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        };
        Self { bar, base: 0, lines, label: String::new() }
    }

    /// A run begins.
    pub fn begin(&mut self, label: String) {
        if self.lines {
            eprintln!("{label}");
        }
        self.label = label;
        self.phases(0);
    }

    /// That many phases of the current run are done.
    pub fn phases(&self, done: usize) {
        let now = Phase::ALL.get(done).map_or("stopping", |phase| phase.name());
        self.bar.set_position(self.base + done as u64);
        self.bar.set_message(format!("{}: {now}", self.label));
    }

    /// The current run has ended.
    pub fn end(&mut self) {
        self.base += Phase::ALL.len() as u64;
        self.bar.set_position(self.base);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
