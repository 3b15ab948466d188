//! Runs targets in their own processes, several at a time. A target that kills its process does not
//! affect the others.

use std::{
    collections::VecDeque,
    io::Read,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{Target, driver::Extent};

/// Time after the limit of a run before its process is killed. It exceeds the time for a hung input
/// and for the release of resources.
const EXTRA_TIME: Duration = Duration::from_secs(60);

/// The result of a target.
#[derive(Clone, Debug)]
pub struct Report {
    /// Target that the process fuzzes.
    pub target: &'static Target,
    /// The last output of the process: a row of the table, or the failure.
    pub outcome: Result<String, String>,
}

impl Report {
    /// Returns the number of inputs, read from the row of the table; 0 if the target failed.
    pub fn inputs(&self) -> u64 {
        let row = self.outcome.as_deref().unwrap_or_default();
        row.split_whitespace().nth(1).and_then(|inputs| inputs.parse().ok()).unwrap_or(0)
    }
}

struct Running {
    target: &'static Target,
    child: Child,
    give_up: Instant,
}

/// Runs the targets, at most `jobs` at a time, and calls `done` with each report. Returns true if
/// all succeeded.
///
/// # Errors
/// If a process cannot be started.
pub fn supervise(
    targets: &[&'static Target],
    run: u64,
    extent: Extent,
    jobs: usize,
    mut done: impl FnMut(&Report),
) -> std::io::Result<bool> {
    let program = std::env::current_exe()?;
    let mut waiting: VecDeque<_> = targets.iter().copied().collect();
    let mut running = Vec::new();
    let mut all_good = true;
    loop {
        while running.len() < jobs.max(1) && !waiting.is_empty() {
            let Some(target) = waiting.pop_front() else { break };
            running.push(start(&program, target, run, extent)?);
        }
        if running.is_empty() {
            return Ok(all_good);
        }
        let mut still = Vec::new();
        for mut one in running {
            if one.child.try_wait()?.is_none() && Instant::now() < one.give_up {
                still.push(one);
                continue;
            }
            let report = end(one)?;
            all_good &= report.outcome.is_ok();
            done(&report);
        }
        running = still;
        thread::sleep(Duration::from_millis(20));
    }
}

fn start(program: &PathBuf, target: &'static Target, run: u64, extent: Extent) -> std::io::Result<Running> {
    let child = Command::new(program)
        .args(["--one", target.name, "--seed", &run.to_string(), "--inputs", &extent.inputs.to_string()])
        .args(["--seconds", &extent.time.as_secs_f64().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(Running { target, child, give_up: Instant::now() + extent.time + EXTRA_TIME })
}

fn end(Running { target, mut child, .. }: Running) -> std::io::Result<Report> {
    let hung = child.try_wait()?.is_none();
    if hung {
        child.kill()?;
    }
    let status = child.wait()?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut output)?;
    }
    let output = output.trim().to_owned();
    let outcome = match (hung, status.success(), status.signal()) {
        (true, ..) => Err("it does not end".into()),
        (_, true, _) => Ok(output),
        (.., Some(signal)) => Err(format!("killed by signal {signal}: repeat it with --trace. {output}")),
        _ => Err(output),
    };
    Ok(Report { target, outcome })
}
