//! Measures how rfs scales.
//!
//! A series increases one load: threads on one file, files, mounts of one server, the size of a
//! file, or the number of files. At each point every target is started afresh and performs the same
//! work. A result is the median of interleaved rounds.
//!
//! [`series`] has the series, points and their costs, [`meter`] takes a point. [`report`] is the
//! result as data, [`check`] judges it, and [`table`], [`charts`] and [`document`] show it.

pub mod charts;
pub mod check;
pub mod document;
pub mod meter;
mod options;
pub mod reading;
pub mod report;
pub mod series;
pub mod table;

pub use options::Options;

use self::{
    meter::Loads,
    report::Scaling,
    series::{Extent, Point, Series, points},
};
use super::{entrants, require};
use crate::{
    Result,
    cli::Switches,
    harness::{self, Entrant, Plan, Start},
    interrupt::Interrupt,
    machine,
    report::{Setting, files},
    size::{self, GIB, MIB},
    target::Setup,
};

/// Returns the targets, made for each point with its number of mounts and a server of the required
/// size. Servers prefault all memory.
fn lineup(options: &Options, extent: &Extent, points: &[Point]) -> Result<Vec<Entrant<Point>>> {
    let mut all = Vec::new();
    for &point in points {
        let shape = point.shape(extent.bytes);
        let files = shape.bytes * shape.files * shape.mounts;
        let (server_memory, inodes) = match point.series {
            Series::Count => (GIB / 2, Some(point.load + 1024)),
            // Each mount and each thread reserves space.
            _ => {
                let reserved = (shape.mounts + shape.threads * shape.files) * 32 * MIB;
                (size::server_memory(files, 1) + reserved, None)
            }
        };
        let setup = Setup {
            switches: Switches { prefault: true, ..options.switches.clone() },
            server_memory,
            inodes,
            mounts: u32::try_from(shape.mounts).unwrap_or(u32::MAX),
            files,
            ..Setup::at(&options.common.places)?
        };
        all.extend(entrants(&options.providers, &setup, &[point])?);
    }
    Ok(all)
}

impl Options {
    /// Runs the plan and reports its results. Returns false if the results are to be checked and a
    /// larger load has a lower rate.
    pub fn perform(&self) -> Result<bool> {
        let interrupt = Interrupt::on_signals()?;
        let output = &self.common.output;
        if self.document.is_some() {
            machine::clean_commit(&output.source)?;
        }
        let extent = self.extent();
        let (points, left_out) = points(&extent, machine::memory_available());
        left_out.iter().for_each(|reason| eprintln!("rfs-iozone: {reason}"));
        require(&points)?;
        let plan = Plan {
            entrants: lineup(self, &extent, &points)?,
            tests: points,
            rounds: extent.rounds,
            limit: self.common.round_limit(Some(60)),
            start: Start::EachTest,
        };
        let setting = Setting::now(output);
        let stem = setting.stem("scaling");
        let loads = Loads { extent: &extent, limit: self.common.timeout(1800) };
        let measured = harness::run(&plan, &loads, &interrupt)?;
        let scaling = Scaling::new(setting, &extent, left_out, &measured);
        println!("{}", table::render(&scaling));
        let mut all = vec![(format!("{stem}.json"), files::json(&scaling)?)];
        all.extend(document::files(&scaling, format!("{stem}.md"), &format!("{stem}-")));
        let mut written = files::write(&output.dir(), all)?;
        if let Some(dir) = &self.document {
            written.extend(files::write(dir, document::files(&scaling, "README.md".into(), ""))?);
        }
        files::tell(&written);
        let below = scaling.verdicts.iter().filter(|verdict| !verdict.met);
        below.for_each(|verdict| eprintln!("rfs-iozone: {}", verdict.describe()));
        Ok(!self.common.check || scaling.passes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn targets_are_there_once_each_in_the_order_given() {
        let options: Options = parse(&["--providers=null,shm,null,tmpfs", "--bin-dir=/bin"]).unwrap();
        let point = Point { series: Series::Mounts, load: 4 };
        let lineup = lineup(&options, &options.extent(), &[point]).unwrap();
        let names: Vec<_> = lineup.iter().map(|entrant| entrant.name.as_str()).collect();
        assert_eq!(names, ["null", "shm", "tmpfs"]);
        assert!(lineup.iter().all(|entrant| entrant.tests == [point]));
    }
}
