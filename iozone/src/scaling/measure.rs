//! Measures a point: its loads on a target one after the other, and the memory of the target's
//! programs.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    latency::{Done, read},
    names::{ACTIONS, THERE},
    plan::{Extent, Pattern, Point, Series},
    report::{Reading, Resident},
};
use crate::{
    Error, Result,
    cli::name_of,
    interrupt::Interrupt,
    memory,
    process::{Guarded, Invocation},
    size::MIB,
    target::Running,
    usage::Programs,
};

/// Measures points.
pub trait Meter {
    /// Returns a reading for each pattern of the point's series, in their order.
    fn measure(&self, point: Point, running: &dyn Running, interrupt: &Interrupt) -> Result<Vec<Reading>>;
}

/// Runs this program as a child to create the load.
#[derive(Debug)]
pub struct Loads<'a> {
    /// Path of this program.
    program: PathBuf,
    extent: &'a Extent,
    /// Time limit of a load.
    limit: Duration,
}

impl<'a> Loads<'a> {
    /// Returns a meter for loads of this extent.
    pub fn new(extent: &'a Extent, limit: Duration) -> Result<Self> {
        let program = env::current_exe().map_err(Error::io("the path of this program"))?;
        Ok(Self { program, extent, limit })
    }

    /// Measures writing, reading, and random reading of files.
    fn data(&self, point: Point, running: &dyn Running, interrupt: &Interrupt) -> Result<Vec<Reading>> {
        let programs = Programs::of(&running.processes());
        let idle = Resident::of(&programs);
        let shape = point.shape(self.extent.bytes);
        let points = running.mountpoints();
        // A target with fewer mounts has the files of all mounts.
        let files: Vec<PathBuf> = (0..shape.mounts as usize)
            .flat_map(|mount| (0..shape.files).map(move |file| (mount, file)))
            .map(|(mount, file)| points[mount % points.len()].join(format!("data-{mount}-{file}")))
            .collect();
        let take = |pattern: Pattern| {
            let command = self
                .command("data")
                .args(["--pattern".to_owned(), name_of(&pattern)])
                .args(["--bytes".to_owned(), shape.bytes.to_string()])
                .args(["--threads".to_owned(), shape.threads.to_string()])
                .args(["--ms".to_owned(), self.extent.random_ms.to_string()])
                .args(&files);
            let said = spawn(&command)?.wait_success(interrupt, self.limit, |_| ())?;
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
    fn names(&self, point: Point, running: &dyn Running, interrupt: &Interrupt) -> Result<Vec<Reading>> {
        let programs = Programs::of(&running.processes());
        let idle = Resident::of(&programs);
        let times = self.extent.least_files.div_ceil(point.load).max(1);
        let command = self
            .command("names")
            .arg("--dir")
            .arg(running.mountpoint())
            .args(["--count".to_owned(), point.load.to_string()])
            .args(["--times".to_owned(), times.to_string()]);
        let mut there = None;
        let said = spawn(&command)?.wait_success(interrupt, self.limit, |text| {
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

    fn command(&self, what: &str) -> Invocation {
        Invocation::new(&self.program).arg(what)
    }
}

impl Meter for Loads<'_> {
    fn measure(&self, point: Point, running: &dyn Running, interrupt: &Interrupt) -> Result<Vec<Reading>> {
        memory::have_at_hand(point.memory(self.extent.bytes), interrupt)?;
        match point.series {
            Series::Count => self.names(point, running, interrupt),
            _ => self.data(point, running, interrupt),
        }
    }
}

/// The working directory is outside of the measured mount, because it would keep the mount busy.
fn spawn(command: &Invocation) -> Result<Guarded> {
    Guarded::spawn(command, Path::new("/"))
}
