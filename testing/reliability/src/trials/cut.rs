//! Cuts a mount off from the network for longer than its lease.
//!
//! Writers must get an error in time, and nothing may hang. The locks and files of the mount go to
//! others, and no old write may arrive later. The mount must work again when the network is back.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Host, Mount, Network, Plan, Testbed, stuck, time_until},
    users::content,
};

/// Default lease of a server.
const LEASE: Duration = Duration::from_secs(20);
/// Allowed delay after the lease.
const AFTER: Duration = Duration::from_secs(5);
/// Limit for operations that need no reply from a server.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Time after which an awaited event counts as missing.
const NEVER: Duration = Duration::from_secs(120);
/// Limit for the mount to work again after the network is back.
const WORKS_WITHIN: Duration = Duration::from_secs(5);
/// Length in bytes of a file that several threads write to.
const LEN: u64 = 8 << 20;
/// Length of a write in bytes.
const PIECE: usize = 64 << 10;
/// Number of writers on the mount that is cut off.
const WRITERS: u64 = 4;
/// Stream of these writers, and stream of the writers that come after them.
const OLD: u64 = 1;
const NEW: u64 = 2;

/// Measurements of one cut.
#[derive(Debug, Default)]
struct Found {
    /// Time from the cut until the last writer got its error.
    told: Duration,
    /// Duration of the longest `stat`.
    stat: Duration,
    /// Time from the start of `fusermount3 -u` until the mount's process ended.
    unmounted: Duration,
    /// Time from SIGKILL of a program that is blocked in a write until its end.
    program_killed: Duration,
    /// Time from SIGKILL of a mount until its blocked program got an error.
    mount_killed: Duration,
    /// Time from the cut until another mount got the lock of the mount that is cut off.
    lock: Duration,
    /// Time from the end of the cut until the mount worked again.
    works_again: Duration,
    /// Number of bytes that are not from the last writer.
    late: u64,
    /// Number of bytes that were checked.
    checked: u64,
    /// Threads that are stuck in an uninterruptible wait.
    stuck: Vec<String>,
}

impl Found {
    /// Merges two measurements. Keeps the worse values.
    fn and(self, other: Found) -> Found {
        Found {
            told: self.told.max(other.told),
            stat: self.stat.max(other.stat),
            unmounted: self.unmounted.max(other.unmounted),
            program_killed: self.program_killed.max(other.program_killed),
            mount_killed: self.mount_killed.max(other.mount_killed),
            lock: self.lock.max(other.lock),
            works_again: self.works_again.max(other.works_again),
            late: self.late + other.late,
            checked: self.checked + other.checked,
            stuck: self.stuck.into_iter().chain(other.stuck).collect(),
        }
    }
}

/// Cuts `times` times, with the given lease or the default lease of the server.
pub(crate) fn run(plan: &Plan, times: u32, lease: Option<Duration>) -> Result<Report> {
    let network = Network::make()?;
    let mut all = Found::default();
    for number in 1..=times {
        let found = cut(plan, &network, lease)?;
        println!("{number}: {found:?}");
        all = all.and(found);
    }
    let lease = lease.unwrap_or(LEASE);
    let limit = lease + AFTER;
    let within = format!("within {} s", limit.as_secs());
    let mut report = Report::new(format!("{times} cuts for {} s", time(lease).as_secs()));
    let mut check = |what: &str, found: Duration, required: &str, limit: Duration| {
        report.check(what, format!("{:.1} s", found.as_secs_f64()), required, found <= limit);
    };
    check("writers were told after", all.told, &within, limit);
    check("a stat took", all.stat, &within, limit);
    check("a killed program ended after", all.program_killed, &within, limit);
    check("another mount got the lock after", all.lock, &within, limit);
    check("fusermount3 -u took", all.unmounted, "within 2 s", AT_ONCE);
    check("programs of a killed mount were told after", all.mount_killed, "within 2 s", AT_ONCE);
    check("of use again, when the network was, after", all.works_again, "within 5 s", WORKS_WITHIN);
    let found = format!("{} of {}", all.late, all.checked);
    report.check("bytes of before where others had written since", found, "none", all.late == 0);
    report.check("threads that no signal reaches", all.stuck.len(), "none", all.stuck.is_empty());
    all.stuck.iter().for_each(|thread| report.note("stuck", thread));
    Ok(report)
}

/// Returns the duration of a cut.
fn time(lease: Duration) -> Duration {
    lease + AFTER
}

fn cut(plan: &Plan, network: &Network, lease: Option<Duration>) -> Result<Found> {
    // An open that conflicts with the cache of the disconnected mount waits for a recall. The
    // client's timeout must exceed the recall timeout of the server, as the defaults do.
    let server = lease.map_or_else(Vec::new, |lease| {
        [seconds("--lease", lease), seconds("--recall-timeout", lease / 4)].concat()
    });
    let fuse = lease.map_or_else(Vec::new, |lease| seconds("--timeout", lease / 2));
    let time = time(lease.unwrap_or(LEASE));
    let mut testbed = Testbed::start_at(plan, network, &server)?;
    let near = testbed.mount_at(Host::Server, &fuse)?;
    let far = testbed.mount_at(Host::Client, &fuse)?;
    let idle = testbed.mount_at(Host::Client, &fuse)?;
    let mut killed = testbed.mount_at(Host::Client, &fuse)?;
    let locked = make(&far.point, "locked")?;
    flock(&locked, FlockOperation::LockExclusive).map_err(|e| Error::io("lock")(e.into()))?;
    let unlinked = make(&far.point, "unlinked")?;
    fs::remove_file(far.point.join("unlinked")).map_err(Error::io("unlink"))?;
    let waits = make(&killed.point, "waits")?;
    let begun = AtomicU64::new(0);
    let mut found = Found::default();
    thread::scope(|scope| {
        let (begun, point) = (&begun, &far.point);
        let files = [&locked, &unlinked];
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| scope.spawn(move || write(files[number as usize % 2], begun)))
            .collect();
        let waits = scope.spawn(|| write(&waits, begun));
        let busy = time_until(NEVER, || begun.load(Ordering::Relaxed) > 100);
        let cut = testbed.run(&network.losing(100)).map(|()| Instant::now());
        let stats = scope.spawn(move || stat_repeatedly(point, time));
        let outcome = cut.and_then(|cut| {
            busy.ok_or_else(|| Error::Wrong("the writers made no progress before the cut".into()))?;
            let dead = while_cut(&mut testbed, (&far, &near), (idle, &mut killed), cut, &mut found)?;
            thread::sleep((cut + time).saturating_duration_since(Instant::now()));
            Ok((cut, dead))
        });
        testbed.run(&network.healing())?;
        let healed = Instant::now();
        // mkdir works without free space, and there is none.
        let mut last = None;
        let works_again = time_until(NEVER, || {
            let made = fs::create_dir(far.point.join("again"));
            last = made.err().filter(|e| e.kind() != io::ErrorKind::AlreadyExists);
            last.is_none()
        });
        found.works_again = works_again.ok_or_else(|| {
            let last = last.map_or_else(String::new, |e| e.to_string());
            Error::Wrong(format!("the mount does not work again: {last}; its output: {}", far.last_words()))
        })?;
        let ended = |writer: thread::ScopedJoinHandle<'_, Instant>| writer.join().unwrap_or(healed);
        let (cut, dead) = outcome?;
        found.told = writers.into_iter().map(ended).max().unwrap_or(healed).saturating_duration_since(cut);
        found.mount_killed = ended(waits).saturating_duration_since(dead);
        found.stat = stats.join().unwrap_or(NEVER);
        Ok::<_, Error>(())
    })?;
    drop((locked, unlinked, waits));
    let last = testbed.mount_at(Host::Server, &fuse)?;
    count_late_bytes(&last, &far, &mut found)?;
    let processes = [far.process(), near.process(), last.process(), testbed.server(), std::process::id()];
    found.stuck = stuck(&processes);
    [far, near, last].into_iter().try_for_each(Mount::unmount)?;
    drop(killed);
    testbed.stop()?;
    Ok(found)
}

/// Counts bytes of the old writers in files that others have written since. Neither mount has
/// cached the files that it reads here, so it reads the bytes of the server.
fn count_late_bytes(last: &Mount, far: &Mount, found: &mut Found) -> Result<()> {
    for path in [last.point.join("locked"), last.point.join("filler"), far.point.join("locked")] {
        let bytes = fs::read(path).map_err(Error::io("reading what was written"))?;
        found.checked += bytes.len() as u64;
        found.late += content::wrong(NEW, 0, &bytes);
    }
    Ok(())
}

/// Runs all tests that need the cut. Returns the time at which a mount was killed.
fn while_cut(
    testbed: &mut Testbed<'_>,
    (far, near): (&Mount, &Mount),
    (idle, killed): (Mount, &mut Mount),
    cut: Instant,
    found: &mut Found,
) -> Result<Instant> {
    // This program is killed while it is blocked in a write.
    let written = far.point.join("program").display().to_string();
    testbed.run(&format!("dd if=/dev/zero of='{written}' bs=64k count=1000 2>dd.log & killed=$!"))?;
    let began = Instant::now();
    idle.unmount_by(testbed)?;
    found.unmounted = began.elapsed();
    let began = Instant::now();
    testbed.run("kill -KILL $killed")?;
    let dead = Instant::now();
    killed.kill()?;
    testbed.run("wait $killed || true")?;
    found.program_killed = began.elapsed();

    let path = near.point.join("locked");
    let taken = OpenOptions::new().read(true).write(true).open(&path).map_err(Error::io("open"))?;
    let got = time_until(NEVER, || flock(&taken, FlockOperation::NonBlockingLockExclusive).is_ok());
    got.ok_or_else(|| Error::Wrong("the lock of the disconnected mount is never released".into()))?;
    found.lock = cut.elapsed();
    // Overwrite everything that the disconnected mount had: the locked file, and all free space,
    // which includes the space of its unlinked file.
    fill(&taken, LEN).map_err(Error::io("writing what another mount had locked"))?;
    let filler = File::create_new(near.point.join("filler")).map_err(Error::io("create"))?;
    match fill(&filler, u64::MAX) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => Ok(dead),
        other => other.map(|()| dead).map_err(Error::io("writing what another mount had")),
    }
}

/// Creates a file with all of its space allocated.
fn make(point: &Path, name: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(point.join(name));
    let file = file.map_err(Error::io("create"))?;
    file.write_all_at(&vec![0; LEN as usize], 0).map_err(Error::io("write"))?;
    Ok(file)
}

/// Writes random pieces of a file until a write fails. Returns the time of the failure.
fn write(file: &File, begun: &AtomicU64) -> Instant {
    let mut bytes = vec![0; PIECE];
    loop {
        let at = fastrand::u64(..LEN / PIECE as u64) * PIECE as u64;
        content::fill(OLD, at, &mut bytes);
        begun.fetch_add(1, Ordering::Relaxed);
        if file.write_all_at(&bytes, at).is_err() {
            return Instant::now();
        }
    }
}

/// Writes a file from its beginning until it has `len` bytes or a write fails.
fn fill(file: &File, len: u64) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        content::fill(NEW, at, &mut bytes);
        at += file.write_at(&bytes, at)? as u64;
    }
    Ok(())
}

/// Calls `stat` with new names for `time`. Returns the longest duration of a call.
fn stat_repeatedly(point: &Path, time: Duration) -> Duration {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let mut number = 0;
    while began.elapsed() < time {
        number += 1;
        let asked = Instant::now();
        // Success and any error are both fine; only the duration counts.
        let _ = fs::symlink_metadata(point.join(format!("asked{number}")));
        longest = longest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    longest
}

fn seconds(option: &str, time: Duration) -> Vec<String> {
    vec![option.to_owned(), time.as_secs().to_string()]
}
