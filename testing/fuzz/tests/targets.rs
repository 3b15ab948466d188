//! Runs the seeds and several hundred inputs of every target, and checks that failures are found
//! and can be repeated.
//!
//! Own program: its runs set the panic hook of the process.

use std::{
    process::{Command, Output},
    time::Duration,
};

use rfs_fuzz::{
    driver::{self, Extent, Failure},
    mutate::MAX_LEN,
    targets::{self, Target},
};

fn drive(target: &Target, inputs: u64) -> Result<driver::Done, Failure> {
    let extent = Extent { inputs, time: Duration::from_secs(60) };
    driver::drive(target, 1, 0, extent, |number| panic!("input {number} hangs"))
}

#[test]
fn every_target_passes_its_seeds_and_mutations() {
    for target in targets::ALL {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}", target.name);
        let longest = seeds.iter().map(Vec::len).max().unwrap_or(0);
        assert!(longest <= MAX_LEN, "{}: a seed of {longest} bytes would lose its end", target.name);
        let done = drive(target, 300).unwrap_or_else(|e| panic!("{}: {e}", target.name));
        assert_eq!(done.inputs, 300);
    }
}

#[test]
fn targets_are_found_by_their_names() {
    for target in targets::ALL {
        assert_eq!(targets::find(target.name).map(|found| found.about), Some(target.about));
    }
    assert!(targets::find("none").is_none());
}

#[test]
fn a_panic_is_reported_with_its_input_and_place() {
    fn picky(bytes: &[u8]) {
        assert!(bytes.len() != 3, "three bytes");
    }
    let target =
        Target { name: "picky", about: "", run: picky, seeds: || vec![vec![1, 2], vec![1, 2, 3, 4]] };
    let Err(Failure::Panic { number, message }) = drive(&target, 100_000) else { panic!("no panic") };
    assert!(number >= 2 && message.contains("three bytes") && message.contains("targets.rs"), "{message}");
    assert_eq!(drive(&target, number).unwrap().inputs, number);
}

#[test]
fn a_panic_in_a_thread_of_a_target_is_reported() {
    fn elsewhere(_: &[u8]) {
        let thread = std::thread::spawn(|| panic!("not here"));
        assert!(thread.join().is_err());
    }
    let target = Target { name: "elsewhere", about: "", run: elsewhere, seeds: Vec::new };
    let Err(Failure::Panic { number: 0, message }) = drive(&target, 10) else { panic!("no panic") };
    assert!(message.contains("not here"));
}

fn program(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rfs-fuzz")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn the_program_runs_targets_in_parallel_and_repeats_a_run() {
    let (output, text) = program(&["message", "preamble", "--inputs", "3000", "--seed", "7", "--jobs", "2"]);
    assert!(output.status.success(), "{text}");
    let inputs = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    assert!(text.starts_with("seed 7\n"));
    assert_eq!((inputs("message"), inputs("preamble")), (Some(3000), Some(3000)), "{text}");
    assert_eq!(inputs("all"), Some(6000), "{text}");
    let (output, text) = program(&["--one", "record", "--seed", "7", "--from", "100", "--inputs", "1"]);
    assert!(output.status.success() && text.contains(" 1 "), "{text}");
    let (output, _) = program(&["nothing"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_run_fails_if_it_has_fewer_inputs_than_required() {
    let run = |least| program(&["message", "preamble", "--inputs", "100", "--least", least]);
    let (output, text) = run("200");
    assert!(output.status.success(), "{text}");
    let (output, text) = run("201");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.ends_with("FAILED: 201 inputs are required\n"), "{text}");
}
