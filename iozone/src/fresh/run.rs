//! The order of the runs: in every round each provider takes its turn, forwards and backwards in alternation, through the kernel's pages and past them.

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

/// So often the file is written: the first time, the second, and once what the first times have left for later has been done.
pub const PASSES: usize = 5;

/// One row of what is measured.
#[derive(Debug)]
pub struct Entrant {
    /// Its name in tables.
    pub name: String,
    /// It is there for comparison, and nothing is required of it.
    pub is_ceiling: bool,
    target: Rfs,
}

/// What one round has shown of an entrant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Seconds until a server is ready and mounted.
    pub start: f64,
    /// MiB/s of each pass.
    pub passes: [f64; PASSES],
}

/// Those that were asked for.
pub fn entrants(options: &Options) -> Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    for provider in &options.providers {
        // Unless one is given: then that.
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

/// Runs everything; rounds by entrant. On a failure or a signal what runs is stopped before this returns.
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

/// Writes the file from its beginning to its end, in requests of 1 MiB, until it is at the server. Seconds.
fn write(options: &Options, running: &dyn Running, interrupt: &Interrupt) -> Result<f64> {
    let program = env::current_exe().map_err(Error::io("the path of this program"))?;
    let command = Invocation::new(program)
        .args(["data", "--pattern", "write", "--threads", "1", "--ms", "0"])
        .args(["--bytes".to_owned(), options.size.to_string()])
        .arg(running.mountpoint().join("data"));
    // Elsewhere than on what is measured, which it would keep busy.
    let mut child = Guarded::spawn(&command, Path::new("/"))?;
    let said = child.wait_success(interrupt, Duration::from_secs(options.timeout), |_| ())?;
    read::<Done>(said.trim()).map(|done| done.seconds)
}
