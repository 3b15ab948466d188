//! What the user sees while it runs: a bar on a terminal, one line per run elsewhere. Writes to standard error.

use std::{
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress over a known number of steps.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    label: String,
}

impl Progress {
    /// For that many steps. Drawn when something changes: no thread of its own takes processor time from what is
    /// being measured, unless [`ticking`](Self::ticking) asks for one.
    pub fn new(steps: u64) -> Self {
        let lines = !stderr().is_terminal();
        let bar = if lines {
            ProgressBar::hidden()
        } else {
            let bar = ProgressBar::new(steps);
            // The template is a constant: if it were wrong the default style would do.
            if let Ok(style) = ProgressStyle::with_template(
                "{spinner} [{elapsed_precise}] {wide_bar} {percent:>3}%  {msg}  (left: {eta})",
            ) {
                bar.set_style(style);
            }
            bar
        };
        Self { bar, lines, label: String::new() }
    }

    /// Drawn by a thread of its own as well, five times a second.
    #[must_use]
    pub fn ticking(self) -> Self {
        if !self.lines {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
        self
    }

    /// A run begins.
    pub fn begin(&mut self, label: String) {
        if self.lines {
            eprintln!("{label}");
        }
        self.bar.set_message(label.clone());
        self.label = label;
    }

    /// So many steps are done.
    pub fn at(&self, step: u64) {
        self.bar.set_position(step);
    }

    /// What the current run is doing.
    pub fn note(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.label));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
