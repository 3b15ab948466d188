//! The order of the runs. In every round each provider takes its turn, alternately forwards and
//! backwards, with the page cache and without it.

use std::{
    env,
    path::Path,
    time::{Duration, Instant},
};

use super::cli::{Options, Provider};
use crate::{
    Error, Result,
    cli::Switches,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
    runner::order,
    scaling::latency::{Done, read},
    size::MIB,
    target::{self, Rfs, Running, Setup, Target},
};

/// Number of times that the file is written: the first time, the second time, and again after the
/// work that the first passes deferred.
pub const PASSES: usize = 5;

/// A row of the table.
#[derive(Debug)]
pub struct Entrant {
    /// Name in tables.
    pub name: String,
    /// True for a target without requirements, shown for comparison.
    pub is_ceiling: bool,
    target: Rfs,
}

/// The measurements of one target in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Seconds until the server is ready and mounted.
    pub start: f64,
    /// Throughput of each pass in MiB/s.
    pub passes: [f64; PASSES],
}

/// Returns the selected targets.
pub fn entrants(options: &Options) -> Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    for provider in &options.providers {
        // A given option selects its kind of caching only.
        let caches = if options.switches.cache.is_some() { &[None][..] } else { &[None, Some("none")][..] };
        for &cache in caches {
            let switches = options.switches.clone();
            let switches =
                Switches { cache: cache.map(str::to_owned).or(switches.cache.clone()), ..switches };
            let setup = Setup { switches, server_memory: options.memory, ..Setup::at(&options.places)? };
            let provider = match provider {
                Provider::Shm => target::Provider::Shm,
                Provider::Tcp => target::Provider::Tcp,
                Provider::Null => target::Provider::Null,
            };
            let target = Rfs::new(provider, setup)?;
            let past = cache.map_or("", |_| ", --cache none");
            let (name, is_ceiling) = (format!("{}{past}", target.name()), target.is_ceiling());
            entrants.push(Entrant { name, is_ceiling, target });
        }
    }
    Ok(entrants)
}

/// Runs all rounds. Returns the rounds per target. Stops the running target after a failure or a
/// signal.
pub fn run(
    options: &Options,
    entrants: &[Entrant],
    interrupt: &Interrupt,
    mut tell: impl FnMut(u64, String),
) -> Result<Vec<Vec<Round>>> {
    let (mut rounds, mut step) = (vec![Vec::new(); entrants.len()], 0);
    for round in 0..options.rounds {
        for (_, index) in order(round, 1, entrants.len()) {
            let Entrant { name, target, .. } = &entrants[index];
            tell(step, format!("round {}/{}, {name}", round + 1, options.rounds));
            rounds[index].push(take(options, target, interrupt)?);
            step += 1;
        }
    }
    Ok(rounds)
}

fn take(options: &Options, target: &Rfs, interrupt: &Interrupt) -> Result<Round> {
    let began = Instant::now();
    let mut running = target.start(interrupt)?;
    let start = began.elapsed().as_secs_f64();
    let mut passes = [0.0; PASSES];
    for pass in &mut passes {
        let seconds = write(options, running.as_ref(), interrupt).map_err(|error| running.explain(error))?;
        *pass = options.size as f64 / MIB as f64 / seconds.max(1e-9);
    }
    running.stop()?;
    Ok(Round { start, passes })
}

/// Writes the file sequentially in requests of 1 MiB, until the server has all data. Returns the
/// seconds.
fn write(options: &Options, running: &dyn Running, interrupt: &Interrupt) -> Result<f64> {
    let program = env::current_exe().map_err(Error::io("the path of this program"))?;
    let command = Invocation::new(program)
        .args(["data", "--pattern", "write", "--threads", "1", "--ms", "0"])
        .args(["--bytes".to_owned(), options.size.to_string()])
        .arg(running.mountpoint().join("data"));
    // The working directory is outside of the measured mount, because it would keep the mount busy.
    let mut child = Guarded::spawn(&command, Path::new("/"))?;
    let said = child.wait_success(interrupt, Duration::from_secs(options.timeout), |_| ())?;
    read::<Done>(said.trim()).map(|done| done.seconds)
}
