//! A server that is killed while its mounts are used, and started again with the memory that it had: all that was acknowledged is
//! there, and the mounts go on.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Result,
    report::Report,
    stand::{Plan, Stand, time_until},
    user::{Tally, User, counted},
};

/// It has to serve again within this.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Something that should come soon has not come at all after this.
const NEVER: Duration = Duration::from_secs(60);
/// Longest time between serving again and the next kill.
const LONGEST: Duration = Duration::from_millis(400);
/// Mounts, each with a user.
const MOUNTS: u32 = 3;

/// Kills the server so many times.
pub(crate) fn run(plan: &Plan, times: u32) -> Result<Report> {
    let mut stand = Stand::start_kept(plan)?;
    let mounts = (0..MOUNTS).map(|_| stand.mount()).collect::<Result<Vec<_>>>()?;
    let users =
        (1..).zip(&mounts).map(|(id, mount)| User::new(&mount.point, id)).collect::<Result<Vec<_>>>()?;
    let beside = stand.mount()?;
    let stop = AtomicBool::new(false);
    let mut random = fastrand::Rng::new();
    let (killed, tally) = thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.use_it(&stop, |_| {}))).collect();
        let probe = beside.point.join("probe");
        let mut kill_one = |longest: Option<Duration>| -> Result<Option<Duration>> {
            plan.interrupt.check()?;
            thread::sleep(random.u32(..=LONGEST.as_micros() as u32) * Duration::from_micros(1));
            stand.kill_server()?;
            let began = Instant::now();
            stand.serve_again()?;
            let serves =
                time_until(NEVER, || fs::write(&probe, b"x").is_ok() && fs::remove_file(&probe).is_ok());
            Ok(longest.zip(serves).map(|(longest, _)| longest.max(began.elapsed())))
        };
        let killed = (0..times).try_fold(Some(Duration::ZERO), |longest, _| kill_one(longest));
        // Each has to come to an end with what he is doing.
        thread::sleep(LONGEST);
        stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        running.into_iter().filter_map(|user| user.join().ok()).for_each(|tally| all.add(&tally));
        (killed, all)
    });
    let longest = killed?;
    let count = counted(&beside.point)?;

    let mut report =
        Report::new(format!("the server killed {times} times, {MOUNTS} mounts over {} used", plan.provider));
    let within = longest.is_some_and(|time| time <= AGAIN_WITHIN);
    let found = longest.map_or("never".into(), |time| format!("{} ms", time.as_millis()));
    report.check_if(!plan.short, "serves again after, at most", found, "within 1 s", within);
    report.note("operations", tally.operations);
    report.check("wrong bytes, sizes or names", tally.wrong, "none", tally.wrong == 0);
    let failed = tally.errors - tally.wrong;
    report.check_if(!plan.short, "operations that failed", failed, "none", failed == 0);
    tally.wrong_texts.iter().for_each(|text| report.note("wrong", text));
    tally.texts.iter().for_each(|text| report.note("error", text));
    let found = format!("{count}, of {} to {}", tally.counted, tally.counted + tally.perhaps_counted);
    report.check("counted under a lock", found, "none lost", tally.fits(count));
    report.note("longest operation", format!("{} ms, {}", tally.longest.0.as_millis(), tally.longest.1));
    mounts.into_iter().chain([beside]).try_for_each(crate::stand::Mount::unmount)?;
    stand.stop()?;
    Ok(report)
}
