//! Locks between two mounts of one server, each in a process of its own.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use crate::common::{
    Mount, TestServer, exit_of, is_in_own_process,
    locking::{Lock, WAYS, begins_to_wait, ofd_lock, open},
    mapping::Mapping,
    pairs, providers, repeats, test_process,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{FlockOperation as Op, fcntl_lock, flock},
    io::Errno,
    process::Signal,
};

const MIB: u64 = 1 << 20;

#[test]
fn a_lock_here_is_a_lock_there() {
    pairs(16 * MIB, &[], |_, a, b| {
        let (here, there) = (open(&a.path("file")), open(&b.path("file")));
        for (_, lock) in WAYS {
            lock(&here, Op::LockExclusive).expect("locked");
            assert_eq!(lock(&there, Op::NonBlockingLockExclusive), Err(Errno::AGAIN));
            assert_eq!(lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
            lock(&here, Op::LockShared).expect("shared");
            lock(&there, Op::NonBlockingLockShared).expect("shared");
            assert_eq!(lock(&here, Op::NonBlockingLockExclusive), Err(Errno::AGAIN));
            lock(&here, Op::Unlock).expect("unlocked");
            lock(&there, Op::NonBlockingLockExclusive).expect("locked");
            lock(&there, Op::Unlock).expect("unlocked");
        }
    });
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    pairs(16 * MIB, &[], |_, a, b| {
        let (here, there) = (open(&a.path("file")), open(&b.path("file")));
        flock(&here, Op::LockExclusive).expect("locked");
        fcntl_lock(&here, Op::NonBlockingLockExclusive).expect("by the same process");
        fcntl_lock(&here, Op::Unlock).expect("unlocked");
        fcntl_lock(&there, Op::NonBlockingLockExclusive).expect("and from the other side");
        assert_eq!(flock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
    });
}

#[test]
fn locks_go_with_the_file() {
    pairs(16 * MIB, &[], |_, a, b| {
        let (here, there) = (open(&a.path("file")), open(&b.path("file")));
        flock(&here, Op::LockExclusive).expect("locked");
        drop(here);
        flock(&there, Op::NonBlockingLockExclusive).expect("the file is closed");
        let (one, two) = (open(&a.path("file")), open(&a.path("file")));
        fcntl_lock(&one, Op::LockExclusive).expect("locked");
        assert_eq!(fcntl_lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
        // By POSIX, any close of the file by the process releases its record locks.
        drop(two);
        fcntl_lock(&there, Op::NonBlockingLockShared).expect("locked");
        fcntl_lock(&there, Op::Unlock).expect("unlocked");
        // Locks of an open file description last until its last descriptor is closed.
        let (two, twin) = (open(&a.path("file")), one.try_clone().expect("duplicated"));
        ofd_lock(&one, Op::LockExclusive).expect("locked");
        drop((one, two));
        assert_eq!(ofd_lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
        drop(twin);
        ofd_lock(&there, Op::NonBlockingLockShared).expect("the last descriptor is closed");
    });
}

/// Locks a file, closes it, and immediately tries to lock it through another open file.
fn closed_and_tried(path: &Path, other: &Path, round: u64) {
    for (name, lock) in WAYS {
        let (here, there) = (open(path), open(other));
        lock(&here, Op::LockExclusive).expect("locked");
        drop(here);
        assert_eq!(lock(&there, Op::NonBlockingLockExclusive), Ok(()), "{name}, round {round}");
    }
}

#[test]
fn a_lock_is_free_once_close_has_returned() {
    if !is_in_own_process(module_path!(), "a_lock_is_free_once_close_has_returned") {
        return;
    }
    for threads in ["1", "2"] {
        pairs(16 * MIB, &["--threads", threads], |_, a, b| {
            let (here, there) = (a.path("file"), b.path("file"));
            drop(open(&here));
            for round in 0..repeats(100) {
                closed_and_tried(&here, &there, round);
                closed_and_tried(&there, &here, round);
                closed_and_tried(&here, &here, round);
            }
        });
    }
}

#[test]
fn a_lock_stays_while_a_descriptor_is_open_or_the_file_is_mapped() {
    pairs(16 * MIB, &[], |_, a, b| {
        let there = open(&b.path("file"));
        there.set_len(4096).expect("longer");
        for (_, lock) in WAYS.into_iter().filter(|(name, _)| *name != "fcntl") {
            let here = open(&a.path("file"));
            lock(&here, Op::LockExclusive).expect("locked");
            let mapped = Mapping::new(&here, 4096);
            drop(here.try_clone().expect("duplicated"));
            for _ in 0..20 {
                assert_eq!(lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
            }
            drop(here);
            assert_eq!(lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN), "it is mapped");
            drop(mapped);
            lock(&there, Op::NonBlockingLockShared).expect("nothing is left of it");
            lock(&there, Op::Unlock).expect("unlocked");
        }
    });
}

#[test]
fn asking_for_a_lock_after_close_finds_none() {
    if !is_in_own_process(module_path!(), "asking_for_a_lock_after_close_finds_none") {
        return;
    }
    pairs(16 * MIB, &[], |_, a, b| {
        let there = open(&b.path("file"));
        for round in 0..repeats(100) {
            let here = open(&a.path("file"));
            ofd_lock(&here, Op::LockExclusive).expect("locked");
            drop(here);
            let mut found = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: libc::SEEK_SET as i16,
                l_start: 0,
                l_len: 0,
                l_pid: 0,
            };
            fcntl(&there, FcntlArg::F_GETLK(&mut found)).expect("asked");
            assert_eq!(i32::from(found.l_type), libc::F_UNLCK, "round {round}");
        }
    });
}

#[test]
fn ranges_are_locked_by_themselves() {
    pairs(16 * MIB, &[], |_, a, b| {
        let (here, there) = (open(&a.path("file")), open(&b.path("file")));
        let range = |kind: i32, start, len| libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        let set = |file: &File, lock: &libc::flock| fcntl(file, FcntlArg::F_SETLK(lock)).map(drop);
        set(&here, &range(libc::F_WRLCK, 10, 10)).expect("locked");
        set(&there, &range(libc::F_WRLCK, 20, 0)).expect("what lies behind it");
        assert_eq!(set(&there, &range(libc::F_RDLCK, 19, 1)), Err(nix::Error::EAGAIN));
        set(&here, &range(libc::F_UNLCK, 13, 2)).expect("a hole in it");
        set(&there, &range(libc::F_WRLCK, 13, 2)).expect("there is nothing");
        // F_GETLK reports the conflicting lock with its start and length.
        let mut found = range(libc::F_WRLCK, 11, 1);
        fcntl(&there, FcntlArg::F_GETLK(&mut found)).expect("asked");
        assert_eq!((i32::from(found.l_type), found.l_start, found.l_len), (libc::F_WRLCK, 10, 3));
        assert_eq!(found.l_pid, 0, "a process that this kernel does not know");
        let mut found = range(libc::F_RDLCK, 30, 1);
        fcntl(&here, FcntlArg::F_GETLK(&mut found)).expect("asked");
        assert_eq!(
            (i32::from(found.l_type), found.l_start, found.l_len),
            (libc::F_WRLCK, 20, 0),
            "to the end"
        );
        let mut found = range(libc::F_WRLCK, 0, 10);
        fcntl(&there, FcntlArg::F_GETLK(&mut found)).expect("asked");
        assert_eq!(i32::from(found.l_type), libc::F_UNLCK);
    });
}

/// Starts a process that waits for the lock.
fn waiter(path: &Path) -> Child {
    Command::new("flock").arg(path).arg("true").spawn().expect("flock(1)")
}

#[test]
fn a_waiter_blocks_no_other_caller_and_can_be_killed() {
    pairs(16 * MIB, &["--threads", "1"], |server, a, b| {
        let here = open(&a.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut killed = begins_to_wait(server, || waiter(&b.path("file")));
        let mut patient = begins_to_wait(server, || waiter(&b.path("file")));
        // The only session thread of that mount still serves other requests.
        fs::write(b.path("other"), b"served").expect("written");
        assert_eq!(fs::read(b.path("other")).expect("read"), b"served");
        killed.kill().expect("killed");
        assert!(!exit_of(&mut killed).success());
        assert!(patient.try_wait().expect("child").is_none(), "the lock is held");
        flock(&here, Op::Unlock).expect("unlocked");
        assert!(exit_of(&mut patient).success());
    });
}

#[test]
fn the_locks_of_a_dead_client_are_released() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let (mut a, b) = (server.mount(over, &[]), server.mount(over, &[]));
        let here = open(&a.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut patient = begins_to_wait(&server, || waiter(&b.path("file")));
        a.signal(Signal::KILL);
        a.wait();
        assert!(exit_of(&mut patient).success());
        drop(here);
        b.unmount();
    }
}

#[test]
fn deadlocks_are_refused() {
    pairs(16 * MIB, &[], |server, a, b| {
        let files = |mount: &Mount| (open(&mount.path("x")), open(&mount.path("y")));
        let ((ax, ay), (bx, by)) = (files(a), files(b));
        fcntl_lock(&ax, Op::LockExclusive).expect("locked");
        fcntl_lock(&by, Op::LockExclusive).expect("locked");
        thread::scope(|scope| {
            let waiting = begins_to_wait(server, || scope.spawn(|| fcntl_lock(&ay, Op::LockExclusive)));
            assert_eq!(fcntl_lock(&bx, Op::LockExclusive), Err(Errno::DEADLK));
            fcntl_lock(&by, Op::Unlock).expect("unlocked");
            assert_eq!(waiting.join().expect("thread"), Ok(()));
        });
    });
}

#[test]
fn deadlocks_of_ofd_locks_are_refused_within_a_file_and_those_of_flock_never() {
    pairs(16 * MIB, &[], |server, a, b| {
        let (here, there) = (open(&a.path("file")), open(&b.path("file")));
        let set = |file: &File, at: i64| {
            let lock = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: libc::SEEK_SET as i16,
                l_start: at,
                l_len: 1,
                l_pid: 0,
            };
            fcntl(file, FcntlArg::F_OFD_SETLKW(&lock)).map(drop)
        };
        assert_eq!((set(&here, 0), set(&there, 1)), (Ok(()), Ok(())));
        thread::scope(|scope| {
            let waiting = begins_to_wait(server, || scope.spawn(|| set(&here, 1)));
            assert_eq!(set(&there, 0), Err(nix::Error::EDEADLK));
            ofd_lock(&there, Op::Unlock).expect("unlocked");
            assert_eq!(waiting.join().expect("thread"), Ok(()));
        });
        let files = |mount: &Mount| [open(&mount.path("x")), open(&mount.path("y"))];
        let ([ax, ay], [bx, by]) = (files(a), files(b));
        flock(&ax, Op::LockExclusive).expect("locked");
        flock(&by, Op::LockExclusive).expect("locked");
        thread::scope(|scope| {
            let one = begins_to_wait(server, || scope.spawn(|| flock(&ay, Op::LockExclusive)));
            let two = begins_to_wait(server, || scope.spawn(|| flock(&bx, Op::LockExclusive)));
            assert!(!one.is_finished() && !two.is_finished());
            flock(&by, Op::Unlock).expect("unlocked");
            assert_eq!(one.join().expect("thread"), Ok(()));
            flock(&ax, Op::Unlock).expect("unlocked");
            assert_eq!(two.join().expect("thread"), Ok(()));
        });
    });
}

/// Starts a process that locks a file in one of the [`WAYS`]: an ignored test of this program.
fn helper(test: &str, way: &str, path: &Path) -> Child {
    test_process(module_path!(), test)
        .arg("--ignored")
        .env(HELPER, format!("{way} {}", path.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a helper process")
}

const HELPER: &str = "RFS_TEST_LOCKER";

/// Returns the lock function and the file of a helper process, `None` in the test process.
fn helped() -> Option<(Lock, File)> {
    let told = std::env::var(HELPER).ok()?;
    let (way, path) = told.split_once(' ').expect("a way and a path");
    let (_, lock) = WAYS.into_iter().find(|(name, _)| *name == way).expect("a way to lock");
    Some((lock, open(Path::new(path))))
}

#[test]
#[ignore = "a helper process of other tests"]
fn holder() {
    let Some((lock, file)) = helped() else { return };
    lock(&file, Op::LockExclusive).expect("locked");
    println!("\nlocked");
    io::stdout().flush().expect("stdout");
    // Waits until the test kills this process or closes its input.
    io::stdin().read_to_end(&mut Vec::new()).ok();
}

#[test]
fn the_locks_of_a_dead_process_are_released() {
    pairs(16 * MIB, &[], |server, a, b| {
        for (way, lock) in WAYS {
            let there = open(&b.path(way));
            let mut holder = helper("holder", way, &a.path(way));
            let out = BufReader::new(holder.stdout.take().expect("piped"));
            assert!(out.lines().map_while(Result::ok).any(|line| line == "locked"));
            assert_eq!(lock(&there, Op::NonBlockingLockShared), Err(Errno::AGAIN));
            thread::scope(|scope| {
                let waiting = begins_to_wait(server, || scope.spawn(|| lock(&there, Op::LockShared)));
                holder.kill().expect("killed");
                exit_of(&mut holder);
                assert_eq!(waiting.join().expect("thread"), Ok(()));
            });
        }
    });
}

#[test]
fn a_process_is_named_on_its_own_mount() {
    pairs(16 * MIB, &[], |_, a, b| {
        let mut holder = helper("holder", "fcntl", &a.path("file"));
        let out = BufReader::new(holder.stdout.take().expect("piped"));
        assert!(out.lines().map_while(Result::ok).any(|line| line == "locked"));
        for (mount, expected) in [(a, holder.id() as i32), (b, 0)] {
            let mut found = libc::flock {
                l_type: libc::F_RDLCK as i16,
                l_whence: libc::SEEK_SET as i16,
                l_start: 0,
                l_len: 0,
                l_pid: 0,
            };
            fcntl(open(&mount.path("file")), FcntlArg::F_GETLK(&mut found)).expect("asked");
            assert_eq!((i32::from(found.l_type), found.l_pid), (libc::F_WRLCK, expected));
        }
        holder.kill().expect("killed");
        exit_of(&mut holder);
    });
}

/// Returns the number of increments per process.
fn times() -> u64 {
    repeats(250)
}

/// Increments a number in a file under the lock, and appends it, at an offset that only the size
/// determines.
#[test]
#[ignore = "a helper process of other tests"]
fn counter() {
    let Some((lock, file)) = helped() else { return };
    for _ in 0..times() {
        lock(&file, Op::LockExclusive).expect("locked");
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).expect("read");
        let len = file.metadata().expect("attributes").len();
        let count = u64::from_le_bytes(bytes) + 1;
        file.write_all_at(&count.to_le_bytes(), 0).expect("written");
        file.write_all_at(&count.to_le_bytes(), len).expect("written");
        lock(&file, Op::Unlock).expect("unlocked");
    }
}

#[test]
fn the_order_of_locks_is_the_order_of_data() {
    // Attribute timeouts of an hour: only the lock can refresh attributes.
    pairs(16 * MIB, &["--attr-timeout", "3600", "--entry-timeout", "3600"], |_, a, b| {
        for (way, _) in WAYS {
            fs::write(a.path(way), [0; 8]).expect("written");
            let mut counters = [a, b, a, b].map(|mount| helper("counter", way, &mount.path(way)));
            let succeeded = counters.each_mut().map(|child| exit_of(child).success());
            assert_eq!(succeeded, [true; 4], "{way}");
            let bytes = fs::read(a.path(way)).expect("read");
            let numbers: Vec<u64> =
                bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("whole"))).collect();
            let expected: Vec<u64> = (1..=4 * times()).collect();
            assert_eq!((numbers[0], &numbers[1..]), (4 * times(), &expected[..]), "{way}");
        }
    });
}

/// Changes of mapped memory that are synchronized before unlocking are visible to the next
/// holder, also in its mapping.
#[test]
fn mapped_changes_synchronized_before_unlocking_reach_the_next_holder() {
    pairs(16 * MIB, &["--attr-timeout", "3600", "--entry-timeout", "3600"], |_, a, b| {
        let files = [open(&a.path("file")), open(&b.path("file"))];
        files[0].write_all_at(&[0; 8192], 0).expect("written");
        let mut mapped = files.each_ref().map(|file| Mapping::new(file, 8192));
        for round in 0..40_u64 {
            let holder = (round % 2) as usize;
            flock(&files[holder], Op::LockExclusive).expect("locked");
            // On a page fault the kernel does not query the size of the file, so query it here.
            assert_eq!(files[holder].metadata().expect("attributes").len(), 8192);
            assert_eq!(mapped[holder].read(5000, 8), round.to_le_bytes());
            mapped[holder].write(5000, &(round + 1).to_le_bytes());
            mapped[holder].sync();
            flock(&files[holder], Op::Unlock).expect("unlocked");
        }
    });
}

/// A page fault does not query the size of a file, even under a lock. A query of the attributes
/// does.
#[test]
fn a_mapping_beyond_the_cached_end_needs_a_query_after_locking() {
    pairs(16 * MIB, &["--attr-timeout", "3600", "--entry-timeout", "3600"], |_, a, b| {
        let files = [open(&a.path("file")), open(&b.path("file"))];
        let mapped = Mapping::read_only(&files[0], 4096);
        assert_eq!(mapped.probe(0), Err(Errno::FAULT));
        flock(&files[1], Op::LockExclusive).expect("locked");
        files[1].write_all_at(b"longer", 0).expect("written");
        flock(&files[1], Op::Unlock).expect("unlocked");
        flock(&files[0], Op::LockExclusive).expect("locked");
        assert_eq!(mapped.probe(0), Err(Errno::FAULT));
        assert_eq!(files[0].metadata().expect("attributes").len(), 6);
        assert_eq!(mapped.probe(0), Ok(b'l'));
        assert_eq!(mapped.read(0, 6), b"longer");
    });
}
