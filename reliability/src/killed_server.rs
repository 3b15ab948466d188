//! A server that is killed while its mounts are used, and started again with the memory that it had: all that was acknowledged is
//! there, and the mounts go on.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    Error, Result,
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
/// Losses that are told.
const TOLD: usize = 5;
/// Mounts, each with a user.
const MOUNTS: u32 = 3;

/// What somebody has all the while who asks for nothing: a lock, and an open file without a name.
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

    /// Whether it is all there, and `other` mounts see the lock.
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

/// Kills the server so many times.
pub(crate) fn run(plan: &Plan, times: u32) -> Result<Report> {
    let mut stand = Stand::start_kept(plan)?;
    let mounts = (0..MOUNTS).map(|_| stand.mount()).collect::<Result<Vec<_>>>()?;
    let users =
        (1..).zip(&mounts).map(|(id, mount)| User::new(&mount.point, id)).collect::<Result<Vec<_>>>()?;
    let (beside, holding) = (stand.mount()?, stand.mount()?);
    let holder = Holder::new(&holding.point)?;
    let mut lost = Vec::new();
    let stop = AtomicBool::new(false);
    let mut random = fastrand::Rng::new();
    let (killed, tally) = thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.use_it(&stop, |_| {}))).collect();
        let probe = beside.point.join("probe");
        let mut kill_one = |longest: Option<Duration>| -> Result<Option<Duration>> {
            plan.interrupt.check()?;
            thread::sleep(random.u32(..=LONGEST.as_micros() as u32) * Duration::from_micros(1));
            stand.stand_by()?;
            stand.kill_server()?;
            let began = Instant::now();
            stand.serve_again()?;
            let serves =
                time_until(NEVER, || fs::write(&probe, b"x").is_ok() && fs::remove_file(&probe).is_ok());
            lost.extend(holder.has_all(&beside.point).err().map(|e| e.to_string()));
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
    report.check("operations that failed", failed, "none", failed == 0);
    report.check("locks and open files lost", lost.len(), "none", lost.is_empty());
    lost.iter().take(TOLD).for_each(|text| report.note("lost", text));
    tally.wrong_texts.iter().for_each(|text| report.note("wrong", text));
    tally.texts.iter().for_each(|text| report.note("error", text));
    let found = format!("{count}, of {} to {}", tally.counted, tally.counted + tally.perhaps_counted);
    report.check("counted under a lock", found, "none lost", tally.fits(count));
    report.note("longest operation", format!("{} ms, {}", tally.longest.0.as_millis(), tally.longest.1));
    drop(holder);
    mounts.into_iter().chain([beside, holding]).try_for_each(crate::stand::Mount::unmount)?;
    stand.stop()?;
    Ok(report)
}
