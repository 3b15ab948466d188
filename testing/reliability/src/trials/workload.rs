//! Runs users on mounts during temporary faults. Measures the delay of their operations and counts
//! their errors.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Mount, Plan, stuck, time_until},
    users::{Tally, User, counted},
};

/// Number of users per mount.
const USERS: usize = 2;
/// Allowed delay of an operation beyond the duration of the fault.
const AFTER: Duration = Duration::from_secs(2);
/// Maximum random delay between the start of the users and the fault.
const LATEST: Duration = Duration::from_millis(500);
/// Limit for each user to make progress after the fault.
const GO_ON: Duration = Duration::from_secs(60);

/// The users of some mounts, and their results so far.
#[derive(Debug)]
pub(crate) struct Workload<'a> {
    plan: &'a Plan,
    mounts: &'a [Mount],
    users: u64,
    tally: Tally,
    /// The longest operation, minus the duration of its fault.
    longest: (Duration, &'static str),
}

impl<'a> Workload<'a> {
    /// Returns a workload that has not run yet.
    pub(crate) fn new(plan: &'a Plan, mounts: &'a [Mount]) -> Workload<'a> {
        Workload { plan, mounts, users: 0, tally: Tally::default(), longest: (Duration::ZERO, "") }
    }

    /// Runs users on all mounts. When all users make progress, calls `fault`, which causes the
    /// fault and returns when the fault is over.
    pub(crate) fn run_through(&mut self, what: &str, fault: impl FnOnce() -> Result<()>) -> Result<()> {
        self.plan.interrupt.check()?;
        let mut users = Vec::new();
        let mut dirs = Vec::new();
        for mount in self.mounts.iter().flat_map(|mount| [mount; USERS]) {
            self.users += 1;
            users.push(User::new(&mount.point, self.users)?);
            dirs.push(mount.point.join(format!("user{}", self.users)));
        }
        let stop = AtomicBool::new(false);
        let seen: Vec<AtomicU64> = users.iter().map(|_| AtomicU64::new(0)).collect();
        let (lasted, tally) = thread::scope(|scope| {
            let running: Vec<_> = users
                .into_iter()
                .zip(&seen)
                .map(|(user, seen)| {
                    let observe =
                        |tally: &Tally| seen.store(tally.operations + tally.errors, Ordering::Relaxed);
                    let stop = &stop;
                    scope.spawn(move || user.run(stop, observe))
                })
                .collect();
            let lasted = time_fault(&seen, fault);
            stop.store(true, Ordering::Relaxed);
            let mut all = Tally::default();
            running.into_iter().filter_map(|user| user.join().ok()).for_each(|tally| all.add(&tally));
            (lasted, all)
        });
        let lasted = lasted?;
        let (longest, operation) = tally.longest;
        self.longest = self.longest.max((longest.saturating_sub(lasted), operation));
        println!(
            "{what} for {:.1} s: {} operations, {} errors, the longest {} ms, {operation}",
            lasted.as_secs_f64(),
            tally.operations,
            tally.errors,
            longest.as_millis()
        );
        self.tally.add(&tally);
        dirs.iter().try_for_each(fs::remove_dir_all).map_err(Error::io("removing the users' directories"))
    }

    /// Adds the results of all runs to a report.
    pub(crate) fn report(self, report: &mut Report, server: u32) -> Result<()> {
        let Workload { mounts, tally, longest: (longest, operation), .. } = self;
        report.note("operations", tally.operations);
        report.check("errors", tally.errors, "none", tally.errors == 0);
        tally.texts.iter().for_each(|text| report.note("error", text));
        if tally.errors > 0 {
            mounts
                .iter()
                .for_each(|mount| eprintln!("{}:\n    {}", mount.point.display(), mount.last_words()));
        }
        let found = format!("{} ms, {operation}", longest.as_millis());
        report.check("held up longer than the fault, at most", found, "within 2 s", longest <= AFTER);
        let count = counted(&mounts[0].point)?;
        let lost = tally.counted.abs_diff(count);
        report.check("counted under a lock, and lost", format!("{count}, {lost}"), "none lost", lost == 0);
        let processes: Vec<u32> =
            mounts.iter().map(Mount::process).chain([server, std::process::id()]).collect();
        let stuck = stuck(&processes);
        report.check("threads that no signal reaches", stuck.len(), "none", stuck.is_empty());
        stuck.iter().for_each(|thread| report.note("stuck", thread));
        Ok(())
    }
}

/// Waits until all users make progress, calls `fault`, and waits until all users make progress
/// again. Returns the duration of the fault.
fn time_fault(seen: &[AtomicU64], fault: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let progress = || seen.iter().map(|seen| seen.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let all_go_on = |from: &[u64]| {
        let go_on = || progress().iter().zip(from).all(|(now, from)| now > from);
        time_until(GO_ON, go_on).ok_or_else(|| Error::Wrong("a user makes no progress".into()))
    };
    all_go_on(&vec![0; seen.len()])?;
    thread::sleep(fastrand::u32(..=LATEST.as_micros() as u32) * Duration::from_micros(1));
    let began = Instant::now();
    fault()?;
    let lasted = began.elapsed();
    all_go_on(&progress())?;
    Ok(lasted)
}
