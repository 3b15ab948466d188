//! Two mounts that attempt the same change at the same time, and a mount that looks immediately
//! after a change of the other. Thousands of rounds each.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Mount, Over, TestServer, WAIT_LIMIT, long};
use rustix::fs::{CWD, RenameFlags, renameat_with};

const MIB: u64 = 1 << 20;

/// Returns a number of rounds: all of them if tests are long, and else two fifths.
fn rounds(all: u32) -> u32 {
    if long() { all } else { all * 2 / 5 }
}

const LONG: &[&str] = &["--attr-timeout", "3600", "--entry-timeout", "3600"];
const NONE: &[&str] = &["--attr-timeout", "0", "--entry-timeout", "0"];

/// Barrier for two threads. They yield instead of sleeping, because they meet within
/// microseconds.
#[derive(Default)]
struct Meeting(AtomicU32);

impl Meeting {
    /// Waits for the other thread. `nth` counts the meetings from 1.
    fn meet(&self, nth: u32) {
        self.0.fetch_add(1, Ordering::AcqRel);
        let give_up = Instant::now() + WAIT_LIMIT;
        while self.0.load(Ordering::Acquire) < 2 * nth {
            assert!(Instant::now() < give_up, "the other side does not come");
            thread::yield_now();
        }
    }
}

type Act = fn(&Mount, &Path) -> io::Result<()>;

/// A change that both mounts attempt at the same time, with the same name in each round.
struct Race {
    /// The change. Exactly one mount may succeed.
    attempt: Act,
    /// The error of the other mount.
    lost: io::ErrorKind,
    /// Run before each round by the first mount.
    prepare: Act,
    /// Run after each round by the mount that succeeded.
    undo: Act,
}

impl Race {
    /// Runs the race between equally fast mounts, and between a fast and a slow mount. Runs it
    /// without caching and with default caching.
    fn run(&self) {
        self.over([Over::Shm, Over::Tcp], NONE, rounds(1000));
        let equal = [
            self.over([Over::Shm, Over::Shm], NONE, rounds(2000)),
            self.over([Over::Shm, Over::Shm], &[], rounds(1000)),
            self.over([Over::Tcp, Over::Tcp], &[], rounds(1000)),
        ];
        let (wins, all) = (equal.iter().sum(), rounds(4000) as usize);
        assert!(
            (1..all).contains(&wins),
            "of two that are as fast as each other the first won {wins} of {all}"
        );
    }

    /// Runs the race for some rounds. Returns how often the first mount succeeded.
    fn over(&self, over: [Over; 2], options: &[&str], rounds: u32) -> usize {
        let server = TestServer::new(64 * MIB);
        let mounts = over.map(|over| server.mount(over, options));
        for mount in &mounts {
            fs::write(own(mount), b"").expect("written");
        }
        let (meeting, inside) = (Meeting::default(), AtomicU32::new(0));
        // Rounds in which both attempts overlapped.
        let overlaps = AtomicU32::new(0);
        let run = |mount: &Mount, is_first: bool| -> Vec<Option<io::ErrorKind>> {
            let round = |round: u32| {
                let path = mount.path(&format!("race{round}"));
                if is_first {
                    (self.prepare)(mount, &path).expect("prepared");
                }
                meeting.meet(2 * round + 1);
                overlaps.fetch_add(inside.fetch_add(1, Ordering::AcqRel), Ordering::Relaxed);
                let outcome = (self.attempt)(mount, &path);
                inside.fetch_sub(1, Ordering::AcqRel);
                meeting.meet(2 * round + 2);
                if outcome.is_ok() {
                    (self.undo)(mount, &path).expect("undone");
                }
                outcome.err().map(|e| e.kind())
            };
            (0..rounds).map(round).collect()
        };
        let run = &run;
        let [first, second] = thread::scope(|scope| {
            let sides = [(&mounts[0], true), (&mounts[1], false)];
            sides
                .map(|(mount, is_first)| scope.spawn(move || run(mount, is_first)))
                .map(|side| side.join().expect("thread"))
        });
        let lost = Some(self.lost);
        for (round, outcome) in first.iter().zip(&second).enumerate() {
            assert!([(&None, &lost), (&lost, &None)].contains(&outcome), "round {round}: {outcome:?}");
        }
        let wins = first.iter().filter(|outcome| outcome.is_none()).count();
        let overlaps = overlaps.into_inner();
        eprintln!(
            "{over:?} {options:?}: the first won {wins} of {rounds}, in {overlaps} both were at it at once"
        );
        assert!(overlaps > rounds / 10, "they have come one after the other: {overlaps} of {rounds}");
        mounts.into_iter().for_each(Mount::unmount);
        wins
    }
}

/// Races to create a name that does not exist.
fn race(attempt: Act, undo: Act) {
    Race { attempt, lost: io::ErrorKind::AlreadyExists, prepare: nothing, undo }.run();
}

fn nothing(_: &Mount, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns a file that only this mount uses.
fn own(mount: &Mount) -> std::path::PathBuf {
    mount.path(&format!("own-{}", mount.pid()))
}

fn unlink(_: &Mount, path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

#[test]
fn of_two_exclusive_creations_one_succeeds() {
    race(|_, path| OpenOptions::new().write(true).create_new(true).open(path).map(drop), unlink);
}

#[test]
fn of_two_mkdirs_of_a_name_one_succeeds() {
    race(|_, path| fs::create_dir(path), |_, path| fs::remove_dir(path));
}

#[test]
fn of_two_links_of_a_name_one_succeeds() {
    race(|mount, path| fs::hard_link(own(mount), path), unlink);
}

#[test]
fn of_two_renames_without_replacing_one_succeeds() {
    race(
        |mount, path| Ok(renameat_with(CWD, own(mount), CWD, path, RenameFlags::NOREPLACE)?),
        |mount, path| fs::rename(path, own(mount)),
    );
}

#[test]
fn of_two_renames_of_a_file_one_succeeds() {
    Race {
        attempt: |mount, path| fs::rename(path, own(mount)),
        lost: io::ErrorKind::NotFound,
        prepare: |_, path| File::create_new(path).map(drop),
        undo: nothing,
    }
    .run();
}

#[test]
fn of_two_unlinks_of_a_file_one_succeeds() {
    Race {
        attempt: |_, path| fs::remove_file(path),
        lost: io::ErrorKind::NotFound,
        prepare: |_, path| File::create_new(path).map(drop),
        undo: nothing,
    }
    .run();
}

/// Returns the content of a round. Lengths vary, and often repeat.
fn content(round: u32) -> Vec<u8> {
    let len = match round % 16 {
        3 => 0,
        7 => 5000,
        8 => 70_001,
        n => 8 + n as usize / 2,
    };
    round.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn write_and_close(path: &Path, round: u32) {
    let content = content(round);
    // Some rounds write in place, others truncate first.
    let anew = round.is_multiple_of(3);
    let mut file = OpenOptions::new().write(true).truncate(anew).open(path).expect("opened");
    file.write_all(&content).expect("written");
    if !anew {
        file.set_len(content.len() as u64).expect("cut");
    }
}

fn close_to_open(first: Over, second: Over) {
    let server = TestServer::new(64 * MIB);
    let (a, b) = (server.mount(first, LONG), server.mount(second, LONG));
    let (here, there) = (a.path("file"), b.path("file"));
    fs::write(&here, b"").expect("created");
    let mut last = 0;
    let mut bytes = vec![0; 100_000];
    for round in 0..rounds(5000) {
        // Each mount writes the file that the other one has just read.
        let (writer, reader) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
        write_and_close(writer, round);
        let file = File::open(reader).expect("opened");
        let seen = file.metadata().expect("attributes");
        let expected = content(round);
        assert_eq!(seen.len(), expected.len() as u64, "round {round}");
        let len = file.read_at(&mut bytes, 0).expect("read");
        assert!(bytes[..len] == expected, "round {round}");
        let changed = i128::from(seen.mtime()) * 1_000_000_000 + i128::from(seen.mtime_nsec());
        assert!(changed > last, "round {round}: a time of before");
        last = changed;
    }
    b.unmount();
    a.unmount();
}

#[test]
fn no_stale_bytes_after_close_and_open_over_shared_memory() {
    close_to_open(Over::Shm, Over::Shm);
}

#[test]
fn no_stale_bytes_after_close_and_open_over_tcp() {
    close_to_open(Over::Tcp, Over::Tcp);
}

#[test]
fn no_stale_bytes_after_close_and_open_over_both() {
    close_to_open(Over::Shm, Over::Tcp);
}

/// Returns the inodes of some names of a mount.
fn inodes(mount: &Mount, names: [&str; 3]) -> [Option<u64>; 3] {
    names.map(|name| fs::symlink_metadata(mount.path(name)).ok().map(|found| found.ino()))
}

/// Has one mount rename `b` to `a`, or exchange the two, while the other one replaces `b` by `c`.
/// The kernel of the first mount moves the entries that it has looked up before. Catches an entry
/// that stays there, of an inode that the other mount has replaced meanwhile.
fn race_a_replacement(flags: RenameFlags) {
    const ROUNDS: u32 = 200;
    for over in [[Over::Shm, Over::Shm], [Over::Tcp, Over::Tcp]] {
        let server = TestServer::new(64 * MIB);
        let mounts = over.map(|over| server.mount(over, LONG));
        let (meeting, names) = (&Meeting::default(), ["a", "b", "c"]);
        let replaced_late = AtomicU32::new(0);
        let run = |mount: &Mount, is_first: bool| {
            for round in 0..ROUNDS {
                if is_first {
                    names.iter().for_each(|name| drop(File::create(mount.path(name)).expect("created")));
                }
                meeting.meet(4 * round + 1);
                inodes(mount, names);
                meeting.meet(4 * round + 2);
                let (from, to, flags) =
                    if is_first { ("b", "a", flags) } else { ("c", "b", RenameFlags::empty()) };
                renameat_with(CWD, mount.path(from), CWD, mount.path(to), flags).expect("renamed");
                meeting.meet(4 * round + 3);
                if is_first {
                    let both = || [&mounts[0], &mounts[1]].map(|mount| inodes(mount, names));
                    // A name that was recalled during a rename is dropped right after it.
                    let give_up = Instant::now() + WAIT_LIMIT;
                    let mut shown = both();
                    while shown[0] != shown[1] && Instant::now() < give_up {
                        thread::yield_now();
                        shown = both();
                    }
                    assert_eq!(shown[0], shown[1], "round {round}: inodes of {names:?}");
                    replaced_late.fetch_add(u32::from(shown[0][1].is_some()), Ordering::Relaxed);
                }
                meeting.meet(4 * round + 4);
            }
        };
        let run = &run;
        thread::scope(|scope| {
            let other = scope.spawn(|| run(&mounts[1], false));
            run(&mounts[0], true);
            other.join().expect("thread");
        });
        eprintln!("{over:?}: `b` is there after {} of {ROUNDS} rounds", replaced_late.into_inner());
        mounts.into_iter().for_each(Mount::unmount);
    }
}

#[test]
fn of_a_rename_and_a_replacement_of_its_name_both_mounts_show_the_outcome() {
    race_a_replacement(RenameFlags::empty());
}

#[test]
fn of_an_exchange_and_a_replacement_of_its_name_both_mounts_show_the_outcome() {
    race_a_replacement(RenameFlags::EXCHANGE);
}

/// One mount makes a link to a file while the other one changes the file's mode. Catches a mount
/// that shows the old mode after the change. The kernel then takes the attributes of the link's
/// reply, although it was told to drop them in between.
#[test]
fn of_a_link_and_a_change_of_mode_both_mounts_show_the_outcome() {
    for over in [[Over::Shm, Over::Shm], [Over::Tcp, Over::Tcp]] {
        let server = TestServer::new(64 * MIB);
        let [linking, changing] = over.map(|over| server.mount(over, LONG));
        let (meeting, rounds) = (&Meeting::default(), rounds(2000));
        let mode = |mount: &Mount| fs::metadata(mount.path("file")).expect("attributes").mode() & 0o777;
        fs::write(linking.path("file"), b"").expect("created");
        let stale: u32 = thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    meeting.meet(2 * round + 1);
                    let mode = Permissions::from_mode(0o600 + round % 64);
                    fs::set_permissions(changing.path("file"), mode).expect("changed");
                    meeting.meet(2 * round + 2);
                }
            });
            let one = |round| {
                mode(&linking);
                meeting.meet(2 * round + 1);
                fs::hard_link(linking.path("file"), linking.path("other")).expect("linked");
                meeting.meet(2 * round + 2);
                let is_stale = mode(&linking) != 0o600 + round % 64;
                fs::remove_file(linking.path("other")).expect("removed");
                u32::from(is_stale)
            };
            (0..rounds).map(one).sum()
        });
        assert_eq!(stale, 0, "of {rounds} rounds over {over:?}");
        [linking, changing].into_iter().for_each(Mount::unmount);
    }
}

/// A mount makes two names of a file and removes them in turn, while its other threads ask for the
/// attributes. Another mount changes the file, so that they are not cached. Catches attributes with
/// the count from after a removal, if the kernel takes them over before it has subtracted the link
/// itself. The kernel then counts to 0, perhaps with the second removal, and can refuse the next
/// link. Without the remedy 4 % of the removals show it over shared memory. A thread that runs late
/// can still cause it.
#[test]
fn removals_of_all_names_but_one_leave_a_link() {
    for over in [[Over::Shm, Over::Shm], [Over::Tcp, Over::Tcp]] {
        let server = TestServer::new(64 * MIB);
        let [linking, changing] = over.map(|over| server.mount(over, LONG));
        let [file, name, last] = ["file", "other", "third"].map(|name| linking.path(name));
        fs::write(&file, b"").expect("created");
        let (is_done, zeros, rounds) = (&AtomicBool::new(false), &AtomicU32::new(0), rounds(1000));
        let links = |file: &File| file.metadata().expect("attributes").nlink();
        thread::scope(|scope| {
            for _ in 0..2 {
                let opened = File::open(&file).expect("opened");
                scope.spawn(move || {
                    while !is_done.load(Ordering::SeqCst) {
                        match links(&opened) {
                            0 => _ = zeros.fetch_add(1, Ordering::SeqCst),
                            links => assert!(links <= 3, "{links}"),
                        }
                    }
                });
            }
            scope.spawn(|| {
                for round in 0.. {
                    let mode = Permissions::from_mode(0o600 + round % 64);
                    fs::set_permissions(changing.path("file"), mode).expect("changed");
                    if is_done.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
            let opened = File::open(&file).expect("opened");
            for _ in 0..rounds {
                let made = [&name, &last].map(|name| fs::hard_link(&file, name).map(|()| name));
                for made in made {
                    match made {
                        Ok(name) => fs::remove_file(name).expect("removed"),
                        Err(_) => _ = zeros.fetch_add(1, Ordering::SeqCst),
                    }
                }
                // The kernel takes the number from this, if it has subtracted twice.
                links(&opened);
            }
            is_done.store(true, Ordering::SeqCst);
        });
        let zeros = zeros.load(Ordering::SeqCst);
        assert!(zeros <= rounds / 100, "{zeros} of {rounds} rounds over {over:?}");
        assert_eq!(fs::metadata(&file).expect("attributes").nlink(), 1);
        [linking, changing].into_iter().for_each(Mount::unmount);
    }
}

/// One mount removes a name of a file, then the other mount removes the next one, and asks for the
/// attributes beside it. Catches a number of links from before the first removal. Also catches a
/// number that is raised for the kernel although the file had a single link.
#[test]
fn links_beside_a_removal_are_a_number_that_was_true() {
    for over in [[Over::Shm, Over::Shm], [Over::Tcp, Over::Tcp]] {
        let server = TestServer::new(64 * MIB);
        let [removing, other] = over.map(|over| server.mount(over, LONG));
        let [file, second] = ["file", "second"].map(|name| removing.path(name));
        let rounds = rounds(250);
        for round in 0..rounds {
            fs::write(&file, b"").expect("created");
            fs::hard_link(&file, &second).expect("linked");
            // In every second round a link is left.
            let rest = u64::from(round % 2);
            if rest == 1 {
                fs::hard_link(&file, removing.path("third")).expect("linked");
            }
            let (opened, removed) = (File::open(&file).expect("opened"), &AtomicBool::new(false));
            let links = || opened.metadata().expect("attributes").nlink();
            assert_eq!(links(), 2 + rest);
            fs::remove_file(other.path("second")).expect("removed");
            thread::scope(|scope| {
                let looks = scope.spawn(move || {
                    let mut seen = vec![links()];
                    while !removed.load(Ordering::SeqCst) {
                        seen.push(links());
                    }
                    seen.push(links());
                    seen
                });
                fs::remove_file(&file).expect("removed");
                removed.store(true, Ordering::SeqCst);
                let seen = looks.join().expect("looked");
                let falls = seen.is_sorted_by(|one, next| one >= next);
                assert!(falls && seen[0] <= 1 + rest, "{seen:?} over {over:?}");
                assert_eq!(seen.last(), Some(&rest), "{seen:?} over {over:?}");
            });
            if rest == 1 {
                fs::remove_file(removing.path("third")).expect("removed");
            }
        }
        [removing, other].into_iter().for_each(Mount::unmount);
    }
}

/// Two mounts that exchange names in one directory, all the time. Each has a change in flight while
/// it hears of the other's. Catches a drop that blocks behind the own change, and blocks other
/// drops that could end. The server then waits until the mount gives up after 50 ms.
#[test]
fn exchanges_by_two_mounts_in_one_directory_do_not_wait_for_each_others_patience() {
    const EACH: usize = 300;
    const IMPATIENT: Duration = Duration::from_millis(40);
    for over in [[Over::Shm, Over::Shm], [Over::Tcp, Over::Tcp]] {
        let server = TestServer::new(64 * MIB);
        let mounts = over.map(|over| server.mount(over, &[]));
        for name in ["a", "b", "c", "d"] {
            File::create(mounts[0].path(name)).expect("created");
        }
        let exchange = |mount: &Mount, pairs: &[[&str; 2]]| {
            let timed = |[one, other]: &[&str; 2]| {
                let start = Instant::now();
                renameat_with(CWD, mount.path(one), CWD, mount.path(other), RenameFlags::EXCHANGE)
                    .expect("exchanged");
                start.elapsed()
            };
            pairs.iter().cycle().take(EACH).map(timed).filter(|took| *took >= IMPATIENT).count()
        };
        let exchange = &exchange;
        let late: usize = thread::scope(|scope| {
            let first = scope.spawn(|| exchange(&mounts[0], &[["a", "b"], ["c", "d"], ["b", "c"]]));
            let second = exchange(&mounts[1], &[["b", "d"], ["a", "c"], ["d", "a"]]);
            second + first.join().expect("thread")
        });
        eprintln!("{over:?}: {late} of {} exchanges took {IMPATIENT:?} or longer", 2 * EACH);
        // A third of them, if drops block each other. A loaded machine delays a few.
        assert!(late < 2 * EACH / 10, "{over:?}: {late} of {} exchanges were late", 2 * EACH);
        mounts.into_iter().for_each(Mount::unmount);
    }
}
