//! Waiting for locks that another mount of the same server has.

mod common;

use std::{
    fs,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    process::{Child, Command},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use common::{
    Lender, Mount, directory, eventually, exit_of,
    locking::{WAYS, begins_to_wait, open},
    pairs, providers,
};
use rustix::{
    fs::{FlockOperation as Op, flock},
    io::Errno,
    process::Signal,
};

const MIB: u64 = 1 << 20;

/// So long one waits behind others who wait, as SEMANTICS.md has it.
const COURTESY: Duration = Duration::from_secs(1);

#[test]
fn whoever_waits_asks_once() {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |lender, a, b| {
            let (here, there) = (open(&a.path("file")), open(&b.path("file")));
            flock(&here, Op::LockExclusive).expect("locked");
            let before = ["lock", "grants", "insist", "stopwaiting"].map(|name| lender.handled(name));
            thread::scope(|scope| {
                let waiting = begins_to_wait(lender, || scope.spawn(|| flock(&there, Op::LockExclusive)));
                thread::sleep(2 * COURTESY);
                flock(&here, Op::Unlock).expect("unlocked");
                assert_eq!(waiting.join().expect("thread"), Ok(()));
            });
            let after = ["lock", "grants", "insist", "stopwaiting"].map(|name| lender.handled(name));
            let made: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
            // Asking and unlocking; hearing of it, and listening again; being impatient, once.
            assert!(made[0] == 2 && made[1] <= 2 && made[2] == 1 && made[3] == 0, "{made:?}");
        });
    }
}

/// Nobody asks a second time: the lock that is given up is what wakes who waits for it.
#[test]
fn whoever_waits_is_told_when_the_lock_is_given_up() {
    const ROUNDS: u64 = 40;
    pairs(16 * MIB, &[], |lender, a, b| {
        let files = [open(&a.path("file")), open(&b.path("file"))];
        let order = Mutex::new(Vec::new());
        let say = |what| order.lock().expect("order").push(what);
        flock(&files[0], Op::LockExclusive).expect("locked");
        let counted = || ["lock", "stopwaiting"].map(|name| lender.handled(name));
        let before = counted();
        for round in 0..ROUNDS {
            let [has, wants] = [0, 1].map(|which| &files[(round as usize + which) % 2]);
            thread::scope(|scope| {
                let waits = begins_to_wait(lender, || {
                    scope.spawn(|| {
                        flock(wants, Op::LockExclusive).expect("locked");
                        say("had");
                    })
                });
                say("given up");
                flock(has, Op::Unlock).expect("unlocked");
                waits.join().expect("thread");
            });
        }
        let [locks, stops] = counted();
        assert_eq!((locks - before[0], stops - before[1]), (2 * ROUNDS, 0), "one to ask, one to unlock");
        let order = order.into_inner().expect("order");
        assert!(order.chunks(2).all(|pair| pair == ["given up", "had"]), "{order:?}");
    });
}

#[test]
fn whoever_asks_first_is_first() {
    pairs(16 * MIB, &[], |lender, a, b| {
        // Those of processes are all this process's.
        for (way, lock) in WAYS.into_iter().filter(|(way, _)| *way != "fcntl") {
            let here = open(&a.path(way));
            lock(&here, Op::LockExclusive).expect("locked");
            let order = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for (at, mount) in [b, a, a, b, b, a].into_iter().enumerate() {
                    let (order, path) = (&order, mount.path(way));
                    begins_to_wait(lender, || {
                        scope.spawn(move || {
                            let file = open(&path);
                            lock(&file, Op::LockExclusive).expect("locked");
                            order.lock().expect("lock").push(at);
                            lock(&file, Op::Unlock).expect("unlocked");
                        })
                    });
                }
                lock(&here, Op::Unlock).expect("unlocked");
            });
            assert_eq!(order.into_inner().expect("lock"), [0, 1, 2, 3, 4, 5], "{way}");
        }
    });
}

#[test]
fn readers_do_not_pass_a_writer_who_waits() {
    pairs(16 * MIB, &[], |lender, a, b| {
        // As long as they are polite; on a machine that is busy a round may take longer.
        let in_time = eventually(|| {
            let here = open(&a.path("file"));
            flock(&here, Op::LockShared).expect("locked");
            let order = Mutex::new(Vec::new());
            let since = Instant::now();
            thread::scope(|scope| {
                for (name, mount, kind) in [("writer", b, Op::LockExclusive), ("reader", a, Op::LockShared)] {
                    let (order, path) = (&order, mount.path("file"));
                    begins_to_wait(lender, || {
                        scope.spawn(move || {
                            let file = open(&path);
                            flock(&file, kind).expect("locked");
                            order.lock().expect("lock").push(name);
                        })
                    });
                }
                flock(&here, Op::Unlock).expect("unlocked");
            });
            let polite = since.elapsed() < COURTESY;
            assert!(!polite || order.into_inner().expect("lock") == ["writer", "reader"]);
            polite
        });
        assert!(in_time);
    });
}

#[test]
fn nobody_waits_for_ever_behind_those_who_wait() {
    pairs(16 * MIB, &[], |lender, a, b| {
        let (one, two, there) = (open(&a.path("file")), open(&a.path("file")), open(&b.path("file")));
        flock(&one, Op::LockShared).expect("locked");
        thread::scope(|scope| {
            let writer = begins_to_wait(lender, || scope.spawn(|| flock(&there, Op::LockExclusive)));
            // The same process, as the kernel knows and nobody else: it gives none of them up before it has both.
            flock(&two, Op::LockShared).expect("shared");
            assert!(!writer.is_finished());
            drop((one, two));
            assert_eq!(writer.join().expect("thread"), Ok(()));
        });
    });
}

/// A process that waits for a lock.
fn waiter(path: &std::path::Path) -> Child {
    Command::new("flock").arg(path).arg("true").spawn().expect("flock(1)")
}

/// However a wait that ends and a lock that is given up cross, the lock is free in the end.
#[test]
fn a_wait_that_ends_while_the_lock_comes_leaves_no_lock() {
    pairs(16 * MIB, &[], |lender, a, b| {
        let here = open(&a.path("file"));
        for round in 0..30 {
            assert!(eventually(|| flock(&here, Op::NonBlockingLockExclusive).is_ok()), "round {round}");
            let mut killed = begins_to_wait(lender, || waiter(&b.path("file")));
            killed.kill().expect("killed");
            // That is seen within 20 ms.
            thread::sleep(Duration::from_millis(round));
            flock(&here, Op::Unlock).expect("unlocked");
            exit_of(&mut killed);
        }
        assert!(eventually(|| flock(&here, Op::NonBlockingLockExclusive).is_ok()));
    });
}

#[test]
fn a_waiter_whose_mount_dies_holds_up_nobody() {
    for over in providers() {
        let lender = Lender::new(16 * MIB);
        let (a, mut b) = (lender.mount(over, &[]), lender.mount(over, &[]));
        let here = open(&a.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut dies = begins_to_wait(&lender, || waiter(&b.path("file")));
        let mut patient = begins_to_wait(&lender, || waiter(&a.path("file")));
        b.signal(Signal::KILL);
        b.wait();
        assert!(!exit_of(&mut dies).success());
        assert!(patient.try_wait().expect("child").is_none(), "the lock is held");
        flock(&here, Op::Unlock).expect("unlocked");
        assert!(exit_of(&mut patient).success());
        drop(here);
        a.unmount();
    }
}

/// The kernel does not tell a process of another pid namespace who waits: such a wait ends with the lock only.
#[test]
fn a_signal_from_another_pid_namespace_is_not_heard() {
    for over in providers() {
        let lender = Lender::new(16 * MIB);
        let point = directory();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_rfs-fuse")]);
        command.args(["--timeout", "60", "--connect-timeout", "60", &lender.address(over)]).arg(point.path());
        let mut mount = Mount::spawn(&mut command, point.path());
        let here = open(&mount.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut waits = begins_to_wait(&lender, || waiter(&mount.path("file")));
        waits.kill().expect("signal sent");
        // Far longer than it takes where it is heard.
        thread::sleep(Duration::from_millis(500));
        assert!(waits.try_wait().expect("child").is_none(), "it waits still");
        flock(&here, Op::Unlock).expect("unlocked");
        assert_eq!(exit_of(&mut waits).signal(), Some(9), "the signal was there all the time");
        drop(here);
        assert!(
            Command::new("fusermount3").arg("-u").arg(point.path()).status().expect("fusermount3").success()
        );
        assert_eq!(mount.wait().0.code(), Some(0));
    }
}

/// How many descriptors each of a mount's threads of this name has.
fn descriptors_of_threads(mount: &Mount, name: &str) -> Vec<usize> {
    let tasks = format!("/proc/{}/task", mount.pid().as_raw_nonzero());
    let tasks = fs::read_dir(tasks).expect("it runs").map(|task| task.expect("a thread").path());
    // Any of them may end meanwhile.
    let is_it = |comm: std::io::Result<String>| comm.is_ok_and(|comm| comm.trim_end() == name);
    let named = tasks.filter(|task| is_it(fs::read_to_string(task.join("comm"))));
    named.filter_map(|task| Some(fs::read_dir(task.join("fd")).ok()?.count())).collect()
}

/// Waiting takes none of the threads that serve a mount, and none of the calls that its session can have under way.
#[test]
fn hundreds_wait_and_the_others_work() {
    const WAITERS: u64 = 200;
    pairs(16 * MIB, &["--threads", "2"], |lender, a, b| {
        let here = open(&a.path("file"));
        here.write_all_at(&[0; 8], 0).expect("written");
        flock(&here, Op::LockExclusive).expect("locked");
        let (path, before) = (b.path("file"), lender.handled("lock"));
        let count = || {
            let file = open(&path);
            flock(&file, Op::LockExclusive).expect("locked");
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).expect("read");
            file.write_all_at(&(u64::from_le_bytes(bytes) + 1).to_le_bytes(), 0).expect("written");
        };
        thread::scope(|scope| {
            for _ in 0..WAITERS {
                scope.spawn(count);
            }
            assert!(eventually(|| lender.handled("lock") == before + WAITERS));
            for number in 0..50 {
                let path = b.path(&format!("{number}"));
                fs::write(&path, b"served").expect("written");
                assert_eq!(fs::read(&path).expect("read"), b"served");
                fs::remove_file(&path).expect("removed");
            }
            assert_eq!(flock(open(&b.path("file")), Op::NonBlockingLockShared), Err(Errno::AGAIN));
            // Where requests come over io_uring. Such a thread could wait for the mount when its process is killed.
            let asking = descriptors_of_threads(b, "kick");
            assert!(asking.iter().all(|count| *count == 0), "{asking:?}");
            assert!(!asking.is_empty() || std::env::var_os("RFS_TEST_RING").is_none());
            flock(&here, Op::Unlock).expect("unlocked");
        });
        flock(&here, Op::LockShared).expect("locked");
        let mut bytes = [0; 8];
        here.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(u64::from_le_bytes(bytes), WAITERS);
    });
}
