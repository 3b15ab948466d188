//! Measures the steps on one target.

use std::time::Duration;

use serde::Serialize;

use super::{
    counters::{Counters, Counts, since},
    step::{Action, STEPS, Shape, Step},
};
use crate::{
    Error, Result,
    cli::name_of,
    harness::{self, Meter, Outcome, Site},
    load,
    sample::median,
};

/// The extent of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Files to create, look up and remove.
    pub files: usize,
    /// Files in the listed directory.
    pub listed: usize,
    /// Number of threads that share the files.
    pub threads: usize,
    /// Rounds.
    pub rounds: u32,
}

impl Extent {
    /// Describes the measurement.
    pub fn describe(self) -> String {
        let Self { files, listed, threads, rounds } = self;
        format!("{files} files, {listed} listed, {threads} thread(s), {rounds} round(s), medians")
    }

    fn files(self, step: Step) -> usize {
        if step.action == Action::List { self.listed } else { self.files }
    }
}

/// The test: all steps in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllSteps;

/// The measurements of a step in one round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Taken {
    /// Number of files.
    pub files: usize,
    /// Duration in seconds.
    pub seconds: f64,
    /// Requests to the server, if there is a server.
    pub asked: Option<Counts>,
}

impl harness::Reading for Taken {
    /// Returns the median of the durations, with the requests of the last round.
    fn median(rounds: &[Self]) -> Self {
        let seconds = median(&rounds.iter().map(|round| round.seconds).collect::<Vec<_>>());
        let last = rounds.last();
        Self {
            files: last.map_or(0, |last| last.files),
            seconds: seconds.unwrap_or(f64::NAN),
            asked: last.and_then(|last| last.asked.clone()),
        }
    }

    /// Returns the files per second.
    fn rate(&self) -> f64 {
        self.files as f64 / self.seconds
    }
}

/// Performs the steps in child processes.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// Extent of the measurement.
    pub extent: Extent,
    /// Time limit of a step.
    pub limit: Duration,
}

impl Steps {
    /// Measures one step. Returns nothing if the step needs a fresh mount and the target cannot
    /// remount.
    fn step(&self, step: Step, site: &mut Site<'_>) -> Result<Option<Taken>> {
        let files = self.extent.files(step);
        if step.action == Action::List && step.fresh {
            self.load(site, Action::Create, Shape::Flat, files)?;
        }
        if step.fresh && !site.running.remount(site.interrupt)? {
            return Ok(None);
        }
        let counters = site.running.server().map(Counters::of).transpose()?;
        let read = || counters.as_ref().map(Counters::read).transpose();
        let before = read()?;
        let seconds = self.load(site, step.action, step.shape, files)?;
        let asked = read()?.zip(before).map(|(after, before)| since(&after, &before));
        Ok(Some(Taken { files, seconds, asked }))
    }

    /// Performs an action in a child process and returns its seconds.
    fn load(&self, site: &Site<'_>, action: Action, shape: Shape, files: usize) -> Result<f64> {
        let command = load::command("files")?
            .arg("--dir")
            .arg(site.running.mountpoint())
            .args(["--files".to_owned(), files.to_string()])
            .args(["--shape".to_owned(), name_of(&shape)])
            .args(["--action".to_owned(), name_of(&action)])
            .args(["--threads".to_owned(), self.extent.threads.to_string()]);
        let said = load::run(&command, self.limit, site.interrupt, |_| ())?;
        said.trim().parse().map_err(|_| Error::Parse { program: "the load".into(), what: said })
    }
}

impl Meter for Steps {
    type Test = AllSteps;
    type Column = Step;
    type Reading = Taken;

    fn describe(&self, _: AllSteps) -> String {
        "names".into()
    }

    fn measure(&self, _: AllSteps, site: &mut Site<'_>) -> Result<Outcome<Step, Taken>> {
        let mut readings = Vec::new();
        for step in STEPS {
            // GlusterFS creates only some hundred files per second.
            if step.action == Action::List && site.name == "glusterfs" {
                continue;
            }
            site.begin(&step.name());
            readings.extend(self.step(step, site)?.map(|taken| (step, taken)));
        }
        Ok(Outcome::of(readings))
    }
}
