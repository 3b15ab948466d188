//! Adds a store to a pool, drains another one and removes it, while users work on three mounts. No
//! operation may fail or take long, and each byte must be right.

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
    testbed::{Mount, Plan, Testbed, time_until},
    users::{Bulk, Tally, User, counted},
};

/// Number of mounts, with one user each.
const MOUNTS: usize = 3;
/// Stores before another one is added.
const STORES: usize = 2;
/// Length of the pieces of a file that stores take in turn. Most files of users have several.
const PIECES: [&str; 2] = ["--stripe-unit", "64k"];
/// Limit for the longest operation.
const MAX_LATENCY: Duration = Duration::from_secs(2);
/// Limit for the added store to have data.
const NEW_SPACE: Duration = Duration::from_secs(1);
/// Time for which users work before the first change, and after the last one.
const AROUND: Duration = Duration::from_secs(1);

/// The changes of the pool, as they were measured.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// From the end of `pool add` until the store has data; `None` if it got none.
    new_space: Option<Duration>,
    add: Duration,
    drain: Duration,
    /// Bytes that the drain moved.
    moved: u64,
}

/// Fills the server and each store with `fill` bytes, and changes the pool.
pub(crate) fn run(plan: &Plan, fill: u64) -> Result<Report> {
    let mut testbed = Testbed::start_pool(plan, None, STORES, &PIECES.map(String::from))?;
    let mounts = (0..MOUNTS).map(|_| testbed.mount()).collect::<Result<Vec<_>>>()?;
    let bulk = Bulk::write(&mounts[0].point, fill * (1 + STORES as u64))?;
    let users =
        (1..).zip(&mounts).map(|(id, mount)| User::new(&mount.point, id)).collect::<Result<Vec<_>>>()?;
    let (stop, checked) = (AtomicBool::new(false), Mutex::new(Tally::default()));
    let (changes, mut users) = thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.run_and_return(&stop, |_| {}))).collect();
        scope.spawn(|| check_bulk(&bulk, &mounts[MOUNTS - 1], &stop, &checked));
        let changes = change(&mut testbed);
        stop.store(true, Ordering::Relaxed);
        (changes, running.into_iter().filter_map(|user| user.join().ok()).collect::<Vec<_>>())
    });
    let changes = changes?;
    let mut tally = checked.into_inner().unwrap_or_else(PoisonError::into_inner);
    users.iter().for_each(|user| tally.add(user.tally()));
    let another = testbed.mount()?;
    bulk.check_all(&another.point)?;
    users.iter_mut().try_for_each(|user| user.check_all(&another.point))?;
    let count = counted(&another.point)?;
    let complete = users.len() == MOUNTS;
    mounts.into_iter().chain([another]).try_for_each(Mount::unmount)?;
    testbed.stop()?;
    let title = format!("a store added, one drained and removed, over {}", plan.provider);
    Ok(report(title, changes, &tally, (count, complete)))
}

/// Reads files that were written before, until `stop` is set.
fn check_bulk(bulk: &Bulk, mount: &Mount, stop: &AtomicBool, checked: &Mutex<Tally>) {
    let mut random = fastrand::Rng::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let outcome = bulk.check_one(&mount.point, &mut random);
        let mut tally = checked.lock().unwrap_or_else(PoisonError::into_inner);
        tally.longest = tally.longest.max((began.elapsed(), "check of 1 MiB"));
        match outcome {
            Ok(()) => tally.operations += 1,
            Err(error) => {
                tally.errors += 1;
                tally.texts.push(error.to_string());
            }
        }
    }
}

/// Adds a store, waits until it has data, and drains, removes and ends another one.
fn change(testbed: &mut Testbed<'_>) -> Result<Changes> {
    let mut changes = Changes::default();
    thread::sleep(AROUND);
    let added = testbed.start_store()?;
    let began = Instant::now();
    print!("{}", testbed.pool(&["add", &added])?);
    changes.add = began.elapsed();
    changes.new_space =
        time_until(NEW_SPACE * 10, || testbed.store(&added).is_ok_and(|store| store.used > 0));
    let drained = testbed.first_store()?;
    let began = Instant::now();
    print!("{}", testbed.pool(&["drain", &drained])?);
    changes.drain = began.elapsed();
    changes.moved = testbed.store(&drained)?.moved;
    print!("{}", testbed.pool(&["remove", &drained])?);
    testbed.stop_store(&drained)?;
    thread::sleep(AROUND);
    testbed.interrupted()?;
    Ok(changes)
}

fn report(title: String, changes: Changes, tally: &Tally, (count, complete): (u64, bool)) -> Report {
    let mut report = Report::new(title);
    report.note("operations", tally.operations);
    report.check("errors", tally.errors, "none", tally.errors == 0 && complete);
    tally.texts.iter().for_each(|text| report.note("error", text));
    let (longest, what) = tally.longest;
    let found = format!("{} ms, {what}", longest.as_millis());
    report.check("longest operation", found, "below 2 s", longest < MAX_LATENCY);
    let lost = tally.counted.abs_diff(count);
    report.check("counted under a lock, and lost", format!("{count}, {lost}"), "none lost", lost == 0);
    report.note("pool add took", format!("{} ms", changes.add.as_millis()));
    let found = changes.new_space.map_or("never".into(), |after| format!("{} ms", after.as_millis()));
    let in_time = changes.new_space.is_some_and(|after| after < NEW_SPACE);
    report.check("the added store has new data after", found, "below 1 s", in_time);
    let rate = changes.moved as f64 / 1e6 / changes.drain.as_secs_f64();
    let found =
        format!("{} in {:.1} s, {rate:.0} MB/s", byte_size::show(changes.moved), changes.drain.as_secs_f64());
    report.check("drained", found, "something", changes.moved > 0);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_requirement_fails_the_report() {
        let changes = Changes {
            new_space: Some(Duration::from_millis(999)),
            add: Duration::from_millis(5),
            drain: Duration::from_secs(2),
            moved: 1,
        };
        let fine = Tally { operations: 5, counted: 3, ..Tally::default() };
        let holds = |changes, tally: &Tally, end| report("a trial".into(), changes, tally, end).holds();
        assert!(holds(changes, &fine, (3, true)));
        assert!(!holds(changes, &fine, (2, true)) && !holds(changes, &fine, (3, false)));
        assert!(!holds(Changes { new_space: Some(NEW_SPACE), ..changes }, &fine, (3, true)));
        assert!(!holds(Changes { new_space: None, ..changes }, &fine, (3, true)));
        assert!(!holds(Changes { moved: 0, ..changes }, &fine, (3, true)));
        assert!(!holds(changes, &Tally { errors: 1, ..fine.clone() }, (3, true)));
        assert!(!holds(changes, &Tally { longest: (MAX_LATENCY, "read"), ..fine }, (3, true)));
    }
}
