//! The rounds. Each round measures every point on every target, alternately forwards and backwards.
//! All targets are stopped before [`run`] returns.

use std::time::{Duration, Instant};

use super::{
    lineup::Lineup,
    measure::Meter,
    plan::{Extent, Pattern, Point},
    report::Reading,
};
use crate::{
    Result,
    interrupt::Interrupt,
    pace::{Budget, show_seconds},
    report::TargetInfo,
    runner::order,
};

/// The readings of one pattern at one point of one target, in the order of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the target.
    pub target: usize,
    /// The point.
    pub point: Point,
    /// The pattern.
    pub pattern: Pattern,
    /// One per round.
    pub rounds: Vec<Reading>,
}

/// All measurements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Cells in the order of their first measurement.
    pub cells: Vec<Cell>,
    /// The targets, as last started.
    pub targets: Vec<TargetInfo>,
    /// Number of complete rounds.
    pub rounds: u32,
}

/// Runs all rounds; none begins after `limit`. Calls `progress` before each measurement.
pub fn run(
    (extent, points): (&Extent, &[Point]),
    lineup: &dyn Lineup,
    meter: &dyn Meter,
    limit: Duration,
    interrupt: &Interrupt,
    mut progress: impl FnMut(String),
) -> Result<Measured> {
    let began = Instant::now();
    let mut measured = Measured { targets: vec![TargetInfo::default(); lineup.len()], ..Measured::default() };
    let round_cost: f64 = points.iter().map(|point| point.cost(extent)).sum::<f64>() * lineup.len() as f64;
    let mut budget = Budget::new(round_cost * f64::from(extent.rounds));
    for round in 0..extent.rounds {
        if round > 0 && began.elapsed() > limit {
            break;
        }
        for (point, index) in order(round, points.len(), lineup.len()) {
            interrupt.check()?;
            let point = points[point];
            let target = lineup.target(index, point)?;
            let left = budget.left(began.elapsed().as_secs_f64());
            progress(format!(
                "round {}/{}, {}, {} ({} left)",
                round + 1,
                extent.rounds,
                point.describe(),
                target.name(),
                show_seconds(left)
            ));
            let mut running = target.start(interrupt)?;
            measured.targets[index] = TargetInfo {
                name: target.name().to_owned(),
                title: target.title().to_owned(),
                ceiling: target.is_ceiling(),
                commands: running.commands(),
            };
            let readings = match meter.measure(point, running.as_ref(), interrupt) {
                Ok(readings) => readings,
                Err(err) => return Err(running.explain(err)),
            };
            running.stop()?;
            for (pattern, reading) in point.series.patterns().into_iter().zip(readings) {
                measured.add(index, point, pattern, reading);
            }
            budget.spend(point.cost(extent));
        }
        measured.rounds = round + 1;
    }
    Ok(measured)
}

impl Measured {
    fn add(&mut self, target: usize, point: Point, pattern: Pattern, reading: Reading) {
        let same = |cell: &&mut Cell| (cell.target, cell.point, cell.pattern) == (target, point, pattern);
        match self.cells.iter_mut().find(same) {
            Some(cell) => cell.rounds.push(reading),
            None => self.cells.push(Cell { target, point, pattern, rounds: vec![reading] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, path::Path, rc::Rc};

    use super::*;
    use crate::{
        Error,
        scaling::{plan::Series, report::tests::reading},
        target::{Running, Target},
    };

    type Log = Rc<RefCell<Vec<String>>>;

    /// A target that writes its events to a log.
    struct Fake(&'static str, Log);

    impl Target for Fake {
        fn name(&self) -> &str {
            self.0
        }
        fn title(&self) -> &str {
            "a fake"
        }
        fn is_ceiling(&self) -> bool {
            self.0 == "null"
        }
        fn start(&self, _: &Interrupt) -> Result<Box<dyn Running>> {
            self.1.borrow_mut().push(format!("start {}", self.0));
            Ok(Box::new(Fake(self.0, Rc::clone(&self.1))))
        }
    }

    impl Running for Fake {
        fn mountpoint(&self) -> &Path {
            Path::new(self.0)
        }
        fn commands(&self) -> Vec<String> {
            vec![format!("run {}", self.0)]
        }
        fn explain(&mut self, error: Error) -> Error {
            Error::Usage(format!("{}: {error}", self.0))
        }
        fn stop(self: Box<Self>) -> Result<String> {
            self.1.borrow_mut().push(format!("stop {}", self.0));
            Ok(String::new())
        }
    }

    struct Fakes(Log);

    impl Lineup for Fakes {
        fn len(&self) -> usize {
            2
        }
        fn target(&self, index: usize, _: Point) -> Result<Box<dyn Target>> {
            Ok(Box::new(Fake(["shm", "null"][index], Rc::clone(&self.0))))
        }
    }

    /// A meter whose rate is the load. It fails at a load of 13.
    struct Rates;

    impl Meter for Rates {
        fn measure(&self, point: Point, _: &dyn Running, _: &Interrupt) -> Result<Vec<Reading>> {
            match point.load {
                13 => Err(Error::Usage("no".into())),
                load => Ok(vec![reading(load as f64); 3]),
            }
        }
    }

    fn run_fakes(loads: &[u64], log: &Log, interrupt: &Interrupt) -> Result<(Measured, Vec<String>)> {
        let extent = Extent { series: Vec::new(), rounds: 2, bytes: 1 << 20, random_ms: 10, least_files: 1 };
        let points: Vec<_> = loads.iter().map(|&load| Point { series: Series::Files, load }).collect();
        let (mut labels, limit) = (Vec::new(), Duration::from_secs(1000));
        let tell = |label| labels.push(label);
        let measured = run((&extent, &points), &Fakes(Rc::clone(log)), &Rates, limit, interrupt, tell)?;
        Ok((measured, labels))
    }

    #[test]
    fn every_point_is_taken_on_every_target_in_alternation() {
        let log = Log::default();
        let (measured, labels) = run_fakes(&[1, 2], &log, &Interrupt::unset()).unwrap();
        let order = ["shm", "null", "null", "shm", "null", "shm", "shm", "null"];
        let expected: Vec<String> =
            order.iter().flat_map(|name| [format!("start {name}"), format!("stop {name}")]).collect();
        assert_eq!(*log.borrow(), expected);
        assert_eq!(measured.cells.len(), 2 * 2 * 3);
        assert!(measured.cells.iter().all(|cell| cell.rounds == vec![reading(cell.point.load as f64); 2]));
        assert_eq!(measured.rounds, 2);
        let told = measured.targets.iter().map(|info| (info.name.as_str(), info.ceiling)).collect::<Vec<_>>();
        assert_eq!(told, [("shm", false), ("null", true)]);
        assert_eq!(measured.targets[0].commands, ["run shm"]);
        // The estimate, because no work is completed yet.
        assert!(labels[0].starts_with("round 1/2, files 1, shm (") && labels[0].ends_with(" s left)"));
        assert!(labels[7].starts_with("round 2/2, files 2, null ("), "{labels:?}");
    }

    #[test]
    fn a_failure_is_explained_and_a_signal_starts_nothing() {
        let log = Log::default();
        let error = run_fakes(&[1, 13], &log, &Interrupt::unset()).unwrap_err();
        assert_eq!(error.to_string(), "null: no");
        log.borrow_mut().clear();
        let interrupt = Interrupt::unset();
        interrupt.set(15);
        assert_eq!(run_fakes(&[1], &log, &interrupt).unwrap_err().exit_code(), 143);
        assert!(log.borrow().is_empty());
    }
}
