//! Session threads that are bound to the core of their caller, and what must not come of it.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use common::{Lender, Mount, Over, aio::Aio, directory, eventually, program};
use nix::libc;
use rustix::{
    fs::{FlockOperation, flock},
    thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

const SCHED_OTHER: u32 = 0;
const SCHED_IDLE: u32 = 5;

/// How a thread is scheduled.
#[derive(Debug)]
struct Scheduled {
    policy: u32,
    cores: CpuSet,
}

/// How those threads of a mount's process are whose names begin so.
fn threads(mount: &Mount, name: &str) -> Vec<Scheduled> {
    let scheduled = |tid: &str| {
        let tid = Pid::from_raw(tid.parse().ok()?)?;
        let stat = fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
        let (head, rest) = stat.rsplit_once(')')?;
        // Field 41; what follows the name begins with field 3.
        let policy = rest.split_whitespace().nth(41 - 3)?.parse().ok()?;
        let cores = sched_getaffinity(Some(tid)).ok()?;
        head.split_once('(')?.1.starts_with(name).then_some(Scheduled { policy, cores })
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.pid())).expect("threads");
    // One that is not to be seen has ended meanwhile.
    tasks.filter_map(|task| scheduled(task.ok()?.file_name().to_str()?)).collect()
}

/// True if there are such threads, and the kernel schedules all of them as it does the process.
fn are_unbound(mount: &Mount, name: &str) -> bool {
    let process = sched_getaffinity(Some(mount.pid())).expect("cores");
    let threads = threads(mount, name);
    !threads.is_empty()
        && threads.iter().all(|thread| thread.policy == SCHED_OTHER && thread.cores == process)
}

/// True if there are session threads and all of them are bound.
fn is_followed(mount: &Mount) -> bool {
    let threads = threads(mount, "fuser-");
    !threads.is_empty()
        && threads.iter().all(|thread| thread.policy == SCHED_IDLE && thread.cores.count() == 1)
}

/// Some requests, each of which reaches the file system.
fn ask(directory: &Path) {
    let caller = gettid();
    for number in 0..20 {
        let path = directory.join(format!("file-{caller}-{number}"));
        drop(File::create(&path).expect("created"));
        fs::remove_file(&path).expect("removed");
    }
}

/// Asks until that has session threads follow. Where others take both cores there may be too little time to ask for it.
fn ask_until_followed(mount: &Mount) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_followed(mount) {
        if Instant::now() > end {
            eprintln!("nobody is followed here: this shows less than it could");
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

/// A file of [`DEPTH`] blocks, open with O_DIRECT.
fn direct_file(mount: &Mount) -> File {
    let path = mount.path("direct");
    fs::write(&path, [0; DEPTH * BLOCK]).expect("written");
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).expect("opened")
}

/// Hands blocks over that O_DIRECT accepts.
fn with_blocks(act: impl FnOnce(&[u8])) {
    let memory = vec![7; (DEPTH + 1) * BLOCK];
    let at = memory.as_ptr().align_offset(BLOCK);
    act(&memory[at..at + DEPTH * BLOCK]);
}

/// Writes until the mount follows this thread, and waits for each block.
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
        let lender = Lender::new(16 << 20);
        test(lender.mount(over, &["--stats-on-exit", "--no-io-uring"]));
    }
}

/// What the mount counted about placement, after its end.
fn counters(mount: Mount) -> serde_json::Value {
    mount.report()["placement"].take()
}

fn null(options: &[&str]) -> (Mount, tempfile::TempDir) {
    common::require_fuse();
    let point = directory();
    let mut command = program();
    command.args(["--null", "--stats-on-exit"]).args(options).arg(point.path());
    (Mount::spawn(&mut command, point.path()), point)
}

/// Happens in any case.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[test]
fn a_core_that_somebody_keeps_busy_does_not_hold_up_the_mount() {
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
        // Whoever is bound now hardly runs. It is seen to, time after time.
        for _ in 0..5 {
            assert!(eventually(|| are_unbound(mount, "fuser-")));
            ask(&mount.point);
        }
        end.store(true, Ordering::Relaxed);
        caller.join().expect("no panic")
    });
    let counters = counters(mount);
    assert!(!followed || counters["follows"].as_u64() > Some(0), "{counters}");
}

/// Several callers have the threads that serve them on one core while they wait for a server. Whoever keeps that core busy then
/// holds up nobody for long.
#[test]
fn several_callers_of_a_server_are_not_held_up_either() {
    const CALLERS: usize = 2;
    let lender = Lender::new(64 << 20);
    let mount = lender.mount(Over::Tcp, &[]);
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
        let Some(on) = threads(&mount, "fuser-").pop().filter(|thread| thread.cores.count() == 1) else {
            return eprintln!("nobody is followed here: this shows less than it could");
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
            assert!(eventually(|| are_unbound(&mount, "fuser-")));
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
fn a_caller_with_several_requests_under_way_is_not_followed() {
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
            return eprintln!("no caller is followed here: this shows less than it could");
        }
        assert!(counters["follows"] == 0 && counters["overlaps"].as_u64() > Some(0), "{counters}");
    });
}

#[test]
fn a_caller_that_waits_for_each_block_is_followed_until_it_waits_no_longer() {
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
            assert!(eventually(|| are_unbound(mount, "fuser-")));
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
fn on_a_quiet_mount_nobody_is_bound() {
    let (mount, _point) = null(&[]);
    ask_until_followed(&mount);
    assert!(eventually(|| are_unbound(&mount, "fuser-")));
    mount.unmount();
}

#[test]
fn with_no_follow_nothing_happens() {
    let (mount, _point) = null(&["--no-follow"]);
    for _ in 0..200 {
        ask(&mount.point);
        assert!(!is_followed(&mount));
    }
    assert_eq!(counters(mount), serde_json::json!({}));
}

#[test]
fn threads_beside_the_session_threads_are_not_bound() {
    let lender = Lender::new(16 << 20);
    let mount = lender.mount(Over::Shm, &[]);
    let file = mount.path("locked");
    let held = File::create(&file).expect("created");
    flock(&held, FlockOperation::LockExclusive).expect("locked");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let file = File::open(&file).expect("opened");
            ask_until_followed(&mount);
            // Has a session thread start the one that waits for locks.
            flock(&file, FlockOperation::LockExclusive).expect("locked");
        });
        assert!(eventually(|| are_unbound(&mount, "locks")));
        flock(&held, FlockOperation::Unlock).expect("unlocked");
        waits.join().expect("no panic");
    });
    drop(held);
    mount.unmount();
}
