//! Session threads that are pinned to their caller's core, without harm to other callers.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Mount, Over, TestServer, aio::Aio, directory, eventually, program};
use nix::libc;
use rustix::{
    fs::{FlockOperation, flock},
    thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

const SCHED_OTHER: u32 = 0;
const SCHED_IDLE: u32 = 5;

/// Scheduling of a thread.
#[derive(Debug)]
struct Scheduled {
    policy: u32,
    cores: CpuSet,
}

/// Returns the scheduling of a mount's threads whose names begin with `name`.
fn threads(mount: &Mount, name: &str) -> Vec<Scheduled> {
    let scheduled = |tid: &str| {
        let tid = Pid::from_raw(tid.parse().ok()?)?;
        let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        // Field 41 is the policy; the text after the name begins with field 3.
        let policy = rest.split_whitespace().nth(41 - 3)?.parse().ok()?;
        let cores = sched_getaffinity(Some(tid)).ok()?;
        head.split_once('(')?.1.starts_with(name).then_some(Scheduled { policy, cores })
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.pid())).expect("threads");
    // A thread that is gone has ended meanwhile.
    tasks.filter_map(|task| scheduled(task.ok()?.file_name().to_str()?)).collect()
}

/// Returns true if there are such threads, and all have the scheduling of the process.
fn are_unbound(mount: &Mount, name: &str) -> bool {
    let process = sched_getaffinity(Some(mount.pid())).expect("cores");
    let threads = threads(mount, name);
    !threads.is_empty()
        && threads.iter().all(|thread| thread.policy == SCHED_OTHER && thread.cores == process)
}

/// Returns true if there are session threads and all of them are pinned.
fn is_followed(mount: &Mount) -> bool {
    let threads = threads(mount, "fuse-");
    !threads.is_empty()
        && threads.iter().all(|thread| thread.policy == SCHED_IDLE && thread.cores.count() == 1)
}

/// Makes requests that all reach the file system.
fn ask(directory: &Path) {
    let caller = gettid();
    for number in 0..20 {
        let path = directory.join(format!("file-{caller}-{number}"));
        drop(File::create(&path).expect("created"));
        fs::remove_file(&path).expect("removed");
    }
}

/// Makes requests until the session threads are pinned. Returns false if the machine is too busy
/// for that.
fn ask_until_followed(mount: &Mount) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_followed(mount) {
        if Instant::now() > end {
            eprintln!("no thread was pinned here: the test checks less than usual");
            return false;
        }
        ask(&mount.point);
    }
    true
}

fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).expect("bound");
}

const BLOCK: usize = 4096;
const DEPTH: usize = 16;

/// Opens a file of [`DEPTH`] blocks with O_DIRECT.
fn direct_file(mount: &Mount) -> File {
    let path = mount.path("direct");
    fs::write(&path, [0; DEPTH * BLOCK]).expect("written");
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).expect("opened")
}

/// Passes aligned blocks for O_DIRECT to `act`.
fn with_blocks(act: impl FnOnce(&[u8])) {
    let memory = vec![7; (DEPTH + 1) * BLOCK];
    let at = memory.as_ptr().align_offset(BLOCK);
    act(&memory[at..at + DEPTH * BLOCK]);
}

/// Writes block by block until the mount pins its threads to this thread's core. Returns false if
/// it does not.
fn write_until_followed(mount: &Mount, file: &File) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    with_blocks(|blocks| {
        while !is_followed(mount) && Instant::now() < end {
            for (number, block) in blocks.chunks(BLOCK).enumerate() {
                file.write_all_at(block, (number * BLOCK) as u64).expect("written");
            }
        }
    });
    is_followed(mount)
}

/// Calls `test` with a mount of each kind that has counters.
fn with_each_kind(test: impl Fn(Mount)) {
    let (mount, _point) = null(&["--no-io-uring"]);
    test(mount);
    for over in [Over::Shm, Over::Tcp] {
        let server = TestServer::new(16 << 20);
        test(server.mount(over, &["--stats-on-exit", "--no-io-uring"]));
    }
}

/// Ends the mount. Returns its counters of pinning.
fn counters(mount: Mount) -> serde_json::Value {
    mount.report()["placement"].take()
}

fn null(options: &[&str]) -> (Mount, tempfile::TempDir) {
    crate::common::require_fuse();
    let point = directory();
    let mut command = program();
    command.args(["--null", "--stats-on-exit"]).args(options).arg(point.path());
    (Mount::spawn(&mut command, point.path()), point)
}

/// Runs a function on drop, even after a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn a_busy_core_does_not_delay_the_mount() {
    let (mount, _point) = null(&[]);
    let core = sched_getcpu();
    let (hogged, end) = (AtomicBool::new(false), AtomicBool::new(false));
    let followed = thread::scope(|scope| {
        let (mount, hogged, end) = (&mount, &hogged, &end);
        let _end = OnDrop(|| end.store(true, Ordering::Relaxed));
        let caller = scope.spawn(move || {
            stay_on(core);
            let followed = ask_until_followed(mount);
            scope.spawn(move || {
                stay_on(core);
                hogged.store(true, Ordering::Relaxed);
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            while !end.load(Ordering::Relaxed) {
                ask(&mount.point);
            }
            followed
        });
        assert!(eventually(|| hogged.load(Ordering::Relaxed)));
        // A pinned thread gets hardly any time now. The mount must unpin it every time.
        for _ in 0..5 {
            assert!(eventually(|| are_unbound(mount, "fuse-")));
            ask(&mount.point);
        }
        end.store(true, Ordering::Relaxed);
        caller.join().expect("no panic")
    });
    let counters = counters(mount);
    assert!(!followed || counters["follows"].as_u64() > Some(0), "{counters}");
}

/// While several callers wait for a server, their session threads are pinned to one core. A busy
/// process on that core must not delay them for long.
#[test]
fn a_busy_core_does_not_delay_several_callers_of_a_server() {
    const CALLERS: usize = 2;
    let server = TestServer::new(64 << 20);
    let mount = server.mount(Over::Tcp, &[]);
    let end = AtomicBool::new(false);
    let asked = [const { AtomicU64::new(0) }; CALLERS];
    thread::scope(|scope| {
        let _end = OnDrop(|| end.store(true, Ordering::Relaxed));
        for asked in &asked {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    ask(&mount.point);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(20);
        while !is_followed(&mount) && Instant::now() < until {
            thread::yield_now();
        }
        let Some(on) = threads(&mount, "fuse-").pop().filter(|thread| thread.cores.count() == 1) else {
            return eprintln!("no thread was pinned here: the test checks less than usual");
        };
        let core = (0..CpuSet::MAX_CPU).find(|core| on.cores.is_set(*core)).expect("a core");
        let end = &end;
        scope.spawn(move || {
            stay_on(core);
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        for _ in 0..5 {
            assert!(eventually(|| are_unbound(&mount, "fuse-")));
            let before = asked.each_ref().map(|asked| asked.load(Ordering::Relaxed));
            assert!(eventually(|| asked
                .iter()
                .zip(before)
                .all(|(asked, before)| asked.load(Ordering::Relaxed) > before)));
        }
    });
    mount.unmount();
}

#[test]
fn a_caller_with_several_requests_in_flight_is_not_followed() {
    with_each_kind(|mount| {
        let (file, aio) = (direct_file(&mount), Aio::new(DEPTH));
        let end = Instant::now() + Duration::from_secs(1);
        with_blocks(|blocks| {
            while Instant::now() < end {
                (0..20).for_each(|_| aio.write(&file, blocks, BLOCK));
                assert!(!is_followed(&mount));
            }
        });
        drop(file);
        let counters = counters(mount);
        if counters["follows"].is_null() {
            return eprintln!("no thread was pinned here: the test checks less than usual");
        }
        assert!(counters["follows"] == 0 && counters["overlaps"].as_u64() > Some(0), "{counters}");
    });
}

#[test]
fn a_caller_is_followed_only_while_it_waits_for_each_block() {
    with_each_kind(|mount| {
        let (file, aio) = (direct_file(&mount), Aio::new(DEPTH));
        let (end, is_deep, batches) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let followed = thread::scope(|scope| {
            let (mount, file, end, is_deep, batches) = (&mount, &file, &end, &is_deep, &batches);
            let _end = OnDrop(|| end.store(true, Ordering::Relaxed));
            let caller = scope.spawn(move || {
                let followed = write_until_followed(mount, file);
                is_deep.store(true, Ordering::Relaxed);
                with_blocks(|blocks| {
                    while !end.load(Ordering::Relaxed) {
                        aio.write(file, blocks, BLOCK);
                        batches.fetch_add(1, Ordering::Relaxed);
                    }
                });
                followed
            });
            assert!(eventually(|| is_deep.load(Ordering::Relaxed)));
            assert!(eventually(|| are_unbound(mount, "fuse-")));
            let before = batches.load(Ordering::Relaxed);
            while batches.load(Ordering::Relaxed) < before + 2000 {
                assert!(!is_followed(mount));
                thread::yield_now();
            }
            end.store(true, Ordering::Relaxed);
            caller.join().expect("no panic")
        });
        drop(file);
        let counters = counters(mount);
        assert!(!followed || counters["overlaps"].as_u64() > Some(0), "{counters}");
    });
}

#[test]
fn on_an_idle_mount_no_thread_is_pinned() {
    let (mount, _point) = null(&[]);
    ask_until_followed(&mount);
    assert!(eventually(|| are_unbound(&mount, "fuse-")));
    mount.unmount();
}

#[test]
fn with_no_follow_no_thread_is_pinned() {
    let (mount, _point) = null(&["--no-follow"]);
    for _ in 0..200 {
        ask(&mount.point);
        assert!(!is_followed(&mount));
    }
    assert_eq!(counters(mount), serde_json::json!({}));
}

#[test]
fn only_session_threads_are_pinned() {
    let server = TestServer::new(16 << 20);
    let mount = server.mount(Over::Shm, &[]);
    let file = mount.path("locked");
    let held = File::create(&file).expect("created");
    flock(&held, FlockOperation::LockExclusive).expect("locked");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let file = File::open(&file).expect("opened");
            ask_until_followed(&mount);
            // Makes a session thread start the thread that waits for locks.
            flock(&file, FlockOperation::LockExclusive).expect("locked");
        });
        assert!(eventually(|| are_unbound(&mount, "locks")));
        flock(&held, FlockOperation::Unlock).expect("unlocked");
        waits.join().expect("no panic");
    });
    drop(held);
    mount.unmount();
}
