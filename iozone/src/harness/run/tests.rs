//! Tests of the rounds on fake targets.

use std::{cell::RefCell, path::Path, rc::Rc, thread};

use super::*;
use crate::{
    harness::{Entrant, Outcome, Reading},
    load,
    process::Invocation,
    target::{Target, WorkDir},
};

type Log = Rc<RefCell<Vec<String>>>;

/// A target that writes its events to a log.
struct Fake {
    name: &'static str,
    log: Log,
}

impl Target for Fake {
    fn name(&self) -> &str {
        self.name
    }
    fn title(&self) -> &str {
        self.name
    }
    fn side(&self) -> Side {
        if self.name == "null" { Side::Ceiling } else { Side::Ours }
    }
    fn missing(&self) -> Option<String> {
        (self.name == "missing").then(|| "not installed".into())
    }
    fn start(&self, _: &Interrupt) -> Result<Box<dyn Running>> {
        self.log.borrow_mut().push(format!("start {}", self.name));
        match self.name {
            "broken" => Err(failed()),
            name => {
                let work = WorkDir::new(&std::env::temp_dir())?;
                Ok(Box::new(FakeRunning { name, log: Rc::clone(&self.log), work }))
            }
        }
    }
}

struct FakeRunning {
    name: &'static str,
    log: Log,
    work: WorkDir,
}

impl Running for FakeRunning {
    fn mountpoint(&self) -> &Path {
        self.work.path()
    }
    fn commands(&self) -> Vec<String> {
        vec![format!("run {}", self.name)]
    }
    fn explain(&mut self, error: Error) -> Error {
        Error::Usage(format!("{}: {error}", self.name))
    }
    fn stop(self: Box<Self>) -> Result<String> {
        Ok("counters\n".into())
    }
}

impl Drop for FakeRunning {
    fn drop(&mut self) {
        self.log.borrow_mut().push(format!("stop {}", self.name));
    }
}

impl Reading for f64 {
    fn median(rounds: &[Self]) -> Self {
        measure::statistics::median(rounds).unwrap_or(0.0)
    }
    fn rate(&self) -> f64 {
        *self
    }
}

/// A meter with two columns per test, whose rate is the test. It fails on the target with this
/// name.
struct FakeMeter(Log, &'static str);

impl Meter for FakeMeter {
    type Test = u64;
    type Column = (u64, usize);
    type Reading = f64;

    fn describe(&self, test: u64) -> String {
        format!("{test} B records")
    }
    fn measure(&self, test: u64, site: &mut Site<'_>) -> Result<Outcome<Self::Column, f64>> {
        self.0.borrow_mut().push(site.name.to_owned());
        if site.name == self.1 {
            return Err(failed());
        }
        let readings = vec![((test, 0), test as f64), ((test, 1), test as f64)];
        Ok(Outcome { readings, command: Some("fake".into()), said: format!("said {}\n", site.name) })
    }
}

fn failed() -> Error {
    Error::Child { program: "fake".into(), what: "failed".into() }
}

fn plan(log: &Log, names: &[(&'static str, Side)], tests: &[u64], start: Start) -> Plan<u64> {
    let entrant = |(name, side): &(&'static str, Side)| {
        let target = Box::new(Fake { name, log: Rc::clone(log) });
        Entrant { side: *side, ..Entrant::new(target, tests.to_vec()) }
    };
    Plan {
        entrants: names.iter().map(entrant).collect(),
        tests: tests.to_vec(),
        rounds: 2,
        limit: None,
        start,
    }
}

const BESIDE: Start = Start::SideBySide(Duration::ZERO);
const TWO: [(&str, Side); 2] = [("a", Side::Ours), ("b", Side::Ceiling)];

fn take(plan: &Plan<u64>, log: &Log, fails: &'static str) -> Result<Measured<(u64, usize), f64>> {
    run(plan, &FakeMeter(Rc::clone(log), fails), &Interrupt::unset())
}

fn expect(log: &Log, words: &str) {
    assert_eq!(log.borrow().join(", "), words);
}

#[test]
fn every_test_starts_its_target_in_alternation() {
    let log = Log::default();
    let measured = take(&plan(&log, &TWO, &[1, 2], Start::EachTest), &log, "").unwrap();
    let starts = ["a", "b", "b", "a", "b", "a", "a", "b"];
    let turns: Vec<String> = starts.iter().map(|name| format!("start {name}, {name}, stop {name}")).collect();
    expect(&log, &turns.join(", "));
    assert_eq!(measured.series.len(), 2 * 2 * 2);
    assert!(measured.series.iter().all(|series| series.rounds == [series.column.0 as f64; 2]));
    assert_eq!(measured.rounds, 2);
    let told = measured.targets.iter().map(|info| (info.name.as_str(), info.side)).collect::<Vec<_>>();
    assert_eq!(told, TWO);
    let commands: Vec<_> = measured.targets.iter().map(|info| info.commands.clone()).collect();
    assert_eq!(commands, [["run a", "fake"], ["run b", "fake"]]);
    let begins = "== round 1/2, 1 B records, a\n$ run a\n$ fake\nsaid a\ncounters\n\n==";
    assert!(measured.log.starts_with(begins), "{}", measured.log);
}

#[test]
fn all_run_while_they_take_turns() {
    let log = Log::default();
    let measured = take(&plan(&log, &TWO, &[7], BESIDE), &log, "").unwrap();
    let round = |turns: &str| format!("start a, start b, {turns}, stop a, stop b");
    expect(&log, &format!("{}, {}", round("a, b"), round("b, a")));
    assert_eq!((measured.rounds, measured.series.len()), (2, 4));
    assert!(measured.series.iter().all(|series| series.rounds.len() == 2));
    let commands: Vec<_> = measured.targets.iter().map(|info| info.commands.clone()).collect();
    assert_eq!(commands, [["run a"], ["run b"]]);
    let says = "== round 2/2, 7 B records, a\n$ fake\nsaid a\n";
    assert!(measured.log.contains(says), "{}", measured.log);
}

#[test]
fn a_peer_that_fails_is_left_out_and_the_rest_goes_on() {
    let log = Log::default();
    let peers = [("a", Side::Ours), ("missing", Side::Peer), ("broken", Side::Peer), ("bad", Side::Peer)];
    let measured = take(&plan(&log, &peers, &[1], BESIDE), &log, "bad").unwrap();
    // Each broken peer fails once.
    expect(&log, "start a, start broken, start bad, a, bad, stop bad, stop a, start a, a, stop a");
    let reasons: Vec<_> = measured.targets.iter().map(|info| info.left_out.as_deref()).collect();
    assert_eq!(reasons, [None, Some("not installed"), Some("fake: failed"), Some("bad: fake: failed")]);
    assert!(measured.series.iter().all(|series| series.target == "a"));
}

#[test]
fn only_a_peer_that_runs_beside_others_may_fail() {
    let log = Log::default();
    let error = take(&plan(&log, &TWO, &[1], BESIDE), &log, "b").unwrap_err();
    expect(&log, "start a, start b, a, b, stop b, stop a");
    assert_eq!(error.to_string(), "b: fake: failed");
    log.borrow_mut().clear();
    take(&plan(&log, &[("a", Side::Peer)], &[1], Start::EachTest), &log, "a").unwrap_err();
    expect(&log, "start a, a, stop a");
}

#[test]
fn no_round_begins_when_the_time_is_over() {
    let log = Log::default();
    let plan = Plan { rounds: 9, limit: Some(Duration::ZERO), ..plan(&log, &TWO, &[1], BESIDE) };
    assert_eq!(take(&plan, &log, "").unwrap().rounds, 1);
}

#[test]
fn entrants_with_one_name_are_one_target() {
    let log = Log::default();
    let mut plan = plan(&log, &[("a", Side::Ours), ("a", Side::Ours)], &[1, 2], Start::EachTest);
    plan.entrants[0].tests = vec![1];
    plan.entrants[1].tests = vec![2];
    let measured = take(&plan, &log, "").unwrap();
    assert_eq!((measured.targets.len(), measured.series.len()), (1, 4));
}

#[test]
fn a_signal_before_a_run_starts_nothing() {
    for start in [Start::EachTest, BESIDE] {
        let log = Log::default();
        let interrupt = Interrupt::unset();
        interrupt.set(15);
        let plan = plan(&log, &[("a", Side::Peer)], &[1], start);
        let error = run(&plan, &FakeMeter(Rc::clone(&log), ""), &interrupt).unwrap_err();
        assert_eq!(error.exit_code(), 143);
        expect(&log, "");
    }
}

/// A meter whose measuring program ignores SIGTERM and sleeps.
struct Sleeper;

impl Meter for Sleeper {
    type Test = u64;
    type Column = ();
    type Reading = f64;

    fn describe(&self, _: u64) -> String {
        "sleep".into()
    }
    fn measure(&self, _: u64, site: &mut Site<'_>) -> Result<Outcome<(), f64>> {
        let script = "trap '' TERM INT; sleep 1000; sleep 1000";
        let command = Invocation::new("sh").args(["-c", script]);
        let said = load::run(&command, Duration::from_secs(600), site.interrupt, |_| ())?;
        Ok(Outcome { readings: Vec::new(), command: None, said })
    }
}

#[test]
fn ctrl_c_kills_the_measuring_program_and_stops_all_targets_at_once() {
    let log = Log::default();
    let plan = plan(&log, &[("a", Side::Ours), ("b", Side::Peer)], &[1], BESIDE);
    let interrupt = Interrupt::unset();
    let began = Instant::now();
    let error = thread::scope(|scope| {
        let set = interrupt.clone();
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            set.set(2);
        });
        run(&plan, &Sleeper, &interrupt).unwrap_err()
    });
    assert_eq!(error.exit_code(), 130);
    // Less than the time that a program usually has between SIGTERM and SIGKILL.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    expect(&log, "start a, start b, stop a, stop b");
}
