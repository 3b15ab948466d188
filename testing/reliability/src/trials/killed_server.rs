//! Kills the server while mounts are used, and starts it again with the same memory.
//!
//! All acknowledged changes must survive, and the mounts must continue, each with a current view of
//! the others' changes. Some of the new servers are also killed, during or soon after their
//! takeover. At the end a new mount, which has nothing cached, checks everything.
//!
//! A server with snapshots is also killed during a snapshot, and finally its memory is lost. The
//! restored state must have all unchanged files, and no file may have another file's bytes.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Mount, Plan, ServerOptions, Testbed, time_until},
    users::{Bulk, SharedDir, Tally, User, counted},
};

/// Limit for the server to serve again.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Time after which an awaited event counts as missing.
const NEVER: Duration = Duration::from_secs(60);
/// Maximum random time between the start of service and the next kill.
const MAX_SERVICE: Duration = Duration::from_millis(400);
/// One in this number of kills is followed by a kill of the new server.
const AGAIN: u32 = 4;
/// Maximum random time from the start of the new server until that kill. Most takeovers are
/// shorter.
const SOON: Duration = Duration::from_millis(60);
/// One in this number of bytes of memory belongs to unchanging files.
const BULK: u64 = 4;
/// Before one in this number of kills the server completes a snapshot. The other snapshots may all
/// be interrupted.
const COMPLETE_SNAPSHOT: u32 = 4;
/// Maximum number of failures that the report lists.
const MAX_LISTED: usize = 5;
/// Number of mounts with a user.
const MOUNTS: u32 = 3;

/// State that a mount holds without sending requests: a lock, and an open file without a name.
struct Holder {
    locked: File,
    nameless: File,
}

impl Holder {
    const BYTES: &'static [u8] = b"without a name";

    fn new(mount: &Path) -> Result<Holder> {
        let new = |name: &str| -> io::Result<File> {
            OpenOptions::new().read(true).write(true).create_new(true).open(mount.join(name))
        };
        let make = || -> io::Result<Holder> {
            let holder = Holder { locked: new("locked")?, nameless: new("nameless")? };
            flock(&holder.locked, FlockOperation::LockExclusive)?;
            holder.nameless.write_all_at(Holder::BYTES, 5000)?;
            fs::remove_file(mount.join("nameless"))?;
            Ok(holder)
        };
        make().map_err(Error::io("a lock and a file without a name"))
    }

    /// Checks that the file has its bytes and that the mount `other` sees the lock.
    fn has_all(&self, other: &Path) -> Result<()> {
        let mut bytes = [0; Holder::BYTES.len()];
        let read = self.nameless.read_exact_at(&mut bytes, 5000);
        read.map_err(Error::io("reading a file without a name"))?;
        if bytes != Holder::BYTES {
            return Err(Error::Wrong("a file without a name has lost its bytes".into()));
        }
        let locked = File::open(other.join("locked")).map_err(Error::io("open"))?;
        match flock(&locked, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(e) => return Err(Error::io("flock")(e.into())),
            Ok(()) => return Err(Error::Wrong("a lock is lost".into())),
        }
        self.locked.write_all_at(b"x", 0).map_err(Error::io("writing under a lock"))
    }
}

/// The kills of a trial, and the findings after each.
struct Kills<'a> {
    plan: &'a Plan,
    options: ServerOptions,
    /// Mount whose use after each kill shows that the server serves again.
    beside: &'a Mount,
    holder: &'a Holder,
    bulk: &'a Bulk,
    random: fastrand::Rng,
    /// Losses of locks, of open files and of old bytes.
    lost: Vec<String>,
    /// Number of new servers that were killed.
    killed_soon: u32,
    /// Number of kills that left an incomplete snapshot.
    torn: u32,
}

impl Kills<'_> {
    /// Kills the server at a random moment, starts the next server, and checks the results that the
    /// mounts hold. Returns the time until the next server serves, or `None` if it never does.
    fn kill(&mut self, testbed: &mut Testbed<'_>, number: u32) -> Result<Option<Duration>> {
        self.plan.interrupt.check()?;
        thread::sleep(self.up_to(MAX_SERVICE));
        let soon = self.up_to(SOON);
        if self.options.persist {
            if number.is_multiple_of(COMPLETE_SNAPSHOT) {
                await_snapshot(testbed)?;
            }
            // A snapshot begins. The kill comes during it or shortly after it.
            testbed.signal_server(Signal::USR1)?;
            thread::sleep(self.up_to(SOON));
        }
        match self.random.u32(..AGAIN) {
            0 => {
                self.killed_soon += 1;
                testbed.kill_two_servers(soon)?;
            }
            _ => testbed.kill_server()?,
        }
        self.torn += u32::from(self.options.persist && testbed.snapshots()?.1);
        let began = Instant::now();
        testbed.serve_again()?;
        let probe = self.beside.point.join("probe");
        let serves = time_until(NEVER, || fs::write(&probe, b"x").is_ok() && fs::remove_file(&probe).is_ok());
        let found = self.holder.has_all(&self.beside.point);
        let found = found.and_then(|()| self.bulk.check_one(&self.beside.point, &mut self.random));
        self.lost.extend(found.err().map(|e| e.to_string()));
        Ok(serves.map(|_| began.elapsed()))
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        self.random.u32(..=longest.as_micros() as u32) * Duration::from_micros(1)
    }
}

/// Kills the server `times` times.
pub(crate) fn run(plan: &Plan, times: u32, options: ServerOptions) -> Result<Report> {
    let mut testbed = Testbed::start_kept(plan, options)?;
    let mounts = (0..MOUNTS).map(|_| testbed.mount()).collect::<Result<Vec<_>>>()?;
    let shared_dirs: Arc<[SharedDir]> =
        (1..).zip(&mounts).map(|(id, mount)| SharedDir::new(&mount.point, id)).collect::<Result<_>>()?;
    let user = |(at, mount): (usize, &Mount)| {
        Ok(User::new(&mount.point, at as u64 + 1)?.with_shared_dirs(&shared_dirs, at))
    };
    let users = mounts.iter().enumerate().map(user).collect::<Result<Vec<_>>>()?;
    let (beside, holding) = (testbed.mount()?, testbed.mount()?);
    let holder = Holder::new(&holding.point)?;
    let bulk = Bulk::write(&beside.point, plan.memory / BULK)?;
    let mut kills = Kills {
        plan,
        options,
        beside: &beside,
        holder: &holder,
        bulk: &bulk,
        random: fastrand::Rng::new(),
        lost: Vec::new(),
        killed_soon: 0,
        torn: 0,
    };
    let (longest, mut users) = kill_while_used(&mut kills, &mut testbed, users, times)?;
    let Kills { lost, killed_soon, torn, .. } = kills;
    let count = counted(&beside.point)?;
    let mut tally = Tally::default();
    users.iter().for_each(|user| tally.add(user.tally()));
    drop(holder);
    mounts.into_iter().chain([beside, holding]).try_for_each(Mount::unmount)?;

    // After this, no client has cached state that could hide a loss.
    testbed.kill_server()?;
    testbed.serve_again()?;
    let fresh = testbed.mount()?;
    let wrong = wrong_at(&fresh, &mut users, &shared_dirs, &bulk, count)?;

    let mut report =
        Report::new(format!("the server killed {times} times, {MOUNTS} mounts over {} used", plan.provider));
    let within = longest.is_some_and(|time| time <= AGAIN_WITHIN);
    let found = longest.map_or("never".into(), |time| format!("{} ms", time.as_millis()));
    report.check_if(!plan.short, "serves again after, at most", found, "within 1 s", within);
    report.note("killed soon after", killed_soon);
    report_users(&mut report, &tally);
    report.check("locks, open files, old bytes lost", lost.len(), "none", lost.is_empty());
    lost.iter().take(MAX_LISTED).for_each(|text| report.note("lost", text));
    report.note("bytes that stay", byte_size::show(bulk.bytes()));
    report.check("wrong at a mount made afterwards", wrong.len(), "none", wrong.is_empty());
    wrong.iter().take(MAX_LISTED).for_each(|text| report.note("wrong afterwards", text));
    report_texts(&mut report, &tally, count);
    fresh.unmount()?;
    if options.persist {
        report.check("killed in the middle of a snapshot", torn, "some", torn > 0);
        report_restored(&mut report, after_a_loss(&mut testbed, &users, &bulk));
    }
    testbed.stop()?;
    Ok(report)
}

/// Kills the server `times` times while all users work. Returns the longest time until a next
/// server served, `None` if one never did, and the users.
fn kill_while_used(
    kills: &mut Kills<'_>,
    testbed: &mut Testbed<'_>,
    users: Vec<User>,
    times: u32,
) -> Result<(Option<Duration>, Vec<User>)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.run_and_return(&stop, |_| {}))).collect();
        let longest = (0..times).try_fold(Some(Duration::ZERO), |longest: Option<Duration>, number| {
            let served = kills.kill(testbed, number)?;
            Ok(longest.zip(served).map(|(longest, served)| longest.max(served)))
        });
        // Each user finishes its current operation.
        thread::sleep(MAX_SERVICE);
        stop.store(true, Ordering::Relaxed);
        let users = running.into_iter().filter_map(|user| user.join().ok()).collect();
        longest.map(|longest| (longest, users))
    })
}

/// Checks all files at a mount that has cached nothing. Returns the faults.
fn wrong_at(
    fresh: &Mount,
    users: &mut [User],
    shared_dirs: &[SharedDir],
    bulk: &Bulk,
    count: u64,
) -> Result<Vec<String>> {
    let mut wrong: Vec<String> = users
        .iter_mut()
        .filter_map(|user| user.check_all(&fresh.point).err())
        .map(|e| e.to_string())
        .collect();
    let mut unused = Tally::default();
    wrong.extend(
        shared_dirs
            .iter()
            .filter_map(|shared| Some(shared.check(&fresh.point, &mut unused).err()?.to_string())),
    );
    wrong.extend(bulk.check_all(&fresh.point).err().map(|e| e.to_string()));
    match counted(&fresh.point)? {
        found if found == count => {}
        found => wrong.push(format!("counted is {found}, not {count}")),
    }
    Ok(wrong)
}

fn report_users(report: &mut Report, tally: &Tally) {
    report.note("operations", tally.operations);
    report.check("wrong bytes, sizes or names", tally.wrong, "none", tally.wrong == 0);
    report.check("looks at what others had put there", tally.looks, "some", tally.looks > 0);
    let failed = tally.errors - tally.wrong;
    report.check("operations that failed", failed, "none", failed == 0);
}

fn report_texts(report: &mut Report, tally: &Tally, count: u64) {
    tally.wrong_texts.iter().for_each(|text| report.note("wrong", text));
    tally.texts.iter().for_each(|text| report.note("error", text));
    let found = format!("{count}, of {} to {}", tally.counted, tally.counted + tally.perhaps_counted);
    report.check("counted under a lock", found, "none lost", tally.fits(count));
    report.note("longest operation", format!("{} ms, {}", tally.longest.0.as_millis(), tally.longest.1));
}

fn report_restored(report: &mut Report, restored: Result<usize>) {
    let found = restored.as_ref().map_or_else(ToString::to_string, |files| format!("{files} files of users"));
    report.check(
        "restored when the memory is lost",
        found,
        "some, and all that stays",
        restored.is_ok_and(|files| files > 0),
    );
}

/// Waits until the server has completed another snapshot.
fn await_snapshot(testbed: &Testbed<'_>) -> Result<()> {
    let before = testbed.snapshots()?.0;
    testbed.signal_server(Signal::USR1)?;
    let whole = time_until(NEVER, || testbed.snapshots().is_ok_and(|(newest, _)| newest != before));
    whole.map(drop).ok_or_else(|| Error::Wrong("the server completes no snapshot".into()))
}

/// Kills the server during a snapshot, removes its memory, and checks the state that the next
/// server restores. Returns the number of users' files.
fn after_a_loss(testbed: &mut Testbed<'_>, users: &[User], bulk: &Bulk) -> Result<usize> {
    testbed.signal_server(Signal::USR1)?;
    testbed.kill_server()?;
    testbed.lose_memory()?;
    testbed.serve_again()?;
    let mount = testbed.mount()?;
    bulk.check_all(&mount.point)?;
    let files = users.iter().map(|user| user.check_earlier_state(&mount.point)).sum::<Result<usize>>()?;
    mount.unmount()?;
    Ok(files)
}
