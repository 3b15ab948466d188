//! Measures a point: its loads on a target one after the other, and the memory of the target's
//! programs.

use std::{path::PathBuf, time::Duration};

use super::{
    reading::{Reading, Resident},
    series::{Extent, Point, Series},
};
use crate::{
    Error, Result,
    cli::name_of,
    harness::{Meter, Outcome, Site, usage::Programs},
    load::{
        self, Pattern,
        latency::{Done, read},
        memory,
        names::{ACTIONS, THERE},
    },
    size::MIB,
};

/// A column of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Column {
    /// Load that is measured.
    pub point: Point,
    /// Pattern of its requests.
    pub pattern: Pattern,
}

/// Loads in child processes.
#[derive(Debug)]
pub struct Loads<'a> {
    /// Extent of the measurement.
    pub extent: &'a Extent,
    /// Time limit of a load.
    pub limit: Duration,
}

impl Loads<'_> {
    /// Measures writing, reading, and random reading of files.
    fn data(&self, point: Point, site: &Site<'_>) -> Result<Vec<Reading>> {
        let programs = Programs::of(&site.running.processes());
        let idle = Resident::of(&programs);
        let shape = point.shape(self.extent.bytes);
        let points = site.running.mountpoints();
        // A target with fewer mounts has the files of all mounts.
        let files: Vec<PathBuf> = (0..shape.mounts as usize)
            .flat_map(|mount| (0..shape.files).map(move |file| (mount, file)))
            .map(|(mount, file)| points[mount % points.len()].join(format!("data-{mount}-{file}")))
            .collect();
        let take = |pattern: Pattern| {
            let command = load::command("data")?
                .args(["--pattern".to_owned(), name_of(&pattern)])
                .args(["--bytes".to_owned(), shape.bytes.to_string()])
                .args(["--threads".to_owned(), shape.threads.to_string()])
                .args(["--ms".to_owned(), self.extent.random_ms.to_string()])
                .args(&files);
            let said = load::run(&command, self.limit, site.interrupt, |_| ())?;
            let done: Done = read(said.trim())?;
            let bytes = match pattern {
                Pattern::RandomRead => done.operations * 4096,
                _ => shape.bytes * files.len() as u64,
            };
            let rate = bytes as f64 / MIB as f64 / done.seconds.max(1e-9);
            Ok(Reading { rate, latency: done.latency, idle, resident: Resident::of(&programs) })
        };
        point.series.patterns().into_iter().map(take).collect()
    }

    /// Measures creating, looking up and removing empty files. Repeats small numbers of files.
    fn names(&self, point: Point, site: &Site<'_>) -> Result<Vec<Reading>> {
        let programs = Programs::of(&site.running.processes());
        let idle = Resident::of(&programs);
        let times = self.extent.least_files.div_ceil(point.load).max(1);
        let command = load::command("names")?
            .arg("--dir")
            .arg(site.running.mountpoint())
            .args(["--count".to_owned(), point.load.to_string()])
            .args(["--times".to_owned(), times.to_string()]);
        let mut there = None;
        let said = load::run(&command, self.limit, site.interrupt, |text| {
            if there.is_none() && text.starts_with(THERE) {
                there = Some(Resident::of(&programs));
            }
        })?;
        let resident = there.unwrap_or_else(|| Resident::of(&programs));
        let lines = said.lines().skip(1).map(read).collect::<Result<Vec<Done>>>()?;
        if lines.len() != ACTIONS.len() {
            return Err(Error::Parse { program: "the load".into(), what: said });
        }
        let reading = |done: Done| {
            let rate = done.operations as f64 / done.seconds.max(1e-9);
            Reading { rate, latency: done.latency, idle, resident }
        };
        Ok(lines.into_iter().map(reading).collect())
    }
}

impl Meter for Loads<'_> {
    type Test = Point;
    type Column = Column;
    type Reading = Reading;

    fn describe(&self, point: Point) -> String {
        point.describe()
    }

    fn cost(&self, point: Point) -> Option<f64> {
        Some(point.cost(self.extent))
    }

    fn measure(&self, point: Point, site: &mut Site<'_>) -> Result<Outcome<Column, Reading>> {
        memory::have_at_hand(point.memory(self.extent.bytes), site.interrupt)?;
        let readings = match point.series {
            Series::Count => self.names(point, site)?,
            _ => self.data(point, site)?,
        };
        let columns = point.series.patterns().into_iter().map(|pattern| Column { point, pattern });
        Ok(Outcome::of(columns.zip(readings).collect()))
    }
}
