//! Runs one user on each of many mounts for a long time. Checks errors, the longest operation, and
//! growth of memory.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::Result,
    report::Report,
    testbed::{Memory, Mount, Plan, Testbed, growth},
    users::{Tally, User, counted},
};

/// Limit for the longest operation.
const MAX_LATENCY: Duration = Duration::from_secs(2);
/// Allowed growth of a process's memory in the second half of the run, in percent.
const FLAT: f64 = 1.0;
/// Number of memory samples in a run.
const SAMPLES: u32 = 20;

/// Memory of the server and of all clients at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    server: Memory,
    /// Sum of the clients' private memory. Their other memory is the server's, which they map.
    clients: u64,
}

/// Runs users on `clients` mounts for `time`.
pub(crate) fn run(plan: &Plan, clients: u32, time: Duration) -> Result<Report> {
    let mut testbed = Testbed::start(plan)?;
    let mounts = (0..clients).map(|_| testbed.mount()).collect::<Result<Vec<_>>>()?;
    let users =
        (1..).zip(&mounts).map(|(id, mount)| User::new(&mount.point, id)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let seen: Vec<Mutex<Tally>> = mounts.iter().map(|_| Mutex::default()).collect();
    let mut samples = Vec::new();
    let watched = thread::scope(|scope| {
        for (user, seen) in users.into_iter().zip(&seen) {
            let stop = &stop;
            scope.spawn(move || {
                let tally = user.run(stop, |tally| *lock(seen) = tally.clone());
                *lock(seen) = tally;
            });
        }
        let watched = watch(&mut testbed, &mounts, (plan, time), &seen, &mut samples);
        stop.store(true, Ordering::Relaxed);
        watched
    });
    watched?;
    let tally = sum(&seen);
    let count = counted(&mounts[0].point)?;
    for mount in mounts {
        mount.unmount()?;
    }
    testbed.stop()?;
    Ok(report((clients, time, plan.short), &tally, count, &samples))
}

fn lock(seen: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sum(seen: &[Mutex<Tally>]) -> Tally {
    let mut all = Tally::default();
    seen.iter().for_each(|one| all.add(&lock(one)));
    all
}

/// Samples memory at regular intervals and prints a line for each sample.
fn watch(
    testbed: &mut Testbed<'_>,
    mounts: &[Mount],
    (plan, time): (&Plan, Duration),
    seen: &[Mutex<Tally>],
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let began = Instant::now();
    println!(
        "| {:>6} | {:>10} | {:>6} | {:>10} | {:>12} | {:>12} |",
        "s", "operations", "errors", "longest ms", "server KiB", "clients KiB"
    );
    for number in 1..=SAMPLES {
        let until = time * number / SAMPLES;
        plan.interrupt.wait(until.saturating_sub(began.elapsed()), || Ok(None::<()>))?;
        let mut clients = 0;
        for mount in mounts {
            clients += Memory::of(mount.process())?.own;
        }
        let sample = Sample { at: began.elapsed(), server: testbed.memory()?, clients };
        let tally = sum(seen);
        println!(
            "| {:>6.0} | {:>10} | {:>6} | {:>10} | {:>12} | {:>12} |",
            sample.at.as_secs_f64(),
            tally.operations,
            tally.errors,
            tally.longest.0.as_millis(),
            sample.server.resident,
            sample.clients
        );
        samples.push(sample);
    }
    Ok(())
}

fn report(
    (clients, time, short): (u32, Duration, bool),
    tally: &Tally,
    count: u64,
    samples: &[Sample],
) -> Report {
    let mut report = Report::new(format!("{clients} clients for {} s", time.as_secs()));
    report.note("operations", tally.operations);
    report.check("errors", tally.errors, "none", tally.errors == 0);
    tally.texts.iter().for_each(|text| report.note("error", text));
    let (longest, what) = tally.longest;
    report.check(
        "longest operation",
        format!("{} ms, {what}", longest.as_millis()),
        "below 2 s",
        longest < MAX_LATENCY,
    );
    let lost = tally.counted.abs_diff(count);
    report.check("counted under a lock, and lost", format!("{count}, {lost}"), "none lost", lost == 0);
    for (what, of) in [
        ("server's memory, second half", (|sample| sample.server.resident) as fn(&Sample) -> u64),
        ("clients' own memory, second half", |sample| sample.clients),
    ] {
        let (from, to) = second_half(samples, of);
        let percent = growth(from, to);
        let found = format!("{from} to {to} KiB, {percent:+.2} %");
        report.check_if(!short, what, found, "flat within 1 %", percent <= FLAT);
    }
    report
}

/// Returns the maximum in the third quarter and the maximum in the last quarter. Fluctuations
/// therefore do not count as growth.
fn second_half(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (u64, u64) {
    let half = &samples[samples.len() / 2..];
    let (third, last) = half.split_at(half.len() / 2);
    let most = |samples: &[Sample]| samples.iter().map(&of).max().unwrap_or(0);
    (most(third), most(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(clients: impl IntoIterator<Item = u64>) -> Vec<Sample> {
        let sample =
            |clients| Sample { at: Duration::ZERO, server: Memory { resident: 1000, own: 10 }, clients };
        clients.into_iter().map(sample).collect()
    }

    #[test]
    fn initial_growth_and_fluctuations_are_not_growth() {
        let waves = samples([10, 500, 800, 990, 1000, 900, 1000, 950]);
        assert_eq!(second_half(&waves, |sample| sample.clients), (1000, 1000));
        let grows = samples(100..108);
        assert_eq!(second_half(&grows, |sample| sample.clients), (105, 107));
    }

    #[test]
    fn a_missed_requirement_fails_the_report() {
        let all = samples([1000; 8]);
        let fine = Tally {
            operations: 5,
            counted: 3,
            longest: (Duration::from_millis(1999), "read"),
            ..Tally::default()
        };
        let holds = |tally: &Tally, count| report((1, MAX_LATENCY, false), tally, count, &all).holds();
        assert!(holds(&fine, 3) && !holds(&fine, 2));
        assert!(!holds(&Tally { errors: 1, ..fine.clone() }, 3));
        assert!(!holds(&Tally { longest: (MAX_LATENCY, "read"), ..fine }, 3));
    }
}
