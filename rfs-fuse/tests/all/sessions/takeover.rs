//! Mounts that outlive their program (`--takeover`).

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat},
    process::{Pid, Signal, kill_process},
};

use crate::common::{
    Mount, Over, TestServer, directory, eventually, exit_of, is_mounted,
    locking::{WAYS, begins_to_wait, open},
    long,
    mapping::Mapping,
    pattern, program, providers, threads,
};

const MIB: u64 = 1 << 20;
pub(super) const TAKEOVER: &[&str] = &["--takeover"];

/// Returns the program that serves a mount with a caretaker.
pub(super) fn serving(mount: &Mount) -> Option<Pid> {
    let caretaker = mount.pid().as_raw_nonzero().get();
    let pids = fs::read_dir("/proc")
        .expect("procfs")
        .filter_map(|entry| entry.expect("listed").file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        fields.next().is_some_and(|state| state != "Z")
            && fields.next().and_then(|parent| parent.parse().ok()) == Some(caretaker)
    };
    pids.into_iter().find(is_child).and_then(Pid::from_raw)
}

/// Kills the program that serves a mount, and waits until the next one runs.
pub(super) fn kill_program(mount: &Mount) {
    let before = serving(mount).expect("a program");
    kill_process(before, Signal::KILL).expect("killed");
    assert!(eventually(|| serving(mount).is_some_and(|now| now != before)), "no program continues");
}

/// Runs a test for every provider.
fn each(test: impl Fn(&TestServer, &Mount, Over)) {
    for over in providers() {
        eprintln!("over {over:?}");
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(over, TAKEOVER);
        test(&server, &mount, over);
        mount.unmount();
    }
}

#[test]
fn open_files_survive_a_kill_and_calls_wait_at_most_a_second() {
    each(|server, mount, _| {
        let free = server.free_blocks();
        let (named, gone) = (open(&mount.path("named")), open(&mount.path("gone")));
        let bytes = pattern(300_000, 7);
        for file in [&named, &gone] {
            file.write_all_at(&bytes, 0).expect("written");
        }
        fs::remove_file(mount.path("gone")).expect("removed");
        fs::create_dir(mount.path("dir")).expect("made");
        let mut mapped = Mapping::new(&named, 8192);
        mapped.write(4096, b"mapped");
        for round in 0..3_u8 {
            let began = Instant::now();
            kill_program(mount);
            named.write_all_at(&[round], u64::from(round)).expect("written after a kill");
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            let mut found = vec![0; bytes.len()];
            gone.read_exact_at(&mut found, 0).expect("read");
            assert!(found == bytes, "an unlinked file has other bytes after {round} kills");
            assert_eq!(mapped.read(4096, 6), b"mapped");
            fs::write(mount.path("dir/file"), [round]).expect("written by name");
        }
        mapped.sync();
        let mut start = [0; 4];
        named.read_exact_at(&mut start, 0).expect("read");
        assert_eq!(start, [0, 1, 2, bytes[3]]);
        drop((named, gone, mapped));
        fs::remove_file(mount.path("named")).expect("removed");
        fs::remove_dir_all(mount.path("dir")).expect("removed");
        assert!(eventually(|| server.free_blocks() == free), "the space of the unlinked file is free");
    });
}

/// Catches a mount that ends because a thread of the dead program waits in the kernel, for a
/// request that only the next program answers.
#[test]
fn a_dead_thread_that_waits_for_a_request_of_the_mount_does_not_end_it() {
    let server = TestServer::new(64 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let [silent, other] = [(), ()].map(|()| server.mount(Over::Tcp, &["--no-return"]));
    fs::create_dir(mount.path("d")).expect("made");
    fs::write(mount.path("d/known"), "bytes").expect("written");
    assert!(!silent.path("d/new").exists(), "it has to drop this name");
    silent.signal(Signal::STOP);
    thread::scope(|scope| {
        // The kernel locks the directory while the server waits for the mount that is stopped.
        let creating = scope.spawn(|| File::create_new(mount.path("d/new")).map(drop));
        let removing = scope.spawn(|| {
            thread::sleep(Duration::from_millis(200));
            fs::remove_file(other.path("d/known"))
        });
        let before = serving(&mount).expect("a program");
        let waits = || threads(before).iter().any(|(name, state)| name == "notify" && *state == 'D');
        assert!(eventually(waits), "the kernel drops the name at once");
        kill_process(before, Signal::KILL).expect("killed");
        let next = || serving(&mount).is_some_and(|now| now != before);
        assert!(eventually(next), "no program continues");
        assert!(waits(), "the directory is no longer locked, so that nothing was tested");
        silent.signal(Signal::CONT);
        creating.join().expect("a thread").expect("created");
        removing.join().expect("a thread").expect("removed");
        assert!(eventually(|| threads(before).is_empty()), "the dead program has ended");
    });
    assert!(mount.path("d/new").exists() && !mount.path("d/known").exists());
    mount.unmount();
}

/// Catches a mount that ends because the next program does not get the address of its metrics.
#[test]
fn a_mount_continues_without_the_address_of_its_metrics() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let server = TestServer::new(64 * MIB);
    let mount = server.mount(Over::Shm, &["--takeover", "--metrics", &free.to_string()]);
    assert!(TcpStream::connect(free).is_ok(), "the mount serves metrics");
    // This test takes the address before the next program does, or tries again.
    let taken = loop {
        let stopped = AtomicBool::new(false);
        let taken = thread::scope(|scope| {
            let attempt = scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    if let Ok(taken) = TcpListener::bind(free) {
                        return Some(taken);
                    }
                    thread::sleep(Duration::from_micros(200));
                }
                None
            });
            kill_program(&mount);
            fs::write(mount.path("file"), "bytes").expect("the mount continues");
            stopped.store(true, Ordering::Relaxed);
            attempt.join().expect("a thread")
        });
        if let Some(taken) = taken {
            break taken;
        }
    };
    drop(taken);
    kill_program(&mount);
    fs::write(mount.path("file"), "bytes").expect("the mount continues");
    assert!(eventually(|| TcpStream::connect(free).is_ok()), "the next program serves metrics");
    mount.unmount();
}

#[test]
fn locks_survive_a_kill_and_end_with_their_files() {
    each(|server, mount, over| {
        let other = server.mount(over, &[]);
        for (what, lock) in WAYS {
            // Locks of fcntl(2) belong to processes, so another one asks for them.
            let held = open(&mount.path(what));
            lock(&held, FlockOperation::LockExclusive).expect("locked");
            kill_program(mount);
            let asks = || {
                let file = open(&other.path(what));
                lock(&file, FlockOperation::NonBlockingLockExclusive)
            };
            assert!(asks().is_err(), "{what}: another mount gets the lock after a kill");
            drop(held);
            assert!(eventually(|| asks().is_ok()), "{what}: the lock stays after the close");
        }
        other.unmount();
    });
}

#[test]
fn a_blocked_lock_request_survives_a_kill() {
    each(|server, mount, over| {
        let other = server.mount(over, &[]);
        let held = open(&other.path("file"));
        flock(&held, FlockOperation::LockExclusive).expect("locked");
        let has_it = AtomicBool::new(false);
        thread::scope(|scope| {
            let waits = || {
                let file = open(&mount.path("file"));
                flock(&file, FlockOperation::LockExclusive).expect("granted");
                has_it.store(true, Ordering::SeqCst);
                assert!(eventually(|| !has_it.load(Ordering::SeqCst)));
            };
            begins_to_wait(server, || scope.spawn(waits));
            kill_program(mount);
            thread::sleep(Duration::from_millis(200));
            assert!(!has_it.load(Ordering::SeqCst), "granted although another mount has it");
            drop(held);
            assert!(eventually(|| has_it.load(Ordering::SeqCst)), "never granted");
            let file = open(&other.path("file"));
            assert!(flock(&file, FlockOperation::NonBlockingLockExclusive).is_err(), "granted twice");
            has_it.store(false, Ordering::SeqCst);
            assert!(eventually(|| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()));
        });
        other.unmount();
    });
}

/// Detects a signal that is lost with the program that served the wait.
#[test]
fn a_signal_ends_a_wait_that_has_survived_a_kill() {
    each(|server, mount, over| {
        let other = server.mount(over, &[]);
        let held = open(&other.path("file"));
        flock(&held, FlockOperation::LockExclusive).expect("locked");
        let waiter = || Command::new("flock").arg(mount.path("file")).arg("true").spawn().expect("flock(1)");
        // After the kill, and before the next program serves.
        for pause in [Duration::from_millis(300), Duration::ZERO] {
            let mut waits = begins_to_wait(server, waiter);
            kill_program(mount);
            thread::sleep(pause);
            waits.kill().expect("signal sent");
            assert!(!exit_of(&mut waits).success());
        }
        drop(held);
        let file = open(&other.path("file"));
        let is_free = || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        assert!(eventually(is_free), "a waiter that was killed has the lock");
        other.unmount();
    });
}

/// Detects a file without a name that goes with the program, or that cannot get one afterwards.
#[test]
fn a_file_without_a_name_survives_a_kill() {
    each(|server, mount, _| {
        let free = server.free_blocks();
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let [named, gone] = [0; 2].map(|_| {
            File::from(rustix::fs::open(&mount.point, flags, Mode::RUSR | Mode::WUSR).expect("made"))
        });
        for file in [&named, &gone] {
            file.write_all_at(&pattern(100_000, 3), 0).expect("written");
        }
        kill_program(mount);
        linkat(&named, "", CWD, mount.path("named"), AtFlags::EMPTY_PATH).expect("linked");
        kill_program(mount);
        assert!(fs::read(mount.path("named")).expect("read") == pattern(100_000, 3));
        fs::remove_file(mount.path("named")).expect("removed");
        drop((named, gone));
        assert!(eventually(|| server.free_blocks() == free), "the space of the files is free");
    });
}

/// Catches a request that is carried out twice. A second creation, rename or removal of a name
/// fails, and a second append leaves its bytes twice.
#[test]
fn requests_in_flight_are_carried_out_once() {
    each(|_, mount, _| {
        let stop = AtomicBool::new(false);
        let appended = AtomicU64::new(0);
        thread::scope(|scope| {
            let changes = |id: u32| {
                let name = |what: &str| mount.path(&format!("{what}{id}"));
                while !stop.load(Ordering::Relaxed) {
                    fs::create_dir(name("dir")).expect("mkdir");
                    File::create_new(name("dir").join("a")).expect("created");
                    fs::rename(name("dir").join("a"), name("b")).expect("renamed");
                    fs::hard_link(name("b"), name("c")).expect("linked");
                    fs::remove_file(name("b")).expect("unlinked");
                    fs::remove_file(name("c")).expect("unlinked");
                    fs::remove_dir(name("dir")).expect("rmdir");
                }
            };
            scope.spawn(move || changes(1));
            scope.spawn(move || changes(2));
            scope.spawn(|| {
                let mut log =
                    OpenOptions::new().append(true).create(true).open(mount.path("log")).expect("opened");
                while !stop.load(Ordering::Relaxed) {
                    let next = appended.fetch_add(1, Ordering::SeqCst);
                    log.write_all(&next.to_le_bytes()).expect("appended");
                }
            });
            for round in 0..if long() { 20 } else { 5 } {
                thread::sleep(Duration::from_millis(600 + 13 * round));
                kill_program(mount);
            }
            thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
        let mut bytes = Vec::new();
        File::open(mount.path("log")).and_then(|mut log| log.read_to_end(&mut bytes)).expect("read");
        let expected: Vec<u8> = (0..appended.into_inner()).flat_map(u64::to_le_bytes).collect();
        assert!(bytes == expected, "appends are lost, or done twice");
        fs::remove_file(mount.path("log")).expect("removed");
        assert_eq!(fs::read_dir(&mount.point).expect("listed").count(), 0);
    });
}

#[test]
fn signals_without_a_purpose_leave_a_mount_and_its_caretaker_as_they_are() {
    each(|_, mount, _| {
        fs::write(mount.path("file"), b"x").expect("written");
        let program = serving(mount).expect("a program");
        for signal in [Signal::USR1, Signal::USR2, Signal::PIPE] {
            for process in [mount.pid(), program] {
                kill_process(process, signal).expect("signal sent");
            }
        }
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"x");
        // The next program would run by now.
        thread::sleep(Duration::from_millis(200));
        fs::write(mount.path("other"), b"y").expect("written");
        assert_eq!(serving(mount), Some(program));
    });
}

#[test]
fn a_signal_between_two_programs_unmounts() {
    let server = TestServer::new(16 * MIB);
    for _ in 0..5 {
        let mut mount = server.mount(Over::Shm, TAKEOVER);
        kill_process(serving(&mount).expect("a program"), Signal::KILL).expect("killed");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(!is_mounted(&mount.point));
    }
}

#[test]
fn programs_that_die_again_and_again_end_the_mount() {
    let server = TestServer::new(16 * MIB);
    let mut mount = server.mount(Over::Shm, TAKEOVER);
    while mount.is_running() {
        if let Some(program) = serving(&mount) {
            // It may have ended by itself.
            kill_process(program, Signal::KILL).ok();
        }
        thread::sleep(Duration::from_millis(5));
    }
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("again and again"), "{said}");
    assert!(eventually(|| !is_mounted(&mount.point)));
}

#[test]
fn without_its_caretaker_a_mount_ends_with_its_program() {
    let server = TestServer::new(16 * MIB);
    let mount = server.mount(Over::Shm, TAKEOVER);
    let program = serving(&mount).expect("a program");
    let point = mount.point.clone();
    kill_process(mount.pid(), Signal::KILL).expect("killed");
    fs::write(point.join("file"), b"on").expect("the mount goes on");
    // The watchdog runs when the program has noticed.
    let watchdog =
        || Command::new("pgrep").args(["-P", &program.as_raw_nonzero().to_string(), "rfs-watchdog"]).output();
    assert!(eventually(|| watchdog().is_ok_and(|output| !output.stdout.is_empty())), "no watchdog");
    kill_process(program, Signal::KILL).expect("killed");
    assert!(eventually(|| !is_mounted(&point)));
    drop(mount);
}

#[test]
fn modes_without_takeover_are_refused_with_a_reason() {
    let server = TestServer::new(16 * MIB);
    let point = directory();
    for (options, word) in [
        (&["--cache", "writeback"][..], "--cache writeback"),
        (&["--io-uring=on"], "--io-uring=on"),
        (&["--no-return"], "--no-return"),
        (&["--lost-server", "remount"], "--lost-server remount"),
    ] {
        let mut command = program();
        command.args(TAKEOVER).args(options).arg(server.address(Over::Shm)).arg(point.path());
        let output = command.output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(word), "{options:?}: {said}");
        assert!(!is_mounted(point.path()));
    }
}

#[test]
fn a_mount_in_the_background_outlives_its_program() {
    let server = TestServer::new(16 * MIB);
    let point = directory();
    let mut child = program()
        .args(["--daemon", "--takeover"])
        .arg(server.address(Over::Shm))
        .arg(point.path())
        .spawn()
        .expect("started");
    assert!(exit_of(&mut child).success());
    fs::write(point.path().join("file"), b"before").expect("written");
    let output = program().arg("upgrade").arg(point.path()).output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(point.path().join("file")).expect("read"), b"before");
    let unmounted = Command::new("umount").arg(point.path()).status().expect("run");
    assert!(unmounted.success() && eventually(|| !is_mounted(point.path())));
}
