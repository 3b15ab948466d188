//! The results of a user: operations, errors, the longest operation.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};

/// Maximum number of recorded error texts.
const MAX_TEXTS: usize = 5;

/// The results of a user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Number of successful operations.
    pub(crate) operations: u64,
    /// Number of failed operations, and of wrong bytes or names.
    pub(crate) errors: u64,
    /// Number of wrong bytes or names. Also included in `errors`.
    pub(crate) wrong: u64,
    /// Texts of the first of these.
    pub(crate) wrong_texts: Vec<String>,
    /// Texts of the first errors.
    pub(crate) texts: Vec<String>,
    /// Duration and name of the longest operation.
    pub(crate) longest: (Duration, &'static str),
    /// Number of successful increments of the shared counter.
    pub(crate) counted: u64,
    /// Number of failed increments that may have taken effect.
    pub(crate) perhaps_counted: u64,
    /// Number of checks of other users' directories.
    pub(crate) looks: u64,
}

impl Tally {
    /// Runs an operation and records its duration and success.
    pub(crate) fn timed<T>(
        &mut self,
        what: &'static str,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Result<T> {
        let began = Instant::now();
        let result = operation();
        self.longest = self.longest.max((began.elapsed(), what));
        self.operations += u64::from(result.is_ok());
        result.map_err(Error::io(what))
    }

    /// Adds the results of another user.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.errors += other.errors;
        self.wrong += other.wrong;
        self.counted += other.counted;
        self.perhaps_counted += other.perhaps_counted;
        self.looks += other.looks;
        self.longest = self.longest.max(other.longest);
        self.texts.extend(other.texts.iter().take(MAX_TEXTS - self.texts.len().min(MAX_TEXTS)).cloned());
        self.wrong_texts.extend(other.wrong_texts.iter().cloned());
    }

    /// Returns true if `count` fits the increments: none is lost, and none counted twice.
    pub(crate) fn fits(&self, count: u64) -> bool {
        (self.counted..=self.counted + self.perhaps_counted).contains(&count)
    }

    /// Records a failed operation.
    pub(crate) fn error(&mut self, error: &Error, text: String) {
        self.errors += 1;
        if matches!(error, Error::Wrong(_)) {
            self.wrong += 1;
            if self.wrong_texts.len() < MAX_TEXTS {
                self.wrong_texts.push(text.clone());
            }
        }
        if self.texts.len() < MAX_TEXTS {
            self.texts.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        let tally = Tally {
            operations: 2,
            errors: 9,
            texts: vec!["e".into(); 4],
            wrong: 1,
            wrong_texts: vec!["w".into()],
            counted: 1,
            perhaps_counted: 1,
            looks: 3,
            longest: (Duration::from_secs(1), "read"),
        };
        all.add(&tally);
        all.add(&tally);
        assert_eq!((all.operations, all.errors, all.counted, all.texts.len()), (4, 18, 2, MAX_TEXTS));
        assert_eq!((all.wrong, all.looks), (2, 6));
        assert_eq!([1, 2, 4, 5].map(|count| all.fits(count)), [false, true, true, false]);
        assert_eq!(all.longest, (Duration::from_secs(1), "read"));
    }
}
