//! Kills mounts that hold locks, wait for a lock, have an unlinked file open, and change names.
//! Their resources must be freed soon, and users of another mount must see no errors.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Memory, Mount, Plan, Testbed, growth, time_until},
    users::{Tally, User, content, counted},
};

/// Limit for the release of the locks of a killed mount.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// Time after which an awaited event counts as missing.
const NEVER: Duration = Duration::from_secs(60);
/// Number of mounts that are killed before the first memory sample. The server's memory has reached
/// its normal size by then.
const FIRST: u32 = 5;
/// Allowed change of the server's memory, in percent.
const SAME: f64 = 1.0;
/// Length of the unlinked file in bytes.
const UNLINKED: usize = 8 << 20;

/// Kills `times` mounts, one after the other.
pub(crate) fn run(plan: &Plan, times: u32) -> Result<Report> {
    let mut testbed = Testbed::start(plan)?;
    let beside = testbed.mount()?;
    let before = free(&beside.point)?;
    let names = ["contested", "ranges", "queue"];
    names.iter().try_for_each(|name| fs::write(beside.point.join(name), b"")).map_err(Error::io("files"))?;
    let users = (1..=2).map(|id| User::new(&beside.point, id)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let (killed, tally) = thread::scope(|scope| {
        let running: Vec<_> = users.into_iter().map(|user| scope.spawn(|| user.run(&stop, |_| {}))).collect();
        let killed = kill_all(&mut testbed, &beside, plan, times);
        stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        running.into_iter().filter_map(|user| user.join().ok()).for_each(|tally| all.add(&tally));
        (killed, all)
    });
    let Killed { longest, memory } = killed?;
    let count = counted(&beside.point)?;

    let mut report = Report::new(format!("{times} mounts over {} killed", plan.provider));
    let longest = longest.map_or("never".into(), |time| format!("{} ms", time.as_millis()));
    report.check("locks free after, at most", &longest, "within 10 s", longest != "never");
    report.note("operations beside", tally.operations);
    report.check("errors beside", tally.errors, "none", tally.errors == 0);
    tally.texts.iter().for_each(|text| report.note("error", text));
    let lost = tally.counted.abs_diff(count);
    report.check("counted under a lock, and lost", format!("{count}, {lost}"), "none lost", lost == 0);
    report
        .note("longest operation beside", format!("{} ms, {}", tally.longest.0.as_millis(), tally.longest.1));
    let [first, .., last] = memory;
    let percent = growth(first.resident, last.resident);
    let found = format!("{} to {} KiB, {percent:+.2} %", first.resident, last.resident);
    report.check_if(!plan.short, "server's memory", found, "the same within 1 %", percent.abs() <= SAME);
    let own = memory.map(|memory| memory.own.to_string()).join(", ");
    report.note("of that its own, by quarters", format!("{own} KiB"));
    empty(&beside.point)?;
    let mut after = Free::default();
    time_until(NEVER, || {
        after = free(&beside.point).unwrap_or_default();
        after == before
    });
    for (what, before, after) in [
        ("free blocks before, and when all is removed", before.blocks, after.blocks),
        ("free inodes before, and then", before.inodes, after.inodes),
    ] {
        report.check(what, format!("{before}, {after}"), "the same", before == after);
    }
    beside.unmount()?;
    testbed.stop()?;
    Ok(report)
}

/// The results of all kills.
struct Killed {
    /// The longest time until all locks were free; `None` if a lock was never freed.
    longest: Option<Duration>,
    /// The server's memory after the first `FIRST` kills, and after each quarter of the rest.
    memory: [Memory; 5],
}

fn kill_all(testbed: &mut Testbed<'_>, beside: &Mount, plan: &Plan, times: u32) -> Result<Killed> {
    let mut longest = Some(Duration::ZERO);
    let mut memory = [Memory::default(); 5];
    for (quarter, memory) in (0..).zip(&mut memory) {
        let count = if quarter == 0 { FIRST } else { times * quarter / 4 - times * (quarter - 1) / 4 };
        for _ in 0..count {
            plan.interrupt.check()?;
            // If a lock was never freed, further kills would only wait for it.
            if let Some(before) = longest {
                longest = kill_one(testbed, beside)?.map(|time| before.max(time));
            }
        }
        *memory = testbed.memory()?;
    }
    Ok(Killed { longest, memory })
}

/// Kills one mount. Returns the time until all of its locks were free, or `None` if a lock was
/// never freed.
fn kill_one(testbed: &mut Testbed<'_>, beside: &Mount) -> Result<Option<Duration>> {
    let mut victim = testbed.mount()?;
    let (dir, point) = (beside.point.join("victim"), victim.point.clone());
    fs::create_dir(&dir).map_err(Error::io("mkdir"))?;
    // A thread of the victim waits for this lock.
    let queue = open(&beside.point, "queue").map_err(Error::io("open"))?;
    flock(&queue, FlockOperation::LockExclusive).map_err(|e| Error::io("lock")(e.into()))?;
    let changes = AtomicU32::new(0);
    let waits = AtomicBool::new(false);
    thread::scope(|scope| {
        let (point, changes, waits) = (&point, &changes, &waits);
        let holder = hold(point);
        scope.spawn(move || {
            waits.store(true, Ordering::SeqCst);
            open(point, "queue").and_then(|file| Ok(flock(&file, FlockOperation::LockExclusive)?)).is_ok()
        });
        // This thread ends when the mount is dead.
        scope.spawn(move || while change(point, changes.fetch_add(1, Ordering::SeqCst)).is_ok() {});
        let busy = time_until(NEVER, || waits.load(Ordering::SeqCst) && changes.load(Ordering::SeqCst) > 10);
        let killed = victim.kill();
        drop(holder?);
        busy.ok_or_else(|| Error::Wrong("the mount made no changes before it was killed".into()))?;
        killed
    })?;

    let got = |name: &str| {
        let file = open(&beside.point, name)?;
        match name {
            "ranges" => fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?,
            _ => flock(&file, FlockOperation::NonBlockingLockExclusive)?,
        }
        io::Result::Ok(())
    };
    flock(&queue, FlockOperation::Unlock).map_err(|e| Error::io("unlock")(e.into()))?;
    let free =
        time_until(FREE_WITHIN, || ["contested", "ranges", "queue"].iter().all(|name| got(name).is_ok()));
    fs::remove_dir_all(&dir).map_err(Error::io("removing what a killed mount had"))?;
    Ok(free)
}

/// Takes locks and opens an unlinked file. They are released when the returned files are dropped.
fn hold(point: &Path) -> Result<[File; 3]> {
    let taken = || {
        let contested = open(point, "contested")?;
        flock(&contested, FlockOperation::LockExclusive)?;
        let ranges = open(point, "ranges")?;
        fcntl_lock(&ranges, FlockOperation::LockExclusive)?;
        let path = point.join("victim/unlinked");
        let mut unlinked = File::create_new(&path)?;
        let mut bytes = vec![0; UNLINKED];
        content::fill(1, 0, &mut bytes);
        unlinked.write_all(&bytes)?;
        fs::remove_file(path)?;
        Ok([contested, ranges, unlinked])
    };
    taken().map_err(Error::io("what a mount has when it is killed"))
}

/// Changes names and bytes, and reads directories that others change, so that this mount gets
/// recalls.
fn change(point: &Path, number: u32) -> io::Result<()> {
    let path = point.join(format!("victim/{}", number % 16));
    fs::write(&path, vec![1; 10_000])?;
    fs::rename(&path, point.join("victim/renamed"))?;
    for user in ["user1", "user2"] {
        for entry in fs::read_dir(point.join(user))? {
            // Its user may have removed the file.
            match fs::metadata(entry?.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

fn open(point: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(point.join(name))
}

/// Free resources of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Free {
    blocks: u64,
    inodes: u64,
}

fn free(point: &Path) -> Result<Free> {
    let found = rustix::fs::statvfs(point).map_err(|e| Error::io("statvfs")(e.into()))?;
    Ok(Free { blocks: found.f_bfree, inodes: found.f_ffree })
}

fn empty(point: &Path) -> Result<()> {
    let entries: io::Result<Vec<PathBuf>> =
        fs::read_dir(point).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    for path in entries.map_err(Error::io("listing"))? {
        match path.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
        .map_err(Error::io("removing"))?;
    }
    Ok(())
}
