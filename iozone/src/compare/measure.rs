//! The rounds of a comparison: start all targets, measure them in turn, observe them idle, stop
//! them.
//!
//! A peer that does not start, or fails, is skipped from then on, and the reason is reported. Any
//! other failure ends the run. All targets are stopped before [`run`] returns.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    column::{Column, Job, Reading},
    lineup::{Entrant, Side},
    meter::Meter,
    plan::{Pace, Turn, turns},
};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    pace::show_seconds,
    target::Running,
    usage::{Idle, Programs},
};

/// The readings of one column of one target, in the order of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the target.
    pub target: usize,
    /// The column.
    pub column: Column,
    /// One per round.
    pub rounds: Vec<Reading>,
}

/// All measurements.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Cells in the order of their first measurement.
    pub cells: Vec<Cell>,
    /// Idle usage per target and round.
    pub idle: Vec<Vec<Idle>>,
    /// Command lines per target, from its last start.
    pub commands: Vec<Vec<String>>,
    /// Per target: the reason why it was skipped, if it was.
    pub left_out: Vec<Option<String>>,
    /// Number of complete rounds.
    pub rounds: u32,
    /// Output of the programs.
    pub log: String,
}

/// Rounds and time limits.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Rounds.
    pub rounds: u32,
    /// Time after which no round begins.
    pub limit: Duration,
    /// Duration of the observation of idle programs.
    pub idle: Duration,
}

/// Runs all rounds.
pub fn run(entrants: &[Entrant], meter: &dyn Meter, times: Times, interrupt: &Interrupt) -> Result<Measured> {
    let began = Instant::now();
    let mut all = Rounds {
        entrants,
        meter,
        interrupt,
        pace: Pace::default(),
        progress: measure::progress::Progress::new(0),
        measured: Measured {
            idle: vec![Vec::new(); entrants.len()],
            commands: vec![Vec::new(); entrants.len()],
            left_out: entrants.iter().map(|entrant| entrant.target.missing()).collect(),
            ..Measured::default()
        },
    };
    for round in 0..times.rounds {
        if round > 0 && began.elapsed() > times.limit {
            break;
        }
        all.round(round, times)?;
    }
    Ok(all.measured)
}

type Started = Vec<Option<Box<dyn Running>>>;

struct Rounds<'a> {
    entrants: &'a [Entrant],
    meter: &'a dyn Meter,
    interrupt: &'a Interrupt,
    pace: Pace,
    progress: measure::progress::Progress,
    measured: Measured,
}

impl Rounds<'_> {
    fn round(&mut self, round: u32, times: Times) -> Result<()> {
        self.progress.begin(format!("round {}/{}: starting", round + 1, times.rounds));
        let mut started = self.start()?;
        let jobs: Vec<Vec<Job>> = self.entrants.iter().map(|entrant| entrant.jobs.clone()).collect();
        let turns = turns(round, &jobs);
        for (n, turn) in turns.iter().enumerate() {
            if started[turn.target].is_none() {
                continue;
            }
            let later = (round + 1..times.rounds).flat_map(|_| turns.iter());
            let left = self
                .pace
                .left(turns[n..].iter().chain(later).copied().filter(|turn| started[turn.target].is_some()));
            let left = left.map_or_else(String::new, |left| format!(" ({} left)", show_seconds(left)));
            let name = &self.entrants[turn.target].name;
            let label = format!("round {}/{}, {}, {name}", round + 1, times.rounds, turn.job.describe());
            self.progress.begin(format!("{label}{left}"));
            self.measured.log.push_str(&format!("== {label}\n"));
            self.take(*turn, &mut started)?;
        }
        self.watch_idle(&started, times.idle);
        for (index, running) in started.into_iter().enumerate() {
            let Some(running) = running else { continue };
            let stopped = running.stop();
            match stopped {
                Ok(said) => self.measured.log.push_str(&said),
                Err(error) => self.leave_out(index, error)?,
            }
        }
        self.measured.rounds = round + 1;
        Ok(())
    }

    fn start(&mut self) -> Result<Started> {
        let mut started: Started = Vec::new();
        for index in 0..self.entrants.len() {
            self.interrupt.check()?;
            started.push(None);
            if self.measured.left_out[index].is_some() {
                continue;
            }
            match self.entrants[index].target.start(self.interrupt) {
                Ok(running) => {
                    self.measured.commands[index] = running.commands();
                    started[index] = Some(running);
                }
                Err(error) => self.leave_out(index, error)?,
            }
        }
        Ok(started)
    }

    fn take(&mut self, turn: Turn, started: &mut Started) -> Result<()> {
        self.interrupt.check()?;
        let Some(running) = started[turn.target].as_deref_mut() else { return Ok(()) };
        let began = Instant::now();
        match self.meter.measure(turn.job, running, self.interrupt) {
            Ok((readings, said)) => {
                self.pace.took(turn, began.elapsed().as_secs_f64());
                self.measured.log.push_str(&said);
                for (column, reading) in turn.job.columns().into_iter().zip(readings) {
                    self.measured.add(turn.target, column, reading);
                }
                Ok(())
            }
            Err(error) => {
                let error = running.explain(error);
                // Drop stops the target in any state.
                started[turn.target] = None;
                self.leave_out(turn.target, error)
            }
        }
    }

    /// Observes all idle targets at the same time.
    fn watch_idle(&mut self, started: &Started, time: Duration) {
        let programs: Vec<Option<Programs>> = started
            .iter()
            .map(|running| running.as_ref().map(|running| Programs::of(&running.processes())))
            .collect();
        let cpu =
            || programs.iter().map(|programs| programs.as_ref().map(Programs::cpu_s)).collect::<Vec<_>>();
        let (before, began) = (cpu(), Instant::now());
        thread::sleep(time);
        let seconds = began.elapsed().as_secs_f64();
        for (index, after) in cpu().into_iter().enumerate() {
            if let (Some(programs), Some(before), Some(after)) = (&programs[index], before[index], after)
                && programs.exist()
            {
                let (client, servers) = programs.memory();
                let cpu_percent = 100.0 * (after - before).max(0.0) / seconds;
                self.measured.idle[index].push(Idle { cpu_percent, client, servers });
            }
        }
    }

    /// Skips a peer that failed. Returns the error if the target is not a peer, or a signal caused
    /// it.
    fn leave_out(&mut self, index: usize, error: Error) -> Result<()> {
        let optional = self.entrants[index].side == Side::Peer;
        if !optional || matches!(error, Error::Interrupted(_) | Error::LeftBehind(_)) {
            return Err(error);
        }
        eprintln!("{} is left out: {error}", self.entrants[index].name);
        self.measured.left_out[index] = Some(error.to_string());
        Ok(())
    }
}

impl Measured {
    fn add(&mut self, target: usize, column: Column, reading: Reading) {
        match self.cells.iter_mut().find(|cell| cell.target == target && cell.column == column) {
            Some(cell) => cell.rounds.push(reading),
            None => self.cells.push(Cell { target, column, rounds: vec![reading] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, path::Path, rc::Rc};

    use super::*;
    use crate::target::Target;

    type Log = Rc<RefCell<Vec<String>>>;

    /// A target that writes its events to a log.
    struct Fake {
        name: &'static str,
        log: Log,
        starts: bool,
    }

    impl Target for Fake {
        fn name(&self) -> &str {
            self.name
        }
        fn title(&self) -> &str {
            self.name
        }
        fn is_ceiling(&self) -> bool {
            false
        }
        fn missing(&self) -> Option<String> {
            (self.name == "missing").then(|| "not installed".into())
        }
        fn start(&self, _: &Interrupt) -> Result<Box<dyn Running>> {
            self.log.borrow_mut().push(format!("start {}", self.name));
            match self.starts {
                true => Ok(Box::new(FakeRunning(self.name, Rc::clone(&self.log)))),
                false => Err(failed()),
            }
        }
    }

    struct FakeRunning(&'static str, Log);

    impl Running for FakeRunning {
        fn mountpoint(&self) -> &Path {
            Path::new(self.0)
        }
        fn commands(&self) -> Vec<String> {
            vec![format!("run {}", self.0)]
        }
        fn explain(&mut self, error: Error) -> Error {
            error
        }
        fn stop(self: Box<Self>) -> Result<String> {
            Ok(String::new())
        }
    }

    impl Drop for FakeRunning {
        fn drop(&mut self) {
            self.1.borrow_mut().push(format!("stop {}", self.0));
        }
    }

    /// A meter that fails on the target with this name.
    struct FakeMeter(Log, &'static str);

    impl Meter for FakeMeter {
        fn measure(&self, job: Job, running: &dyn Running, _: &Interrupt) -> Result<(Vec<Reading>, String)> {
            let name = running.mountpoint().display().to_string();
            self.0.borrow_mut().push(name.clone());
            if name == self.1 {
                return Err(failed());
            }
            let reading = |n: usize| Reading { mib_per_s: n as f64, ..Reading::default() };
            Ok(((0..job.columns().len()).map(reading).collect(), format!("said {name}\n")))
        }
    }

    fn failed() -> Error {
        Error::Child { program: "fake".into(), what: "failed".into() }
    }

    const JOB: Job = Job::Fio(4096);

    fn entrants(log: &Log, names: &[(&'static str, Side)]) -> Vec<Entrant> {
        let entrant = |(name, side): &(&'static str, Side)| Entrant {
            name: (*name).into(),
            title: (*name).into(),
            side: *side,
            jobs: vec![JOB],
            target: Box::new(Fake { name, log: Rc::clone(log), starts: *name != "broken" }),
        };
        names.iter().map(entrant).collect()
    }

    fn times(rounds: u32) -> Times {
        Times { rounds, limit: Duration::from_secs(3600), idle: Duration::ZERO }
    }

    fn expect(log: &Log, words: &str) {
        assert_eq!(log.borrow().join(", "), words);
    }

    #[test]
    fn all_run_while_they_take_turns() {
        let log = Log::default();
        let entrants = entrants(&log, &[("a", Side::Ours), ("b", Side::Ceiling)]);
        let meter = FakeMeter(Rc::clone(&log), "");
        let measured = run(&entrants, &meter, times(2), &Interrupt::unset()).unwrap();
        let round = |turns: &str| format!("start a, start b, {turns}, stop a, stop b");
        expect(&log, &format!("{}, {}", round("a, b"), round("b, a")));
        assert_eq!((measured.rounds, measured.cells.len()), (2, 8));
        assert!(measured.cells.iter().all(|cell| cell.rounds.len() == 2));
        let order: Vec<f64> = measured.cells[..4].iter().map(|cell| cell.rounds[0].mib_per_s).collect();
        assert_eq!(order, [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(measured.commands, [["run a"], ["run b"]]);
        assert!(measured.log.contains("== round 2/2, fio, 4 KiB blocks, a\nsaid a\n"), "{}", measured.log);
    }

    #[test]
    fn a_peer_that_fails_is_left_out_and_the_rest_goes_on() {
        let log = Log::default();
        let peers = [("a", Side::Ours), ("missing", Side::Peer), ("broken", Side::Peer), ("bad", Side::Peer)];
        let entrants = entrants(&log, &peers);
        let meter = FakeMeter(Rc::clone(&log), "bad");
        let measured = run(&entrants, &meter, times(2), &Interrupt::unset()).unwrap();
        // Each broken peer fails once.
        expect(&log, "start a, start broken, start bad, a, bad, stop bad, stop a, start a, a, stop a");
        assert_eq!(measured.left_out[0], None);
        let reasons: Vec<_> = measured.left_out[1..].iter().flatten().map(String::as_str).collect();
        assert_eq!(reasons, ["not installed", "fake: failed", "fake: failed"]);
        assert!(measured.cells.iter().all(|cell| cell.target == 0));
    }

    #[test]
    fn only_a_peer_may_fail() {
        let log = Log::default();
        let entrants = entrants(&log, &[("a", Side::Ours), ("b", Side::Ceiling)]);
        let meter = FakeMeter(Rc::clone(&log), "b");
        run(&entrants, &meter, times(2), &Interrupt::unset()).unwrap_err();
        expect(&log, "start a, start b, a, b, stop b, stop a");
    }

    #[test]
    fn no_round_begins_when_the_time_is_over() {
        let log = Log::default();
        let entrants = entrants(&log, &[("a", Side::Ours)]);
        let meter = FakeMeter(Rc::clone(&log), "");
        let times = Times { limit: Duration::ZERO, ..times(9) };
        let measured = run(&entrants, &meter, times, &Interrupt::unset()).unwrap();
        assert_eq!(measured.rounds, 1);
    }

    #[test]
    fn a_signal_ends_the_run() {
        let log = Log::default();
        let entrants = entrants(&log, &[("a", Side::Peer)]);
        let interrupt = Interrupt::unset();
        interrupt.set(15);
        let error = run(&entrants, &FakeMeter(Rc::clone(&log), ""), times(1), &interrupt).unwrap_err();
        assert_eq!(error.exit_code(), 143);
        expect(&log, "");
    }
}
