//! The description of a run, and the interface of a measurement.

use std::time::Duration;

use measure::progress::Progress;

use super::Reading;
use crate::{
    Result,
    interrupt::Interrupt,
    target::{Running, Side, Target},
};

/// A target in a run.
pub struct Entrant<T> {
    /// Short name. Entrants with equal names are one target in the results.
    pub name: String,
    /// Description.
    pub title: String,
    /// Role of the target.
    pub side: Side,
    /// Tests to measure.
    pub tests: Vec<T>,
    /// File system that is measured.
    pub target: Box<dyn Target>,
}

impl<T> Entrant<T> {
    /// Returns an entrant with the name, title and role of the target.
    pub fn new(target: Box<dyn Target>, tests: Vec<T>) -> Self {
        let (name, title) = (target.name().to_owned(), target.title().to_owned());
        Self { name, title, side: target.side(), tests, target }
    }
}

/// When targets start and stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Each test starts its target and stops it. One target runs at a time.
    EachTest,
    /// All targets run during a round, but only one is measured at a time, so compared measurements
    /// are seconds apart. At the end of a round the idle programs are observed for this time. A
    /// peer that does not start, or fails, is left out from then on.
    SideBySide(Duration),
}

/// The measurements of a run: in every round each test runs once on each target that has it.
pub struct Plan<T> {
    /// The targets, in the order of tables.
    pub entrants: Vec<Entrant<T>>,
    /// The tests, in the order of a round.
    pub tests: Vec<T>,
    /// Number of rounds, each with every test of every target.
    pub rounds: u32,
    /// Time after which no round begins.
    pub limit: Option<Duration>,
    /// When targets start and stop.
    pub start: Start,
}

/// A running target, for one measurement.
pub struct Site<'a> {
    /// Name of the entrant.
    pub name: &'a str,
    /// Started file system that is measured.
    pub running: &'a mut dyn Running,
    /// Duration of its start.
    pub start: Duration,
    /// The interrupt flag.
    pub interrupt: &'a Interrupt,
    pub(super) progress: &'a mut Progress,
    pub(super) label: &'a str,
}

impl Site<'_> {
    /// Shows the current activity.
    pub fn note(&self, what: &str) {
        self.progress.note(what);
    }

    /// Shows the start of a part of the measurement.
    pub fn begin(&mut self, part: &str) {
        self.progress.begin(format!("{}, {part}", self.label));
    }
}

/// The result of one measurement.
#[derive(Clone, Debug)]
pub struct Outcome<C, R> {
    /// Columns with their readings, in order.
    pub readings: Vec<(C, R)>,
    /// Command line of the measuring program, for reports.
    pub command: Option<String>,
    /// Output of the measuring program, for the log.
    pub said: String,
}

impl<C, R> Outcome<C, R> {
    /// Returns an outcome without a command line and output.
    pub fn of(readings: Vec<(C, R)>) -> Self {
        Self { readings, command: None, said: String::new() }
    }
}

/// Takes measurements.
pub trait Meter {
    /// A test: one run of measuring programs on a target.
    type Test: Copy + PartialEq;
    /// A column of the results. A test has readings in one or more columns.
    type Column: Copy + PartialEq;
    /// The measured values of one column in one round.
    type Reading: Reading;

    /// Returns a description of a test for the progress display.
    fn describe(&self, test: Self::Test) -> String;

    /// Returns the approximate seconds of a test on a typical machine, if they are known. Only the
    /// proportions matter.
    fn cost(&self, test: Self::Test) -> Option<f64> {
        let _ = test;
        None
    }

    /// Measures a test once, and returns a reading for each of its columns.
    fn measure(&self, test: Self::Test, site: &mut Site<'_>) -> Result<Outcome<Self::Column, Self::Reading>>;
}
