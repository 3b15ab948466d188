//! Random operations on several mounts at the same time, compared with a model.
//!
//! A program has rounds. In a round, workers on all mounts perform a few operations at the same
//! time, several times in a row. Then the program inspects all mounts. The answers, and all that
//! the mounts show, have to be those of a file system in memory that performs the operations in
//! some order. A failed run is made shorter as long as it still fails.

mod field;
mod model;
mod operation;
mod program;
mod reduction;
mod serialization;
mod view;
mod worker;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;

use crate::{
    error::Result,
    report::Report,
    testbed::{Plan, Testbed},
};
use field::{Caches, Failure, Field};
use program::{Kind, Program, Shape, draw};

/// The longest sequence of operations that is shown.
const MAX_SHOWN: usize = 60;

/// Options of the trial.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Seconds in which new runs begin
    #[arg(long, value_name = "SECS", default_value_t = 30)]
    seconds: u64,
    /// Seed of the first run; the next run has the next number [default: a new one]
    #[arg(long)]
    seed: Option<u64>,
    /// Number of runs at most [default: as many as the time allows]
    #[arg(long)]
    runs: Option<u64>,
    /// Rounds of a run
    #[arg(long, default_value_t = 60)]
    rounds: usize,
    /// Number of mounts
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    mounts: u32,
    /// Workers of each mount
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3))]
    workers: u32,
    /// Kernel caching of the mounts; mixed: auto and none in turn
    #[arg(long, value_parser = ["auto", "none", "mixed"], default_value = "auto")]
    cache: String,
    /// Kinds of operations
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "data,appends,direct,names,attributes,locks"
    )]
    operations: Vec<Kind>,
    /// Kill a client in one of N rounds; 0: never
    #[arg(long, default_value_t = 0)]
    kill_every: u64,
    /// Reads of open files see each write that returned before, also with --cache auto
    #[arg(long)]
    coherent: bool,
    /// Run in this directory instead, to check that the model accepts a local file system
    #[arg(long, value_name = "DIR", conflicts_with = "kill_every")]
    local: Option<PathBuf>,
    /// Seconds to search for a shorter sequence that also fails
    #[arg(long, value_name = "SECS", default_value_t = 30)]
    shrink: u64,
}

impl Options {
    fn shape(&self) -> Shape {
        let (mounts, workers) = (self.mounts as usize, (self.mounts * self.workers) as usize);
        let (kinds, rounds, kill_every) = (self.operations.clone(), self.rounds, self.kill_every);
        Shape { workers, kinds, rounds, kill_every, mounts }
    }

    fn caches(&self) -> Caches {
        let of = |mount: u32| match self.cache.as_str() {
            "mixed" => ["auto", "none"][mount as usize % 2].to_owned(),
            same => same.to_owned(),
        };
        Caches { of: (0..self.mounts).map(of).collect(), coherent: self.coherent }
    }
}

/// Totals of all runs.
#[derive(Debug, Default)]
struct Total {
    runs: u64,
    rounds: usize,
    operations: usize,
    kills: usize,
    undecided: usize,
    late: usize,
    earlier: usize,
    failed: Option<String>,
}

/// Runs random programs until the time is over or a program fails.
pub(crate) fn run(plan: &Plan, options: &Options) -> Result<Report> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    let (shape, caches) = (options.shape(), options.caches());
    let about = format!("{} mounts over {}, cache {}", options.mounts, plan.provider, options.cache);
    println!("{about}: first seed {seed}");
    let mut field = match &options.local {
        Some(directory) => Field::local(directory, caches, shape.workers),
        None => Field::start(Testbed::start(plan)?, caches, shape.workers)?,
    };
    let (began, mut total) = (Instant::now(), Total::default());
    while began.elapsed() < Duration::from_secs(options.seconds)
        && options.runs.is_none_or(|runs| total.runs < runs)
        && total.failed.is_none()
    {
        plan.interrupt.check()?;
        let (seed, program) = (seed + total.runs, draw(seed + total.runs, &shape));
        let run = field.run(&program)?;
        total.runs += 1;
        total.rounds += run.rounds;
        total.operations += run.operations;
        total.kills += run.kills;
        total.undecided += run.undecided;
        total.late += run.late;
        total.earlier += run.earlier;
        if let Some(failure) = run.failure {
            println!("seed {seed}, round {}: {}", failure.round, failure.reason);
            show(&failure);
            shorten(&mut field, options, &program, &failure)?;
            total.failed = Some(format!("seed {seed}, round {}: {}", failure.round, failure.reason));
        }
    }
    match total.failed {
        None => field.stop()?,
        Some(_) => drop(field),
    }
    Ok(report(about, &total))
}

fn report(about: String, total: &Total) -> Report {
    let mut report = Report::new(about);
    report.note("random runs", total.runs);
    report.note("rounds", total.rounds);
    report.note("operations", total.operations);
    report.note("clients killed", total.kills);
    // As many as that are no coincidence.
    report.check(
        "rounds with a name that was dropped late",
        total.late,
        "at most 5 %",
        total.late * 20 <= total.rounds,
    );
    report.check(
        "rounds with a call by an earlier name",
        total.earlier,
        "at most 5 %",
        total.earlier * 20 <= total.rounds,
    );
    report.check("runs that could not be decided", total.undecided, "none", total.undecided == 0);
    let failed = total.failed.clone().unwrap_or_else(|| "0".into());
    report.check("runs that failed", failed, "none", total.failed.is_none());
    report
}

fn shorten(field: &mut Field<'_>, options: &Options, program: &Program, failure: &Failure) -> Result<()> {
    let mut last = None;
    let (begin, limit) = (Instant::now(), Duration::from_secs(options.shrink));
    let mut fails = |candidate: &Program| -> Result<bool> {
        // Concurrent operations do not run in the same order every time.
        for _ in 0..8 {
            if begin.elapsed() >= limit {
                return Ok(false);
            }
            if let Some(failure) = field.run(candidate)?.failure {
                last = Some(failure);
                return Ok(true);
            }
        }
        Ok(false)
    };
    let shorter = reduction::shrink(program, failure.round, &mut fails)?;
    let Some(failure) = last else {
        println!("it does not fail again within {} s", options.shrink);
        return Ok(());
    };
    let operations = shorter.operations();
    println!("{operations} operations that fail, too: {}", failure.reason);
    if operations <= MAX_SHOWN {
        print!("{shorter}");
    }
    show(&failure);
    Ok(())
}

fn show(failure: &Failure) {
    println!("{}", failure.start);
    let begin = failure.calls.iter().map(|call| call.from).min().unwrap_or(0);
    for call in &failure.calls {
        let micros = |time: u64| time.saturating_sub(begin) / 1000;
        println!(
            "  {:>6}..{:<6} us  mount {} worker {}  {}: {:?} = {:?}",
            micros(call.from),
            if call.to == u64::MAX { "?".into() } else { micros(call.to).to_string() },
            call.mount,
            call.worker,
            call.id,
            call.op,
            call.outcome
        );
    }
}
