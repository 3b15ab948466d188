//! Users of mounts while something goes wrong for some time: how long it holds them up, and what they see of it.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Result,
    processes::stuck,
    report::Report,
    stand::{Mount, Plan, time_until},
    user::{Tally, User, counted},
};

/// Users of each mount.
const USERS: usize = 2;
/// What nobody may be held up for longer than a fault.
const AFTER: Duration = Duration::from_secs(2);
/// A fault begins at a random moment up to so long after its users.
const LATEST: Duration = Duration::from_millis(500);
/// Each user has to go on within this when the fault is over.
const GO_ON: Duration = Duration::from_secs(60);

/// Mounts, and what became of their users.
#[derive(Debug)]
pub(crate) struct Disturbed<'a> {
    plan: &'a Plan,
    mounts: &'a [Mount],
    users: u64,
    tally: Tally,
    /// The longest operation, less the fault.
    longest: (Duration, &'static str),
}

impl<'a> Disturbed<'a> {
    /// Of mounts that nobody uses yet.
    pub(crate) fn new(plan: &'a Plan, mounts: &'a [Mount]) -> Disturbed<'a> {
        Disturbed { plan, mounts, users: 0, tally: Tally::default(), longest: (Duration::ZERO, "") }
    }

    /// Has users on all mounts. When they are at work `fault` is called, which begins and ends what goes wrong and lasts as long as that.
    pub(crate) fn through(&mut self, what: &str, fault: impl FnOnce() -> Result<()>) -> Result<()> {
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
                    let look = |tally: &Tally| seen.store(tally.operations + tally.errors, Ordering::Relaxed);
                    let stop = &stop;
                    scope.spawn(move || user.use_it(stop, look))
                })
                .collect();
            let lasted = go_through(&seen, fault);
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
        dirs.iter().try_for_each(fs::remove_dir_all).map_err(Error::io("removing what users had"))
    }

    /// Says what became of all.
    pub(crate) fn report(self, report: &mut Report, server: u32) -> Result<()> {
        let Disturbed { mounts, tally, longest: (longest, operation), .. } = self;
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

/// Waits for users to be at work, calls `fault`, and waits until each of them goes on. How long the fault took.
fn go_through(seen: &[AtomicU64], fault: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let looks = || seen.iter().map(|seen| seen.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let all_go_on = |from: &[u64]| {
        let go_on = || looks().iter().zip(from).all(|(now, from)| now > from);
        time_until(GO_ON, go_on).ok_or_else(|| Error::Wrong("a user does not go on".into()))
    };
    all_go_on(&vec![0; seen.len()])?;
    thread::sleep(fastrand::u32(..=LATEST.as_micros() as u32) * Duration::from_micros(1));
    let began = Instant::now();
    fault()?;
    let lasted = began.elapsed();
    all_go_on(&looks())?;
    Ok(lasted)
}
