//! Runs the tests of the tree against each seeded fault, and prints the test that found it.
//! `ci/trials/seeded-faults` runs this program.
//!
//! Usage: `seeded-faults [--list] [--tests-only] [FAULT...]`, in the root of the tree, after a
//! build with the faults. Exits with status 1 if the tests catch fewer than [`REQUIRED`] percent of
//! the faults.

mod stage;
mod verdict;

use std::{process::ExitCode, time::Instant};

use seeded_faults::Fault;
use stage::{Outcome, Stage};
use verdict::Verdict;

/// Percentage of the faults that the tests must catch.
const REQUIRED: usize = 90;

fn main() -> ExitCode {
    let mut faults = Vec::new();
    let mut tests_only = false;
    for word in std::env::args().skip(1) {
        match (word.as_str(), Fault::named(&word)) {
            ("--list", _) => {
                Fault::ALL.iter().for_each(|fault| println!("{:26} {}", fault.name(), fault.what()));
                return ExitCode::SUCCESS;
            }
            ("--tests-only", _) => tests_only = true,
            (_, Some(fault)) => faults.push(fault),
            (_, None) => {
                eprintln!("no fault is called {word:?}: --list names them");
                return ExitCode::FAILURE;
            }
        }
    }
    if faults.is_empty() {
        faults = Fault::ALL.to_vec();
    }
    let mut verdicts = Vec::with_capacity(faults.len());
    for fault in faults {
        let verdict = try_fault(fault, tests_only);
        println!("{verdict}");
        verdicts.push(verdict);
    }
    let caught = verdicts.iter().filter(|verdict| verdict.is_caught()).count();
    println!("{caught} of {} caught", verdicts.len());
    match caught * 100 >= REQUIRED * verdicts.len() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Number of times that a failed test is repeated alone. A fault need not show every time.
const REPEATS: usize = 3;
/// Number of chance failures that are skipped in a stage.
const MAX_CHANCE_FAILURES: usize = 3;

/// Runs the stages until one of them finds the fault. A failed test must fail again alone, and must
/// pass without the fault. Otherwise it failed by chance or for another reason.
fn try_fault(fault: Fault, tests_only: bool) -> Verdict {
    let began = Instant::now();
    for mut stage in Stage::all(fault.home()).into_iter().filter(|stage| stage.is_tests() || !tests_only) {
        for _ in 0..=MAX_CHANCE_FAILURES {
            let by = match stage.run(Some(fault)) {
                Outcome::Passed => break,
                Outcome::Failed(by) => by,
                Outcome::Broken(why) => return Verdict::unknown(fault, why),
            };
            let seconds = began.elapsed().as_secs();
            let alone = stage.only(&by);
            if (0..REPEATS).any(|_| alone.run(Some(fault)) != Outcome::Passed) {
                return match alone.run(None) {
                    Outcome::Passed => Verdict::caught(fault, by, seconds),
                    _ => Verdict::unknown(fault, format!("{by} fails without it, too")),
                };
            }
            eprintln!("{}: {by} failed once and not again", fault.name());
            stage = stage.without(&by);
        }
    }
    Verdict::missed(fault, began.elapsed().as_secs())
}
