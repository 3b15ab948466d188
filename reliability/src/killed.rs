//! Mounts that are killed while they have locks, wait for one, have an unlinked file open, and change names: what they had is free
//! soon, and whoever uses another mount meanwhile sees nothing of it.

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
    Error, Result, content,
    memory::{Memory, growth},
    report::Report,
    stand::{Mount, Plan, Stand, time_until},
    user::{Tally, User, counted},
};

/// Locks have to be free within this.
const FREE_WITHIN: Duration = Duration::from_secs(10);
/// Something that should come at once has not come at all after this.
const NEVER: Duration = Duration::from_secs(60);
/// Mounts that are killed before the server's memory counts: it has grown to what it needs by then.
const FIRST: u32 = 5;
/// How much the server's memory may change, in percent.
const SAME: f64 = 1.0;
/// Bytes of a file that has no name any more.
const UNLINKED: usize = 8 << 20;

/// Kills so many mounts, one after the other.
pub(crate) fn run(plan: &Plan, times: u32) -> Result<Report> {
    let mut stand = Stand::start(plan)?;
    let beside = stand.mount()?;
    let before = free(&beside.point)?;
    let names = ["contested", "ranges", "queue"];
    names.iter().try_for_each(|name| fs::write(beside.point.join(name), b"")).map_err(Error::io("files"))?;
    let users = (1..=2).map(|id| User::new(&beside.point, id)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let (killed, tally) = thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.use_it(&stop, |_| {}))).collect();
        let killed = kill_all(&mut stand, &beside, plan, times);
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
    stand.stop()?;
    Ok(report)
}

/// What came of all kills.
struct Killed {
    /// The longest time until a lock was free; `None` if one never was.
    longest: Option<Duration>,
    /// The server's memory after the first ones, and after each quarter of the rest.
    memory: [Memory; 5],
}

fn kill_all(stand: &mut Stand<'_>, beside: &Mount, plan: &Plan, times: u32) -> Result<Killed> {
    let mut longest = Some(Duration::ZERO);
    let mut memory = [Memory::default(); 5];
    for (quarter, memory) in (0..).zip(&mut memory) {
        let count = if quarter == 0 { FIRST } else { times * quarter / 4 - times * (quarter - 1) / 4 };
        for _ in 0..count {
            plan.interrupt.check()?;
            // Who waits once for ever is not asked again.
            if let Some(before) = longest {
                longest = kill_one(stand, beside)?.map(|time| before.max(time));
            }
        }
        *memory = stand.memory()?;
    }
    Ok(Killed { longest, memory })
}

/// Kills one: how long it took until all of its locks were free, `None` if one never was.
fn kill_one(stand: &mut Stand<'_>, beside: &Mount) -> Result<Option<Duration>> {
    let mut victim = stand.mount()?;
    let (dir, point) = (beside.point.join("victim"), victim.point.clone());
    fs::create_dir(&dir).map_err(Error::io("mkdir"))?;
    // Somebody of the victim's waits for this one.
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
        // Until the mount is dead.
        scope.spawn(move || while change(point, changes.fetch_add(1, Ordering::SeqCst)).is_ok() {});
        let busy = time_until(NEVER, || waits.load(Ordering::SeqCst) && changes.load(Ordering::SeqCst) > 10);
        let killed = victim.kill();
        drop(holder?);
        busy.ok_or_else(|| Error::Wrong("a mount does not get to change anything".into()))?;
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

/// Takes locks and has an unlinked file open, until what it gives is dropped.
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

/// Changes names and bytes, and looks at what others change, so that it is told of that.
fn change(point: &Path, number: u32) -> io::Result<()> {
    let path = point.join(format!("victim/{}", number % 16));
    fs::write(&path, vec![1; 10_000])?;
    fs::rename(&path, point.join("victim/renamed"))?;
    for user in ["user1", "user2"] {
        for entry in fs::read_dir(point.join(user))? {
            // It may be gone by now.
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

/// What nobody has.
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
