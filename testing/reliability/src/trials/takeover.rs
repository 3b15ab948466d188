//! Kills and replaces the programs of mounts that outlive them, while the mounts are used. No
//! operation may fail, be lost, or be done twice.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use measure::process::{Guarded, Invocation};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};

use crate::{
    error::{Error, Result},
    report::Report,
    testbed::{Host, Mount, Plan, Testbed, stuck, time_until},
    users::{SharedDir, Tally, User, content, counted},
};

/// Number of mounts, and of users of each.
const MOUNTS: usize = 2;
const USERS: usize = 2;
/// Limit for the longest operation.
const MAX_LATENCY: Duration = Duration::from_secs(2);
/// Limit for the time in which no program answers.
const MAX_DOWNTIME: Duration = Duration::from_secs(1);
/// Trials with fewer kills and upgrades run beside other steps of `ci/test`, which delay programs.
const LONG_TRIAL: u32 = 50;
/// Time after which a next program is no longer waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest random pause between two kills, beyond the shortest one.
const PAUSE: Duration = Duration::from_millis(800);
const MIN_PAUSE: Duration = Duration::from_millis(550);
/// Length of an appended record: the numbers of the appender and of the record.
const RECORD: usize = 16;
/// Length of the unlinked file in bytes.
const UNLINKED: usize = 3 << 20;

/// Kills programs `kills` times, and replaces them `upgrades` times.
pub(crate) fn run(plan: &Plan, kills: u32, upgrades: u32) -> Result<Report> {
    let mut testbed = Testbed::start(plan)?;
    let options = ["--takeover".to_owned()];
    let mounts = (0..MOUNTS).map(|_| testbed.mount_at(Host::Server, &options)).collect::<Result<Vec<_>>>()?;
    let count = MOUNTS * USERS;
    let shared: Arc<[SharedDir]> = (0..count as u64)
        .map(|id| SharedDir::new(&mounts[id as usize % MOUNTS].point, id))
        .collect::<Result<Vec<_>>>()?
        .into();
    let users = (0..count)
        .map(|at| {
            let user = User::new(&mounts[at % MOUNTS].point, at as u64 + 1)?;
            Ok(user.with_shared_dirs(&shared, at))
        })
        .collect::<Result<Vec<_>>>()?;
    let held = mounts.iter().map(|mount| Held::take(&mount.point)).collect::<Result<Vec<_>>>()?;
    let stop = AtomicBool::new(false);
    let (done, tally, appended) = thread::scope(|scope| {
        let stop = &stop;
        let users: Vec<_> =
            users.into_iter().map(|user| scope.spawn(move || user.run(stop, |_| {}))).collect();
        let appenders: Vec<_> = (0..count)
            .map(|at| {
                let point = mounts[at % MOUNTS].point.clone();
                scope.spawn(move || append(&point, at as u64, stop))
            })
            .collect();
        let done = fault_all(plan, &mounts, (kills, upgrades));
        stop.store(true, Ordering::Relaxed);
        let mut all = Tally::default();
        users.into_iter().filter_map(|user| user.join().ok()).for_each(|tally| all.add(&tally));
        let mut appended = Vec::new();
        for appender in appenders {
            if let Ok((tally, records)) = appender.join() {
                all.add(&tally);
                appended.push(records);
            }
        }
        (done, all, appended)
    });
    let unserved = done?;
    let title =
        format!("programs of mounts over {} killed {kills} times, replaced {upgrades} times", plan.provider);
    let mut report = Report::new(title);
    report_users(&mut report, &mounts, &tally);
    let found = format!("{} ms", unserved.as_millis());
    let limit = if kills + upgrades < LONG_TRIAL { MAX_LATENCY } else { MAX_DOWNTIME };
    let wanted = format!("within {} s", limit.as_secs());
    report.check("first reply of the next program after, at most", found, &wanted, unserved <= limit);
    let counted = counted(&mounts[0].point)?;
    let lost = tally.counted.abs_diff(counted);
    report.check("counted under a lock, and lost", format!("{counted}, {lost}"), "none lost", lost == 0);
    let (records, wrong) = check_appended(&mounts[0].point, &appended)?;
    report.check("appended records, and lost or twice", format!("{records}, {wrong}"), "none", wrong == 0);
    let kept = held.iter().zip(&mounts).map(|(held, mount)| held.check(&mount.point));
    let broken: Vec<String> = kept.filter_map(|outcome| outcome.err().map(|e| e.to_string())).collect();
    report.check("locks and files held all the time", broken.join("; "), "intact", broken.is_empty());
    drop(held);
    let processes: Vec<u32> = mounts.iter().filter_map(|mount| serving(mount.process())).collect();
    let stuck = stuck(&processes);
    report.check("threads that no signal reaches", stuck.len(), "none", stuck.is_empty());
    mounts.into_iter().try_for_each(Mount::unmount)?;
    testbed.stop()?;
    Ok(report)
}

/// Adds the results of the users and appenders to a report.
fn report_users(report: &mut Report, mounts: &[Mount], tally: &Tally) {
    report.note("operations", tally.operations);
    report.check("errors", tally.errors, "none", tally.errors == 0);
    tally.texts.iter().for_each(|text| report.note("error", text));
    if tally.errors > 0 {
        mounts.iter().for_each(|mount| eprintln!("{}:\n    {}", mount.point.display(), mount.last_words()));
    }
    let (longest, operation) = tally.longest;
    let found = format!("{} ms, {operation}", longest.as_millis());
    report.check("longest operation", found, "within 2 s", longest <= MAX_LATENCY);
}

/// Returns the error of a mount without a program, with the last lines of its log.
fn without_program(verb: &str, mount: &Mount) -> Error {
    let (point, words) = (mount.point.display(), mount.last_words());
    Error::Wrong(format!("{point}: no program {verb}:\n    {words}"))
}

/// Kills and replaces programs. Returns the longest time from the end of a program until the first
/// reply of the next one.
fn fault_all(plan: &Plan, mounts: &[Mount], (kills, upgrades): (u32, u32)) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    let all = kills + upgrades;
    for number in 0..all {
        plan.interrupt.check()?;
        thread::sleep(MIN_PAUSE + fastrand::u32(..=PAUSE.as_micros() as u32) * Duration::from_micros(1));
        let mount = &mounts[fastrand::usize(..mounts.len())];
        // Upgrades are spread evenly over the kills.
        let is_upgrade = (number + 1) * upgrades / all > number * upgrades / all;
        longest = longest.max(fault(plan, mount, is_upgrade)?);
    }
    // The last program serves.
    thread::sleep(PAUSE);
    Ok(longest)
}

/// Kills or replaces the program of a mount. Returns the time from its end until the first reply of
/// the next one.
fn fault(plan: &Plan, mount: &Mount, is_upgrade: bool) -> Result<Duration> {
    let caretaker = mount.process();
    let before = serving(caretaker).ok_or_else(|| without_program("serves", mount))?;
    let upgrade = if is_upgrade {
        let command = Invocation::new(plan.bin_dir.join("rfs-fuse")).arg("upgrade").arg(&mount.point);
        let command = Guarded::spawn(&command, Path::new("/"))?;
        // The program serves until its caretaker has checked the next one.
        let ends = time_until(PATIENCE, || !is_child(before, caretaker));
        ends.map(|_| Some(command)).ok_or_else(|| without_program("is replaced", mount))?
    } else {
        None
    };
    let began = Instant::now();
    if !is_upgrade {
        let pid = Pid::from_raw(before as i32).ok_or_else(|| Error::Wrong("no process".into()))?;
        kill_process(pid, Signal::KILL).map_err(|e| Error::io("a signal")(e.into()))?;
    }
    let next = || serving(caretaker).is_some_and(|now| now != before);
    time_until(PATIENCE, next).ok_or_else(|| without_program("continues", mount))?;
    // The kernel does not know the name, so the next program answers.
    match mount.point.join(format!("unknown{}", fastrand::u64(..))).symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        found => return found.map_err(Error::io("look up")).and(Err(Error::Wrong("a new name".into()))),
    }
    let answered = began.elapsed();
    if let Some(mut command) = upgrade {
        command.wait_success(&plan.interrupt, PATIENCE, |_| {})?;
    }
    Ok(answered)
}

/// Returns true if a process is a child of another one, and its main thread has not ended.
fn is_child(pid: u32, parent: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, which may contain anything, then the state and the parent.
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    fields.next().is_some_and(|state| state != "Z" && state != "X")
        && fields.next().and_then(|found| found.parse().ok()) == Some(parent)
}

/// Returns the program that a caretaker has started.
fn serving(caretaker: u32) -> Option<u32> {
    let mut pids =
        fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.find(|pid| is_child(*pid, caretaker))
}

/// Appends records until `stop` is set. Returns the number of records.
fn append(point: &Path, id: u64, stop: &AtomicBool) -> (Tally, u64) {
    let mut tally = Tally::default();
    let count = AtomicU64::new(0);
    let mut run = || {
        let path = point.join("appended");
        let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(Error::io("open"))?;
        while !stop.load(Ordering::Relaxed) {
            let mut record = [0; RECORD];
            record[..8].copy_from_slice(&id.to_le_bytes());
            record[8..].copy_from_slice(&count.load(Ordering::Relaxed).to_le_bytes());
            tally.timed("append", || file.write_all(&record))?;
            count.fetch_add(1, Ordering::Relaxed);
            // Appends to one file would keep all other users waiting.
            thread::sleep(Duration::from_micros(300));
        }
        Result::Ok(())
    };
    if let Err(e) = run() {
        tally.error(&e, format!("appender {id}: {e}"));
    }
    (tally, count.into_inner())
}

/// Checks that each appended record is in the file once, in the order of its appender. Returns the
/// number of records, and of wrong ones.
fn check_appended(point: &Path, appended: &[u64]) -> Result<(u64, u64)> {
    let bytes = fs::read(point.join("appended")).map_err(Error::io("read"))?;
    let mut next = vec![0; appended.len()];
    let mut wrong = u64::from(!bytes.len().is_multiple_of(RECORD));
    for record in bytes.chunks_exact(RECORD) {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| record[at + byte]));
        match next.get_mut(number(0) as usize) {
            Some(expected) if *expected == number(8) => *expected += 1,
            _ => wrong += 1,
        }
    }
    wrong += next.iter().zip(appended).map(|(found, made)| found.abs_diff(*made)).sum::<u64>();
    Ok((appended.iter().sum(), wrong))
}

/// The state that a program holds over all takeovers: a lock, and an unlinked file.
#[derive(Debug)]
struct Held {
    locked: File,
    unlinked: File,
    path: PathBuf,
}

impl Held {
    fn take(point: &Path) -> Result<Held> {
        let take = || {
            let path = point.join(format!("held{}", fastrand::u64(..)));
            let locked = File::create_new(&path)?;
            flock(&locked, FlockOperation::LockExclusive)?;
            let gone = point.join("unlinked");
            let mut unlinked = OpenOptions::new().read(true).write(true).create_new(true).open(&gone)?;
            let mut bytes = vec![0; UNLINKED];
            content::fill(7, 0, &mut bytes);
            unlinked.write_all(&bytes)?;
            fs::remove_file(gone)?;
            io::Result::Ok(Held { locked, unlinked, path })
        };
        take().map_err(Error::io("what a program holds"))
    }

    fn check(&self, point: &Path) -> Result<()> {
        let mut bytes = Vec::new();
        let mut file = &self.unlinked;
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.read_to_end(&mut bytes))
            .map_err(Error::io("read"))?;
        if bytes.len() != UNLINKED || content::first_wrong(7, 0, &bytes).is_some() {
            return Err(Error::Wrong("the unlinked file has changed".into()));
        }
        let other =
            File::open(point.join(self.path.file_name().unwrap_or_default())).map_err(Error::io("open"))?;
        match flock(&other, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(e) => return Err(Error::io("flock")(e.into())),
            Ok(()) => return Err(Error::Wrong("the lock is lost".into())),
        }
        flock(&self.locked, FlockOperation::Unlock).map_err(|e| Error::io("unlock")(e.into()))?;
        flock(&other, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Wrong("the lock stays after its release".into()))
    }
}
