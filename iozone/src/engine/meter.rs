//! Measures one job with IOzone or fio, and the processor time of the target's programs.

use std::{path::Path, time::Duration};

use super::{
    Engine, Run,
    fio::{self, Fio},
    job::{Column, Job, Reading},
};
use crate::{
    Error, Result,
    harness::{Meter, Outcome, Site, usage::Programs},
    sample::Phase,
    size,
};

/// The measuring programs: IOzone or its substitute, and fio.
pub struct Instruments<'a> {
    /// Engine for IOzone's jobs.
    pub engine: &'a dyn Engine,
    /// fio, for its jobs.
    pub fio: Option<&'a Fio>,
    /// Bytes of a file.
    pub size: u64,
    /// Number of concurrent processes of IOzone, each with its own file.
    pub threads: u32,
    /// Milliseconds of each access of fio.
    pub fio_ms: u32,
    /// Time limit for one run of a program.
    pub limit: Duration,
    /// A library for LD_PRELOAD of the engine.
    pub library: Option<&'a Path>,
}

impl<'a> Instruments<'a> {
    /// Returns the programs of a plan that has jobs of IOzone only.
    pub fn of_iozone(engine: &'a dyn Engine, size: u64, threads: u32, limit: Duration) -> Self {
        Instruments { engine, fio: None, size, threads, fio_ms: 0, limit, library: None }
    }
}

impl Meter for Instruments<'_> {
    type Test = Job;
    type Column = Column;
    type Reading = Reading;

    fn describe(&self, job: Job) -> String {
        job.describe()
    }

    fn measure(&self, job: Job, site: &mut Site<'_>) -> Result<Outcome<Column, Reading>> {
        match job {
            Job::Iozone(record) => self.iozone(record, site),
            Job::Fio(block) | Job::Callers(block) => self.fio(job, block, site),
        }
    }
}

impl Instruments<'_> {
    fn iozone(&self, record: u64, site: &Site<'_>) -> Result<Outcome<Column, Reading>> {
        let programs = Programs::of(&site.running.processes());
        let dir = site.running.mountpoint();
        let (file_size, threads, limit) = (self.size, self.threads, self.limit);
        let run = Run { dir, record, file_size, threads, limit, library: self.library };
        // Processor time after each number of completed phases.
        let mut marks = vec![(0, programs.cpu_s())];
        let note = |done: usize| site.note(Phase::ALL.get(done).map_or("stopping", |phase| phase.name()));
        note(0);
        let outcome = self.engine.run(&run, site.interrupt, &mut |done| {
            // Drawing takes processor time from the measurement.
            if marks.last().is_some_and(|(last, _)| done > *last) {
                note(done);
                marks.push((done, programs.cpu_s()));
            }
        })?;
        marks.push((Phase::ALL.len(), programs.cpu_s()));
        let cpu = by_phase(&marks);
        let gib = (self.size * u64::from(self.threads)) as f64 / size::GIB as f64;
        let reading = |(n, phase): (usize, Phase)| Reading {
            mib_per_s: outcome.sample.kib_per_s(phase) / 1024.0,
            cpu_s_per_gib: programs.exist().then(|| cpu[n] / gib),
            ..Reading::default()
        };
        let readings = Phase::ALL.into_iter().enumerate().map(reading);
        let readings = Job::Iozone(record).columns().into_iter().zip(readings).collect();
        Ok(Outcome { readings, command: Some(outcome.command), said: outcome.raw })
    }

    fn fio(&self, job: Job, block: u64, site: &Site<'_>) -> Result<Outcome<Column, Reading>> {
        let Some(fio) = self.fio else { return Err(Error::Usage("there is no fio".into())) };
        let programs = Programs::of(&site.running.processes());
        let file = site.running.mountpoint().join("fio");
        let size = self.size;
        fio.prepare(&file, size, self.limit, site.interrupt)?;
        let (mut readings, mut log) = (Vec::new(), String::new());
        for (column, access) in job.columns().into_iter().zip(job.accesses()) {
            let run = fio::Run { file: &file, size, block, access: *access, ms: self.fio_ms };
            let before = programs.cpu_s();
            let (measured, said) = fio.measure(&run, self.limit, site.interrupt)?;
            let gib = measured.bytes as f64 / size::GIB as f64;
            let reading = Reading {
                mib_per_s: measured.mib_per_s,
                latency: Some(measured.latency),
                cpu_s_per_gib: programs.exist().then(|| (programs.cpu_s() - before) / gib),
                caller_s_per_gib: Some(measured.cpu_s / gib),
            };
            readings.push((column, reading));
            log.push_str(&said);
        }
        std::fs::remove_file(&file).map_err(Error::io(&file))?;
        Ok(Outcome { readings, command: None, said: log })
    }
}

/// Returns the processor time per phase, given the number of completed phases and the time at each
/// mark. Phases that completed at the same mark get equal shares; IOzone reports the phases of a
/// pair together.
fn by_phase(marks: &[(usize, f64)]) -> [f64; Phase::ALL.len()] {
    let mut taken = [0.0; Phase::ALL.len()];
    for pair in marks.windows(2) {
        let [(first, before), (end, after)] = pair else { continue };
        let phases = taken.get_mut(*first..*end).unwrap_or_default();
        let share = (after - before).max(0.0) / phases.len().max(1) as f64;
        phases.fill(share);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_that_end_together_share_the_time() {
        let marks = [(0, 10.0), (2, 14.0), (3, 15.0), (6, 18.0)];
        assert_eq!(by_phase(&marks), [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn marks_without_a_phase_or_out_of_range_are_harmless() {
        assert_eq!(by_phase(&[]), [0.0; 6]);
        assert_eq!(by_phase(&[(0, 1.0), (6, 7.0), (6, 9.0)]), [1.0; 6]);
        assert_eq!(by_phase(&[(0, 1.0), (7, 9.0)]), [0.0; 6]);
        // The time of an ended program disappears from the sum.
        assert_eq!(by_phase(&[(0, 5.0), (6, 1.0)]), [0.0; 6]);
    }
}
