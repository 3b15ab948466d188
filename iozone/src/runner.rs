//! The order of the runs, and the handling of failures.
//!
//! For every round and record size all targets take their turn, alternately forwards and backwards,
//! so that slow drift of the machine affects all of them alike. Every run starts its target afresh.

use std::time::Duration;

use crate::{
    Result,
    engine::{Engine, Job},
    interrupt::Interrupt,
    progress::Progress,
    sample::Sample,
    size,
    target::Target,
};

/// The runs to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Record sizes.
    pub records: Vec<u64>,
    /// Bytes per file.
    pub file_size: u64,
    /// Number of concurrent processes.
    pub threads: u32,
    /// Repetitions.
    pub rounds: u32,
    /// Time limit of one run.
    pub limit: Duration,
}

/// All samples of one target at one record size, in the order of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the target.
    pub target: usize,
    /// Bytes per operation.
    pub record: u64,
    /// One sample per round.
    pub samples: Vec<Sample>,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// One cell per target and record size.
    pub cells: Vec<Cell>,
    /// Command lines of each target, from its last start; that of the engine is last.
    pub commands: Vec<Vec<String>>,
    /// Output of the engine, per run.
    pub log: String,
}

/// Returns the record index and the target index of each run of a round, in order.
pub fn order(round: u32, records: usize, targets: usize) -> Vec<(usize, usize)> {
    let mut runs = Vec::with_capacity(records * targets);
    for record in 0..records {
        let backwards = (round as usize + record) % 2 == 1;
        runs.extend((0..targets).map(|n| (record, if backwards { targets - 1 - n } else { n })));
    }
    runs
}

/// Makes all runs. Stops the current target after a failure or a signal.
pub fn run(
    plan: &Plan,
    targets: &[Box<dyn Target>],
    engine: &dyn Engine,
    interrupt: &Interrupt,
) -> Result<Measured> {
    let mut measured = Measured { commands: vec![Vec::new(); targets.len()], ..Measured::default() };
    for target in 0..targets.len() {
        measured.cells.extend(plan.records.iter().map(|&record| Cell {
            target,
            record,
            samples: Vec::new(),
        }));
    }
    let runs = plan.records.len() * targets.len() * plan.rounds as usize;
    let mut progress = Progress::new(runs);
    for round in 0..plan.rounds {
        for (record, index) in order(round, plan.records.len(), targets.len()) {
            interrupt.check()?;
            let (target, bytes) = (targets[index].as_ref(), plan.records[record]);
            let label = format!(
                "round {}/{}, {} records, {}",
                round + 1,
                plan.rounds,
                size::show(bytes),
                target.name()
            );
            progress.begin(label.clone());
            let mut running = target.start(interrupt)?;
            let job = Job {
                dir: running.mountpoint(),
                record: bytes,
                file_size: plan.file_size,
                threads: plan.threads,
                limit: plan.limit,
            };
            let outcome = match engine.run(&job, interrupt, &mut |done| progress.phases(done)) {
                Ok(outcome) => outcome,
                Err(err) => return Err(running.explain(err)),
            };
            let mut commands = running.commands();
            let said = running.stop()?;
            commands.push(outcome.command);
            let commands_text = commands.join("\n$ ");
            measured.log.push_str(&format!("== {label}\n$ {commands_text}\n{}{said}\n", outcome.raw));
            measured.commands[index] = commands;
            measured.cells[index * plan.records.len() + record].samples.push(outcome.sample);
            progress.end();
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, path::Path, rc::Rc};

    use super::*;
    use crate::{Error, engine::Outcome, target::Running};

    type Log = Rc<RefCell<Vec<String>>>;

    struct Fake(&'static str, Log);
    struct FakeRunning(&'static str, Log);

    impl Target for Fake {
        fn name(&self) -> &str {
            self.0
        }
        fn title(&self) -> &str {
            self.0
        }
        fn is_ceiling(&self) -> bool {
            false
        }
        fn start(&self, _: &Interrupt) -> Result<Box<dyn Running>> {
            self.1.borrow_mut().push(format!("start {}", self.0));
            Ok(Box::new(FakeRunning(self.0, Rc::clone(&self.1))))
        }
    }

    impl Running for FakeRunning {
        fn mountpoint(&self) -> &Path {
            Path::new("/m")
        }
        fn commands(&self) -> Vec<String> {
            vec![format!("run {}", self.0)]
        }
        fn explain(&mut self, error: Error) -> Error {
            error
        }
        fn stop(self: Box<Self>) -> Result<String> {
            Ok("counters\n".into())
        }
    }

    impl Drop for FakeRunning {
        fn drop(&mut self) {
            self.1.borrow_mut().push(format!("stop {}", self.0));
        }
    }

    struct FakeEngine {
        fail: bool,
    }

    impl Engine for FakeEngine {
        fn describe(&self) -> String {
            "fake".into()
        }
        fn run(&self, job: &Job<'_>, _: &Interrupt, done: &mut dyn FnMut(usize)) -> Result<Outcome> {
            done(6);
            if self.fail {
                return Err(Error::Parse { program: "fake".into(), what: "nothing".into() });
            }
            let sample = Sample([job.record as f64; 6]);
            Ok(Outcome { sample, command: "fake".into(), raw: "raw".into() })
        }
    }

    fn plan(rounds: u32) -> Plan {
        Plan { records: vec![1, 2], file_size: 4, threads: 1, rounds, limit: Duration::from_secs(1) }
    }

    #[test]
    fn the_order_alternates() {
        assert_eq!(order(0, 2, 3), [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0)]);
        assert_eq!(order(1, 2, 3), [(0, 2), (0, 1), (0, 0), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn every_run_lands_in_its_cell() {
        let log = Log::default();
        let targets: Vec<Box<dyn Target>> =
            vec![Box::new(Fake("a", Rc::clone(&log))), Box::new(Fake("b", Rc::clone(&log)))];
        let measured = run(&plan(2), &targets, &FakeEngine { fail: false }, &Interrupt::unset()).unwrap();
        let cells: Vec<_> =
            measured.cells.iter().map(|c| (c.target, c.record, c.samples.len(), c.samples[0].0[0])).collect();
        assert_eq!(cells, [(0, 1, 2, 1.0), (0, 2, 2, 2.0), (1, 1, 2, 1.0), (1, 2, 2, 2.0)]);
        assert_eq!(measured.commands, [vec!["run a", "fake"], vec!["run b", "fake"]]);
        assert!(measured.log.starts_with("== round 1/2, 1 B records, a\n$ run a\n$ fake\nrawcounters\n\n=="));
        let starts = ["a", "b", "b", "a", "b", "a", "a", "b"];
        let expected: Vec<String> =
            starts.iter().flat_map(|name| [format!("start {name}"), format!("stop {name}")]).collect();
        assert_eq!(*log.borrow(), expected);
    }

    #[test]
    fn a_failure_stops_the_target() {
        let log = Log::default();
        let targets: Vec<Box<dyn Target>> = vec![Box::new(Fake("a", Rc::clone(&log)))];
        run(&plan(1), &targets, &FakeEngine { fail: true }, &Interrupt::unset()).unwrap_err();
        assert_eq!(*log.borrow(), ["start a", "stop a"]);
    }

    #[test]
    fn a_signal_before_a_run_starts_nothing() {
        let log = Log::default();
        let targets: Vec<Box<dyn Target>> = vec![Box::new(Fake("a", Rc::clone(&log)))];
        let interrupt = Interrupt::unset();
        interrupt.set(15);
        let err = run(&plan(1), &targets, &FakeEngine { fail: false }, &interrupt).unwrap_err();
        assert_eq!(err.exit_code(), 143);
        assert!(log.borrow().is_empty());
    }
}
