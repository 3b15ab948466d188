//! A server that is killed while its mounts are used, and started again with the memory that it had: all that was acknowledged is
//! there, and the mounts go on, each seeing what the others have done. Some of those that are started are killed, too, while they take over or soon after. At the end everything is
//! looked at once more, by a mount that has seen nothing of it. Where the server makes snapshots it is killed in the middle of them, too, and
//! at last its memory is lost: what stayed as it was all the while has to come back, and of all else each file with bytes of its own.

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

use rdmabox::size;
use rustix::{
    fs::{FlockOperation, flock},
    process::Signal,
};

use crate::{
    Error, Result,
    bulk::Bulk,
    report::Report,
    shelf::Shelf,
    stand::{Besides, Mount, Plan, Stand, time_until},
    user::{Tally, User, counted},
};

/// It has to serve again within this.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Something that should come soon has not come at all after this.
const NEVER: Duration = Duration::from_secs(60);
/// Longest time between serving again and the next kill.
const LONGEST: Duration = Duration::from_millis(400);
/// One in so many is followed by another one.
const AGAIN: u32 = 4;
/// Longest time between the beginning of a server and its end then: most take over in less.
const SOON: Duration = Duration::from_millis(60);
/// One in so many bytes of memory stays as it is all the while.
const BULK: u64 = 4;
/// Before one in so many a snapshot is made as a whole; others may all be cut short.
const WHOLE: u32 = 4;
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
pub(crate) fn run(plan: &Plan, times: u32, does: Besides) -> Result<Report> {
    let mut stand = Stand::start_kept(plan, does)?;
    let mounts = (0..MOUNTS).map(|_| stand.mount()).collect::<Result<Vec<_>>>()?;
    let shelves: Arc<[Shelf]> =
        (1..).zip(&mounts).map(|(id, mount)| Shelf::new(&mount.point, id)).collect::<Result<_>>()?;
    let user =
        |(at, mount): (usize, &Mount)| Ok(User::new(&mount.point, at as u64 + 1)?.with_shelf(&shelves, at));
    let users = mounts.iter().enumerate().map(user).collect::<Result<Vec<_>>>()?;
    let (beside, holding) = (stand.mount()?, stand.mount()?);
    let holder = Holder::new(&holding.point)?;
    let bulk = Bulk::write(&beside.point, plan.memory / BULK)?;
    let (mut lost, mut killed_soon, mut torn) = (Vec::new(), 0_u32, 0_u32);
    let stop = AtomicBool::new(false);
    let mut random = fastrand::Rng::new();
    let (killed, mut users) = thread::scope(|scope| {
        let running: Vec<_> =
            users.into_iter().map(|user| scope.spawn(|| user.use_it_for_now(&stop, |_| {}))).collect();
        let probe = beside.point.join("probe");
        let mut kill_one = |number: u32, longest: Option<Duration>| -> Result<Option<Duration>> {
            plan.interrupt.check()?;
            let mut up_to =
                |longest: Duration| random.u32(..=longest.as_micros() as u32) * Duration::from_micros(1);
            thread::sleep(up_to(LONGEST));
            let soon = up_to(SOON);
            if does.persist {
                if number.is_multiple_of(WHOLE) {
                    await_snapshot(&stand)?;
                }
                // It is under way then, or nearly over.
                stand.signal_server(Signal::USR1)?;
                thread::sleep(up_to(SOON));
            }
            match random.u32(..AGAIN) {
                0 => {
                    killed_soon += 1;
                    stand.kill_two_servers(soon)?;
                }
                _ => stand.kill_server()?,
            }
            torn += u32::from(does.persist && stand.snapshots()?.1);
            let began = Instant::now();
            stand.serve_again()?;
            let serves =
                time_until(NEVER, || fs::write(&probe, b"x").is_ok() && fs::remove_file(&probe).is_ok());
            let found = holder.has_all(&beside.point);
            let found = found.and_then(|()| bulk.look_somewhere(&beside.point, &mut random));
            lost.extend(found.err().map(|e| e.to_string()));
            Ok(longest.zip(serves).map(|(longest, _)| longest.max(began.elapsed())))
        };
        let killed = (0..times).try_fold(Some(Duration::ZERO), |longest, number| kill_one(number, longest));
        // Each has to come to an end with what he is doing.
        thread::sleep(LONGEST);
        stop.store(true, Ordering::Relaxed);
        let users: Vec<User> = running.into_iter().filter_map(|user| user.join().ok()).collect();
        (killed, users)
    });
    let longest = killed?;
    let count = counted(&beside.point)?;
    let mut tally = Tally::default();
    users.iter().for_each(|user| tally.add(user.tally()));
    drop(holder);
    mounts.into_iter().chain([beside, holding]).try_for_each(Mount::unmount)?;

    // Nobody is there who has anything in his own memory.
    stand.kill_server()?;
    stand.serve_again()?;
    let fresh = stand.mount()?;
    let mut wrong: Vec<String> = users
        .iter_mut()
        .filter_map(|user| user.look_again(&fresh.point).err())
        .map(|e| e.to_string())
        .collect();
    let mut nobody = Tally::default();
    wrong.extend(
        shelves.iter().filter_map(|shelf| Some(shelf.look(&fresh.point, &mut nobody).err()?.to_string())),
    );
    wrong.extend(bulk.look_at_all(&fresh.point).err().map(|e| e.to_string()));
    match counted(&fresh.point)? {
        found if found == count => {}
        found => wrong.push(format!("counted is {found}, not {count}")),
    }

    let mut report =
        Report::new(format!("the server killed {times} times, {MOUNTS} mounts over {} used", plan.provider));
    let within = longest.is_some_and(|time| time <= AGAIN_WITHIN);
    let found = longest.map_or("never".into(), |time| format!("{} ms", time.as_millis()));
    report.check_if(!plan.short, "serves again after, at most", found, "within 1 s", within);
    report.note("killed soon after", killed_soon);
    report.note("operations", tally.operations);
    report.check("wrong bytes, sizes or names", tally.wrong, "none", tally.wrong == 0);
    report.check("looks at what others had put there", tally.looks, "some", tally.looks > 0);
    let failed = tally.errors - tally.wrong;
    report.check("operations that failed", failed, "none", failed == 0);
    report.check("locks, open files, old bytes lost", lost.len(), "none", lost.is_empty());
    lost.iter().take(TOLD).for_each(|text| report.note("lost", text));
    report.note("bytes that stay", size::show(bulk.bytes()));
    report.check("wrong at a mount made afterwards", wrong.len(), "none", wrong.is_empty());
    wrong.iter().take(TOLD).for_each(|text| report.note("wrong afterwards", text));
    tally.wrong_texts.iter().for_each(|text| report.note("wrong", text));
    tally.texts.iter().for_each(|text| report.note("error", text));
    let found = format!("{count}, of {} to {}", tally.counted, tally.counted + tally.perhaps_counted);
    report.check("counted under a lock", found, "none lost", tally.fits(count));
    report.note("longest operation", format!("{} ms, {}", tally.longest.0.as_millis(), tally.longest.1));
    fresh.unmount()?;
    if does.persist {
        report.check("killed in the middle of a snapshot", torn, "some", torn > 0);
        let restored = after_a_loss(&mut stand, &users, &bulk);
        let found =
            restored.as_ref().map_or_else(ToString::to_string, |files| format!("{files} files of users"));
        report.check(
            "restored when the memory is lost",
            found,
            "some, and all that stays",
            restored.is_ok_and(|files| files > 0),
        );
    }
    stand.stop()?;
    Ok(report)
}

/// Waits until another snapshot is whole.
fn await_snapshot(stand: &Stand<'_>) -> Result<()> {
    let before = stand.snapshots()?.0;
    stand.signal_server(Signal::USR1)?;
    let whole = time_until(NEVER, || stand.snapshots().is_ok_and(|(newest, _)| newest != before));
    whole.map(drop).ok_or_else(|| Error::Wrong("no snapshot is made".into()))
}

/// Kills the server while it makes a snapshot, loses the memory, and looks at what the next server begins with. How many files users have there.
fn after_a_loss(stand: &mut Stand<'_>, users: &[User], bulk: &Bulk) -> Result<usize> {
    stand.signal_server(Signal::USR1)?;
    stand.kill_server()?;
    stand.lose_memory()?;
    stand.serve_again()?;
    let mount = stand.mount()?;
    bulk.look_at_all(&mount.point)?;
    let files = users.iter().map(|user| user.look_at_some_moment(&mount.point)).sum::<Result<usize>>()?;
    mount.unmount()?;
    Ok(files)
}
