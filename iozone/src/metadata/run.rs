//! The order of the runs. In every round each target takes its turn, alternately forwards and
//! backwards.

use std::{env, path::Path, time::Duration};

use super::{
    cli::{Bench, TargetKind, Work},
    counted::{Counters, Counts, since},
    step::{Action, STEPS, Shape, Step},
};
use crate::{
    Error, Result,
    cli::name_of,
    interrupt::Interrupt,
    process::{Guarded, Invocation},
    runner::order,
    size,
    target::{Gluster, Provider, Rfs, Running, Setup, Target, Tmpfs},
};

/// The measurements of a target in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Index of the target.
    pub target: usize,
    /// The step.
    pub step: Step,
    /// Number of files per round.
    pub files: usize,
    /// Seconds of each round.
    pub seconds: Vec<f64>,
    /// Requests to the server in the last round, if there is a server.
    pub asked: Option<Counts>,
}

/// Space per file. Files are empty, so only the inode is used.
const EACH: u64 = 16 * size::KIB;

/// Returns the selected targets.
pub fn targets(bench: &Bench) -> Result<Vec<Box<dyn Target>>> {
    let setup = Setup {
        switches: bench.switches.clone(),
        server_memory: 2 * EACH * (bench.files + bench.listed) as u64 + (1 << 30),
        ..Setup::at(&bench.places)?
    };
    let mut kinds = bench.targets.clone();
    kinds.dedup();
    kinds
        .into_iter()
        .map(|kind| -> Result<Box<dyn Target>> {
            Ok(match kind {
                TargetKind::Shm => Box::new(Rfs::new(Provider::Shm, setup.clone())?),
                TargetKind::Tcp => Box::new(Rfs::new(Provider::Tcp, setup.clone())?),
                TargetKind::Null => Box::new(Rfs::new(Provider::Null, setup.clone())?),
                TargetKind::Tmpfs => Box::new(Tmpfs::new(0, setup.tmpfs_dir.clone())),
                TargetKind::Glusterfs => Box::new(Gluster::new(setup.tmpfs_dir.clone())),
            })
        })
        .collect()
}

/// Runs all rounds. Stops the running target after a failure or a signal.
pub fn run(bench: &Bench, targets: &[Box<dyn Target>], interrupt: &Interrupt) -> Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = Vec::new();
    for round in 0..bench.rounds {
        for (_, index) in order(round, 1, targets.len()) {
            let target = &targets[index];
            let mut running = target.start(interrupt)?;
            for step in STEPS {
                // GlusterFS creates only some hundred files per second.
                if step.action == Action::List && target.name() == "glusterfs" {
                    continue;
                }
                let label =
                    format!("round {}/{}, {}, {}", round + 1, bench.rounds, target.name(), step.name());
                eprintln!("rfs-metadata: {label}");
                let Some(taken) =
                    take(bench, step, running.as_mut(), interrupt).map_err(|error| running.explain(error))?
                else {
                    continue;
                };
                match cells.iter_mut().find(|cell| cell.target == index && cell.step == step) {
                    Some(cell) => {
                        cell.seconds.push(taken.seconds);
                        cell.asked = taken.asked;
                    }
                    None => cells.push(Cell {
                        target: index,
                        step,
                        files: files(bench, step),
                        seconds: vec![taken.seconds],
                        asked: taken.asked,
                    }),
                }
            }
            running.stop()?;
        }
    }
    Ok(cells)
}

fn files(bench: &Bench, step: Step) -> usize {
    if step.action == Action::List { bench.listed } else { bench.files }
}

struct Taken {
    seconds: f64,
    asked: Option<Counts>,
}

/// Measures one step. Returns nothing if the step needs a fresh mount and the target cannot
/// remount.
fn take(
    bench: &Bench,
    step: Step,
    running: &mut dyn Running,
    interrupt: &Interrupt,
) -> Result<Option<Taken>> {
    let limit = Duration::from_secs(bench.timeout);
    let act = |running: &dyn Running, action, shape| -> Result<f64> {
        let work = Work {
            dir: running.mountpoint().to_owned(),
            files: files(bench, step),
            shape,
            action,
            threads: usize::from(bench.threads),
        };
        worker(&work, limit, interrupt)
    };
    if step.action == Action::List && step.fresh {
        act(running, Action::Create, Shape::Flat)?;
    }
    if step.fresh && !running.remount(interrupt)? {
        return Ok(None);
    }
    let counters = running.server().map(Counters::of).transpose()?;
    let read = || counters.as_ref().map(Counters::read).transpose();
    let before = read()?;
    let seconds = act(running, step.action, step.shape)?;
    let asked = read()?.zip(before).map(|(after, before)| since(&after, &before));
    Ok(Some(Taken { seconds, asked }))
}

/// Runs the work in a child process of this program.
fn worker(work: &Work, limit: Duration, interrupt: &Interrupt) -> Result<f64> {
    let program = env::current_exe().map_err(Error::io("the path of this program"))?;
    let command = Invocation::new(program)
        .arg("worker")
        .arg("--dir")
        .arg(&work.dir)
        .args(["--files".to_owned(), work.files.to_string()])
        .args(["--shape".to_owned(), name_of(&work.shape)])
        .args(["--action".to_owned(), name_of(&work.action)])
        .args(["--threads".to_owned(), work.threads.to_string()]);
    let mut child = Guarded::spawn(&command, Path::new("/"))?;
    let said = child.wait_success(interrupt, limit, |_| ())?;
    said.trim().parse().map_err(|_| Error::Parse { program: "the worker".into(), what: said })
}
