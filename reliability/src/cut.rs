//! A mount that is cut off for longer than its lease: whoever uses it is told in time, nothing hangs, what it had goes to others,
//! nothing that it wrote arrives late, and it is of use again when the network is there.

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
    Error, Result, content,
    network::{Host, Network},
    processes::stuck,
    report::Report,
    stand::{Mount, Plan, Stand, time_until},
};

/// A server's lease, unless it is told another one.
const LEASE: Duration = Duration::from_secs(20);
/// What nobody waits for longer than the lease.
const AFTER: Duration = Duration::from_secs(5);
/// What asks no server has to come to an end within this.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Something that should come has not come at all after this.
const NEVER: Duration = Duration::from_secs(120);
/// A mount has to be of use within this when the network is there again.
const AGAIN: Duration = Duration::from_secs(5);
/// Bytes of a file that several write to.
const LEN: u64 = 8 << 20;
/// Bytes of a write.
const PIECE: usize = 64 << 10;
/// Who writes, on the mount that is cut off.
const WRITERS: u64 = 4;
/// The bytes that he writes, and those of who comes after.
const OLD: u64 = 1;
const NEW: u64 = 2;

/// What one cut has shown.
#[derive(Debug, Default)]
struct Found {
    /// From the cut until the last of the writers was told.
    told: Duration,
    /// The longest `stat`.
    stat: Duration,
    /// From the beginning of `fusermount3 -u` until the mount's process had ended.
    unmounted: Duration,
    /// From SIGKILL of a program that waits for a write until its end.
    program_killed: Duration,
    /// From SIGKILL of a mount until the program that waits for it was told.
    mount_killed: Duration,
    /// From the cut until another mount got its lock.
    lock: Duration,
    /// From the end of the cut until the mount was of use.
    again: Duration,
    /// Bytes that are not those of who wrote last.
    late: u64,
    /// Bytes that were looked at.
    looked_at: u64,
    /// Threads that no signal reaches.
    stuck: Vec<String>,
}

impl Found {
    /// The worse of two.
    fn and(self, other: Found) -> Found {
        Found {
            told: self.told.max(other.told),
            stat: self.stat.max(other.stat),
            unmounted: self.unmounted.max(other.unmounted),
            program_killed: self.program_killed.max(other.program_killed),
            mount_killed: self.mount_killed.max(other.mount_killed),
            lock: self.lock.max(other.lock),
            again: self.again.max(other.again),
            late: self.late + other.late,
            looked_at: self.looked_at + other.looked_at,
            stuck: self.stuck.into_iter().chain(other.stuck).collect(),
        }
    }
}

/// Cuts so many times, with a server that has this lease, or the one that servers have.
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
    check("of use again, when the network was, after", all.again, "within 5 s", AGAIN);
    let found = format!("{} of {}", all.late, all.looked_at);
    report.check("bytes of before where others had written since", found, "none", all.late == 0);
    report.check("threads that no signal reaches", all.stuck.len(), "none", all.stuck.is_empty());
    all.stuck.iter().for_each(|thread| report.note("stuck", thread));
    Ok(report)
}

/// How long a cut lasts.
fn time(lease: Duration) -> Duration {
    lease + AFTER
}

fn cut(plan: &Plan, network: &Network, lease: Option<Duration>) -> Result<Found> {
    // Whoever opens what the mount that is cut off keeps waits for its answer, and must be willing to wait for longer than the server is:
    // that is so with what both have if nothing is said, too.
    let server = lease.map_or_else(Vec::new, |lease| {
        [seconds("--lease", lease), seconds("--recall-timeout", lease / 4)].concat()
    });
    let fuse = lease.map_or_else(Vec::new, |lease| seconds("--timeout", lease / 2));
    let time = time(lease.unwrap_or(LEASE));
    let mut stand = Stand::start_at(plan, network, &server)?;
    let near = stand.mount_at(Host::Server, &fuse)?;
    let far = stand.mount_at(Host::Client, &fuse)?;
    let idle = stand.mount_at(Host::Client, &fuse)?;
    let mut killed = stand.mount_at(Host::Client, &fuse)?;
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
        let cut = stand.run(&network.losing(100)).map(|()| Instant::now());
        let looks = scope.spawn(move || look(point, time));
        let outcome = cut.and_then(|cut| {
            busy.ok_or_else(|| Error::Wrong("a mount does not get to write".into()))?;
            let dead = while_cut(&mut stand, (&far, &near), (idle, &mut killed), cut, &mut found)?;
            thread::sleep((cut + time).saturating_duration_since(Instant::now()));
            Ok((cut, dead))
        });
        stand.run(&network.healing())?;
        let healed = Instant::now();
        // It needs no space: there is none.
        let mut last = None;
        let again = time_until(NEVER, || {
            let made = fs::create_dir(far.point.join("again"));
            last = made.err().filter(|e| e.kind() != io::ErrorKind::AlreadyExists);
            last.is_none()
        });
        found.again = again.ok_or_else(|| {
            let last = last.map_or_else(String::new, |e| e.to_string());
            Error::Wrong(format!("a mount is of no use any more: {last}; it says {}", far.last_words()))
        })?;
        let ended = |writer: thread::ScopedJoinHandle<'_, Instant>| writer.join().unwrap_or(healed);
        let (cut, dead) = outcome?;
        found.told = writers.into_iter().map(ended).max().unwrap_or(healed).saturating_duration_since(cut);
        found.mount_killed = ended(waits).saturating_duration_since(dead);
        found.stat = looks.join().unwrap_or(NEVER);
        Ok::<_, Error>(())
    })?;
    drop((locked, unlinked, waits));
    // Through mounts that have none of it yet: what is seen is the server's.
    let last = stand.mount_at(Host::Server, &fuse)?;
    for path in [last.point.join("locked"), last.point.join("filler"), far.point.join("locked")] {
        let bytes = fs::read(path).map_err(Error::io("reading what was written"))?;
        found.looked_at += bytes.len() as u64;
        found.late += content::wrong(NEW, 0, &bytes);
    }
    let processes = [far.process(), near.process(), last.process(), stand.server(), std::process::id()];
    found.stuck = stuck(&processes);
    [far, near, last].into_iter().try_for_each(Mount::unmount)?;
    drop(killed);
    stand.stop()?;
    Ok(found)
}

/// All that is tried while the network is cut. When a mount was killed.
fn while_cut(
    stand: &mut Stand<'_>,
    (far, near): (&Mount, &Mount),
    (idle, killed): (Mount, &mut Mount),
    cut: Instant,
    found: &mut Found,
) -> Result<Instant> {
    // A program that waits for its write, and is killed.
    let written = far.point.join("program").display().to_string();
    stand.run(&format!("dd if=/dev/zero of='{written}' bs=64k count=1000 2>dd.log & killed=$!"))?;
    let began = Instant::now();
    idle.unmount_by(stand)?;
    found.unmounted = began.elapsed();
    let began = Instant::now();
    stand.run("kill -KILL $killed")?;
    let dead = Instant::now();
    killed.kill()?;
    stand.run("wait $killed || true")?;
    found.program_killed = began.elapsed();

    let path = near.point.join("locked");
    let taken = OpenOptions::new().read(true).write(true).open(&path).map_err(Error::io("open"))?;
    let got = time_until(NEVER, || flock(&taken, FlockOperation::NonBlockingLockExclusive).is_ok());
    got.ok_or_else(|| Error::Wrong("the lock of a mount that is cut off is never free".into()))?;
    found.lock = cut.elapsed();
    // All that it had is written by others: the file that it had locked, and with all other space that of the one that it had open.
    fill(&taken, LEN).map_err(Error::io("writing what another mount had locked"))?;
    let filler = File::create_new(near.point.join("filler")).map_err(Error::io("create"))?;
    match fill(&filler, u64::MAX) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => Ok(dead),
        other => other.map(|()| dead).map_err(Error::io("writing what another mount had")),
    }
}

/// A file that has all its space.
fn make(point: &Path, name: &str) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(point.join(name));
    let file = file.map_err(Error::io("create"))?;
    file.write_all_at(&vec![0; LEN as usize], 0).map_err(Error::io("write"))?;
    Ok(file)
}

/// Writes all over a file until that fails. When it did.
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

/// Writes a file from its beginning, as long as it is to be, or until that fails.
fn fill(file: &File, len: u64) -> io::Result<()> {
    let mut bytes = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        content::fill(NEW, at, &mut bytes);
        at += file.write_at(&bytes, at)? as u64;
    }
    Ok(())
}

/// Asks for names that nobody has asked for, for so long. The longest that it took, whatever came of it.
fn look(point: &Path, time: Duration) -> Duration {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let mut number = 0;
    while began.elapsed() < time {
        number += 1;
        let asked = Instant::now();
        // What is not there is an answer, too.
        let _ = fs::symlink_metadata(point.join(format!("asked{number}")));
        longest = longest.max(asked.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
    longest
}

fn seconds(option: &str, time: Duration) -> Vec<String> {
    vec![option.to_owned(), time.as_secs().to_string()]
}
