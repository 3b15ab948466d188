//! Progress display on standard error: a bar on a terminal, otherwise one line per run.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress over a known number of steps.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    label: String,
}

impl Progress {
    /// Returns a display for `steps` steps. It redraws only when a value changes, because a redraw
    /// thread would take processor time from the measurement.
    pub fn new(steps: u64) -> Self {
        let lines = !stderr().is_terminal();
        let bar = if lines {
            ProgressBar::hidden()
        } else {
            let bar = ProgressBar::new(steps);
            // The template is a constant. If it were invalid, the default style would be used.
            if let Ok(style) = ProgressStyle::with_template(
                "{spinner} [{elapsed_precise}] {wide_bar} {percent:>3}%  {msg}  (left: {eta})",
            ) {
                bar.set_style(style);
            }
            bar
        };
        Self { bar, lines, label: String::new() }
    }

    /// Shows the label of the next run.
    pub fn begin(&mut self, label: String) {
        if self.lines {
            eprintln!("{label}");
        }
        self.bar.set_message(label.clone());
        self.label = label;
    }

    /// Sets the number of completed steps.
    pub fn at(&self, step: u64) {
        self.bar.set_position(step);
    }

    /// Shows the current activity of the run.
    pub fn note(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.label));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
