//! Waiting for locks that another mount of the same server holds.

use std::{
    fs,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    process::{Child, Command},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Mount, TestServer, directory, eventually, exit_of,
    locking::{WAYS, begins_to_wait, open},
    pairs, providers,
};
use rustix::{
    fs::{FlockOperation as Op, flock},
    io::Errno,
    process::Signal,
};

const MIB: u64 = 1 << 20;

/// Maximum time that a request waits behind earlier waiters, as docs/semantics says.
const COURTESY: Duration = Duration::from_secs(1);

#[test]
fn a_waiter_asks_once() {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(16 * MIB, options, |server, a, b| {
            let (here, there) = (open(&a.path("file")), open(&b.path("file")));
            flock(&here, Op::LockExclusive).expect("locked");
            let before = ["lock", "grants", "insist", "stopwaiting"].map(|name| server.handled(name));
            thread::scope(|scope| {
                let waiting = begins_to_wait(server, || scope.spawn(|| flock(&there, Op::LockExclusive)));
                thread::sleep(2 * COURTESY);
                flock(&here, Op::Unlock).expect("unlocked");
                assert_eq!(waiting.join().expect("thread"), Ok(()));
            });
            let after = ["lock", "grants", "insist", "stopwaiting"].map(|name| server.handled(name));
            let made: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
            // Lock and unlock; the grant, and listening again; ignoring the queue order, once.
            assert!(made[0] == 2 && made[1] <= 2 && made[2] == 1 && made[3] == 0, "{made:?}");
        });
    }
}

/// No waiter asks a second time: the release of the lock wakes it.
#[test]
fn a_waiter_is_woken_when_the_lock_is_released() {
    const ROUNDS: u64 = 40;
    pairs(16 * MIB, &[], |server, a, b| {
        let files = [open(&a.path("file")), open(&b.path("file"))];
        let order = Mutex::new(Vec::new());
        let say = |what| order.lock().expect("order").push(what);
        flock(&files[0], Op::LockExclusive).expect("locked");
        let counted = || ["lock", "stopwaiting"].map(|name| server.handled(name));
        let before = counted();
        for round in 0..ROUNDS {
            let [has, wants] = [0, 1].map(|which| &files[(round as usize + which) % 2]);
            thread::scope(|scope| {
                let waits = begins_to_wait(server, || {
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
fn waiters_get_the_lock_in_the_order_of_their_requests() {
    pairs(16 * MIB, &[], |server, a, b| {
        // Locks by fcntl(2) belong to the process, so all of them would be this process's.
        for (way, lock) in WAYS.into_iter().filter(|(way, _)| *way != "fcntl") {
            let here = open(&a.path(way));
            lock(&here, Op::LockExclusive).expect("locked");
            let order = Mutex::new(Vec::new());
            thread::scope(|scope| {
                for (at, mount) in [b, a, a, b, b, a].into_iter().enumerate() {
                    let (order, path) = (&order, mount.path(way));
                    begins_to_wait(server, || {
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
fn readers_do_not_pass_a_waiting_writer() {
    pairs(16 * MIB, &[], |server, a, b| {
        // The order holds for [`COURTESY`]. On a busy machine a round may take longer, and is
        // repeated.
        let in_time = eventually(|| {
            let here = open(&a.path("file"));
            flock(&here, Op::LockShared).expect("locked");
            let order = Mutex::new(Vec::new());
            let since = Instant::now();
            thread::scope(|scope| {
                for (name, mount, kind) in [("writer", b, Op::LockExclusive), ("reader", a, Op::LockShared)] {
                    let (order, path) = (&order, mount.path("file"));
                    begins_to_wait(server, || {
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
fn a_request_does_not_wait_without_limit_behind_waiters() {
    pairs(16 * MIB, &[], |server, a, b| {
        let (one, two, there) = (open(&a.path("file")), open(&a.path("file")), open(&b.path("file")));
        flock(&one, Op::LockShared).expect("locked");
        thread::scope(|scope| {
            let writer = begins_to_wait(server, || scope.spawn(|| flock(&there, Op::LockExclusive)));
            // Both locks belong to this process, which only the kernel knows. The process releases
            // neither before it has both.
            flock(&two, Op::LockShared).expect("shared");
            assert!(!writer.is_finished());
            drop((one, two));
            assert_eq!(writer.join().expect("thread"), Ok(()));
        });
    });
}

/// Starts a process that waits for a lock.
fn waiter(path: &std::path::Path) -> Child {
    Command::new("flock").arg(path).arg("true").spawn().expect("flock(1)")
}

/// A wait ends at about the time of the grant. In every order, the lock is free afterwards.
#[test]
fn a_wait_that_ends_during_the_grant_leaves_no_lock() {
    pairs(16 * MIB, &[], |server, a, b| {
        let here = open(&a.path("file"));
        for round in 0..30 {
            assert!(eventually(|| flock(&here, Op::NonBlockingLockExclusive).is_ok()), "round {round}");
            let mut killed = begins_to_wait(server, || waiter(&b.path("file")));
            killed.kill().expect("killed");
            // The mount ends the wait after about a millisecond.
            thread::sleep(Duration::from_millis(round));
            flock(&here, Op::Unlock).expect("unlocked");
            exit_of(&mut killed);
        }
        assert!(eventually(|| flock(&here, Op::NonBlockingLockExclusive).is_ok()));
    });
}

#[test]
fn a_waiter_whose_mount_dies_does_not_block_others() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let (a, mut b) = (server.mount(over, &[]), server.mount(over, &[]));
        let here = open(&a.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut dies = begins_to_wait(&server, || waiter(&b.path("file")));
        let mut patient = begins_to_wait(&server, || waiter(&a.path("file")));
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

/// The caller is invisible to a process of another pid namespace, so the signal is known only if
/// the kernel tells (FUSE_INTERRUPT).
#[test]
fn a_signal_in_another_pid_namespace_ends_a_wait() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let point = directory();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_rfs-fuse")]);
        command.args(["--timeout", "60", "--connect-timeout", "60", &server.address(over)]).arg(point.path());
        let mut mount = Mount::spawn(&mut command, point.path());
        let here = open(&mount.path("file"));
        flock(&here, Op::LockExclusive).expect("locked");
        let mut waits = begins_to_wait(&server, || waiter(&mount.path("file")));
        waits.kill().expect("signal sent");
        assert_eq!(exit_of(&mut waits).signal(), Some(9), "the lock is still held");
        drop(here);
        assert!(
            Command::new("fusermount3").arg("-u").arg(point.path()).status().expect("fusermount3").success()
        );
        assert_eq!(mount.wait().0.code(), Some(0));
    }
}

/// Waits for a lock in the way that the first argument names. A signal every 20 ms has a handler.
/// Each wait has to end with EINTR, for as many rounds as the third argument says.
const INTERRUPTED: &str = r#"
use Fcntl qw(:DEFAULT :flock F_SETLKW); use Time::HiRes qw(setitimer ITIMER_REAL);
my ($way, $path, $rounds) = @ARGV;
$SIG{ALRM} = sub {};
open(my $file, '+<', $path) or die "open: $!";
my $lock = pack('s s x4 q q l x4', F_WRLCK, 0, 0, 0, 0);
for my $round (1 .. $rounds) {
    # From before the request to long after it.
    setitimer(ITIMER_REAL, 0.0001 + 0.00007 * ($round % 40), 0.02);
    my $got = $way eq 'flock' ? flock($file, LOCK_EX) : fcntl($file, $way eq 'ofd' ? 38 : F_SETLKW, $lock);
    die "round $round: granted" if $got;
    die "round $round: $!" unless $!{EINTR};
}
"#;

/// Detects a wait that goes on after a signal, because its interrupt came before the request or a
/// second signal does not end it. Detects an answer other than EINTR. Detects a lock that an
/// interrupted wait has got.
#[test]
fn a_signal_with_a_handler_ends_a_wait_with_eintr() {
    pairs(16 * MIB, &[], |_, a, b| {
        for (way, lock) in WAYS {
            let here = open(&a.path(way));
            lock(&here, Op::LockExclusive).expect("locked");
            let mut waits = Command::new("perl");
            waits.args(["-e", INTERRUPTED, way]).arg(b.path(way)).arg("120");
            let mut waits = waits.spawn().expect("perl(1)");
            assert!(exit_of(&mut waits).success(), "{way}");
            lock(&here, Op::Unlock).expect("unlocked");
            let next = open(&a.path(way));
            assert!(eventually(|| lock(&next, Op::NonBlockingLockExclusive).is_ok()), "{way}");
        }
    });
}

/// Returns the number of descriptors of each thread of this name.
fn descriptors_of_threads(mount: &Mount, name: &str) -> Vec<usize> {
    let tasks = format!("/proc/{}/task", mount.pid().as_raw_nonzero());
    let tasks = fs::read_dir(tasks).expect("it runs").map(|task| task.expect("a thread").path());
    // Any thread may end meanwhile.
    let is_it = |comm: std::io::Result<String>| comm.is_ok_and(|comm| comm.trim_end() == name);
    let named = tasks.filter(|task| is_it(fs::read_to_string(task.join("comm"))));
    named.filter_map(|task| Some(fs::read_dir(task.join("fd")).ok()?.count())).collect()
}

/// Waiting occupies no session thread of the mount, and no call slot of the session.
#[test]
fn hundreds_of_waiters_do_not_block_other_requests() {
    const WAITERS: u64 = 200;
    pairs(16 * MIB, &["--threads", "2"], |server, a, b| {
        let here = open(&a.path("file"));
        here.write_all_at(&[0; 8], 0).expect("written");
        flock(&here, Op::LockExclusive).expect("locked");
        let (path, before) = (b.path("file"), server.handled("lock"));
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
            assert!(eventually(|| server.handled("lock") == before + WAITERS));
            for number in 0..50 {
                let path = b.path(&format!("{number}"));
                fs::write(&path, b"served").expect("written");
                assert_eq!(fs::read(&path).expect("read"), b"served");
                fs::remove_file(&path).expect("removed");
            }
            assert_eq!(flock(open(&b.path("file")), Op::NonBlockingLockShared), Err(Errno::AGAIN));
            // With io_uring: such a thread could wait for the mount itself when its process is
            // killed.
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
