//! The results of a run. No I/O, no locks, no clock.

use measure::statistics::spread;
use serde::{Deserialize, Serialize};

use super::usage::Idle;
use crate::target::Side;

/// The values of one column in one round.
pub trait Reading: Clone {
    /// Returns the median of each value.
    fn median(rounds: &[Self]) -> Self;

    /// Returns the main value, which has a spread.
    fn rate(&self) -> f64;
}

/// The readings of one target in one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series<C, R> {
    /// Name of the target.
    pub target: String,
    /// Column of the table that the reading belongs to.
    pub column: C,
    /// Readings of the rounds.
    pub rounds: Vec<R>,
    /// Medians of the rounds.
    pub median: R,
    /// `(largest - smallest) / median` of the rates.
    pub spread: Option<f64>,
}

impl<C, R: Reading> Series<C, R> {
    /// Computes medians and spread.
    pub fn new(target: impl Into<String>, column: C, rounds: Vec<R>) -> Self {
        let spread = spread(&rounds.iter().map(R::rate).collect::<Vec<_>>());
        Self { target: target.into(), column, median: R::median(&rounds), spread, rounds }
    }
}

/// A target in the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Short name.
    pub name: String,
    /// Description.
    pub title: String,
    /// Role of the target.
    pub side: Side,
    /// Command lines of its last start; in a run that starts it for each test, followed by that of
    /// the measuring program.
    pub commands: Vec<String>,
    /// The reason why it was skipped, or skipped from some round on.
    pub left_out: Option<String>,
    /// Usage of its programs while idle, at the end of each round.
    pub idle: Vec<Idle>,
}

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measured<C, R> {
    /// Series in the order of their first measurement.
    pub series: Vec<Series<C, R>>,
    /// The targets, in the order of the plan.
    pub targets: Vec<TargetInfo>,
    /// Number of complete rounds.
    pub rounds: u32,
    /// Output of the programs.
    pub log: String,
}

impl<C: PartialEq, R: Reading> Measured<C, R> {
    pub(super) fn add(&mut self, target: &str, column: C, reading: R) {
        match self.series.iter().position(|series| series.target == target && series.column == column) {
            Some(n) => {
                let mut rounds = std::mem::take(&mut self.series[n].rounds);
                rounds.push(reading);
                self.series[n] = Series::new(target, column, rounds);
            }
            None => self.series.push(Series::new(target, column, vec![reading])),
        }
    }
}
