//! The program `rfs-fuzz`: see `rfs-fuzz --help`.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use rfs_fuzz::{
    Target,
    driver::{self, Extent, Failure},
    mutate::Mutator,
    supervisor, targets,
};

/// Runs fuzz targets, each in its own process, and reports panics, hangs, killed processes and
/// leaks of memory, descriptors and threads.
#[derive(Debug, Parser)]
#[command(name = "rfs-fuzz", version)]
struct Args {
    /// Targets to run; all if none is named
    targets: Vec<String>,

    /// List the targets
    #[arg(long)]
    list: bool,

    /// Time limit of each target
    #[arg(long, value_name = "SECS", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,

    /// Input limit of each target
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    inputs: u64,

    /// Fail if all targets together ran fewer inputs than N
    #[arg(long, value_name = "N", default_value_t = 0)]
    least: u64,

    /// Seed of the run, to repeat it [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Number of targets to run at the same time [default: number of cores]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,

    /// Run only this target, in this process
    #[arg(long, value_name = "TARGET", conflicts_with = "targets")]
    one: Option<String>,

    /// With --one: begin with input N of the run
    #[arg(long, value_name = "N", default_value_t = 0, requires = "one")]
    from: u64,

    /// With --one: print the number of each input before it runs, to find an input that kills the
    /// process
    #[arg(long, requires = "one")]
    trace: bool,

    /// With --one: use this file as the only input
    #[arg(long, value_name = "FILE", requires = "one")]
    file: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("invalid number of seconds {text:?}"))?;
    // One year. Larger values could overflow the arithmetic of deadlines.
    if (0.0..=31_536_000.0).contains(&seconds) { Ok(seconds) } else { Err(format!("{text} seconds")) }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("rfs-fuzz: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool, String> {
    if args.list {
        targets::ALL.iter().for_each(|target| println!("{:<12} {}", target.name, target.about));
        return Ok(true);
    }
    let extent = Extent { inputs: args.inputs, time: Duration::from_secs_f64(args.seconds) };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 48));
    let named = |name: &String| targets::find(name).ok_or(format!("no target {name:?}; --list names them"));
    if let Some(name) = &args.one {
        return one(args, named(name)?, seed, extent);
    }
    let all: Vec<&Target> = match args.targets.is_empty() {
        true => targets::ALL.iter().collect(),
        false => args.targets.iter().map(named).collect::<Result<_, _>>()?,
    };
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    println!("seed {seed}");
    println!("{:<12} {:>12} {:>8} {:>10} {:>9}", "target", "inputs", "seconds", "inputs/s", "more KiB");
    let mut inputs = 0_u64;
    let done = |report: &supervisor::Report| {
        inputs = inputs.saturating_add(report.inputs());
        match &report.outcome {
            Ok(row) => println!("{row}"),
            Err(why) => println!("{:<12} FAILED: {why}", report.target.name),
        }
    };
    let all_good = supervisor::supervise(&all, seed, extent, jobs, done).map_err(|e| e.to_string())?;
    let enough = inputs >= args.least;
    println!("{:<12} {inputs:>12}", "all");
    if !enough {
        println!("FAILED: {} inputs are required", args.least);
    }
    Ok(all_good && enough)
}

fn one(args: &Args, target: &'static Target, seed: u64, extent: Extent) -> Result<bool, String> {
    if let Some(file) = &args.file {
        let input = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
        return Ok(driver::attempt(target, &input).inspect_err(|why| println!("{why}")).is_ok());
    }
    if args.trace {
        return trace(target, seed, args.from, extent);
    }
    let name = target.name;
    let hung = move |number| {
        println!("input {number} hangs: rfs-fuzz --one {name} --seed {seed} --from {number} --inputs 1");
        std::process::exit(1);
    };
    match driver::drive(target, seed, args.from, extent, hung) {
        Ok(done) => {
            let seconds = done.took.as_secs_f64();
            let rate = done.inputs as f64 / seconds.max(1e-9);
            println!("{name:<12} {:>12} {seconds:>8.1} {rate:>10.0} {:>9}", done.inputs, done.growth >> 10);
            Ok(true)
        }
        Err(failure) => {
            println!("{failure}");
            if let Failure::Panic { number, .. } = failure {
                println!("repeat it with: rfs-fuzz --one {name} --seed {seed} --from {number} --inputs 1");
                show(target, seed, number);
            } else {
                println!("repeat it with: rfs-fuzz --one {name} --seed {seed}");
            }
            Ok(false)
        }
    }
}

fn show(target: &Target, seed: u64, number: u64) {
    let mut input = Vec::new();
    Mutator::new((target.seeds)(), seed).input(number, &mut input);
    let digits: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("input of {} bytes: {digits}", input.len());
}

fn trace(target: &Target, seed: u64, from: u64, extent: Extent) -> Result<bool, String> {
    let mutator = Mutator::new((target.seeds)(), seed);
    let mut input = Vec::new();
    for number in from..from.saturating_add(extent.inputs) {
        eprintln!("{number}");
        mutator.input(number, &mut input);
        driver::attempt(target, &input)?;
    }
    Ok(true)
}
