//! Counts the warnings and errors that a program logs, and keeps the last error.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use log::Level;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub(super) static COUNTS: Counts =
    Counts { errors: AtomicU64::new(0), warnings: AtomicU64::new(0), last: Mutex::new(None) };

/// Maximum length of a kept message, in bytes.
const MAX_TEXT: usize = 400;

/// The warnings and errors of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogCounts {
    /// Number of errors since the start.
    pub errors: u64,
    /// Number of warnings since the start.
    pub warnings: u64,
    /// The last error.
    pub last_error: Option<LoggedError>,
}

/// A logged error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoggedError {
    /// Time since the message.
    pub age_seconds: f64,
    /// The message.
    pub text: String,
}

pub(super) struct Counts {
    errors: AtomicU64,
    warnings: AtomicU64,
    last: Mutex<Option<(Instant, String)>>,
}

impl Counts {
    pub(super) fn count(&self, level: Level, text: impl FnOnce() -> String) {
        match level {
            Level::Error => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                let mut text = text();
                text.truncate(text.floor_char_boundary_at(MAX_TEXT));
                *self.last.lock() = Some((Instant::now(), text));
            }
            Level::Warn => drop(self.warnings.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    fn now(&self) -> LogCounts {
        let last = self.last.lock();
        let last_error = last.as_ref().map(|(since, text)| LoggedError {
            age_seconds: since.elapsed().as_secs_f64(),
            text: text.clone(),
        });
        LogCounts {
            errors: self.errors.load(Ordering::Relaxed),
            warnings: self.warnings.load(Ordering::Relaxed),
            last_error,
        }
    }
}

/// The nearest boundary of characters at or before an index.
trait CharBoundary {
    fn floor_char_boundary_at(&self, index: usize) -> usize;
}

impl CharBoundary for String {
    fn floor_char_boundary_at(&self, index: usize) -> usize {
        let index = index.min(self.len());
        (0..=index).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// Returns the counts since the start.
pub fn counts() -> LogCounts {
    COUNTS.now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_warnings_count_and_the_last_error_is_kept() {
        let counts =
            Counts { errors: AtomicU64::new(0), warnings: AtomicU64::new(0), last: Mutex::new(None) };
        assert_eq!(counts.now(), LogCounts::default());
        counts.count(Level::Info, || panic!("no text is needed"));
        counts.count(Level::Warn, || panic!("no text is needed"));
        counts.count(Level::Error, || "first".into());
        counts.count(Level::Error, || "ä".repeat(MAX_TEXT));
        let now = counts.now();
        assert_eq!((now.errors, now.warnings), (2, 1));
        assert_eq!(now.last_error.unwrap().text, "ä".repeat(MAX_TEXT / 2));
    }
}
