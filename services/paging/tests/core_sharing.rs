//! The fault thread shares the core of the one thread that faults.
//!
//! Own program: it reads the policies of all fault threads of its process.

mod support;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rfs_paging::PagedMemory;
use support::{Lenders, MIB, Provider, check, fill, options, pager, wait_for};

/// SCHED_IDLE in `/proc/PID/stat`.
const IDLE: &str = "5";

/// Returns the policies of the fault threads of this process.
fn policies() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("procfs");
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let fault_threads = stats.filter(|stat| stat.contains("(rfs-paging)"));
    fault_threads.filter_map(|stat| Some(stat.rsplit(')').next()?.split(' ').nth(39)?.to_owned())).collect()
}

/// Faults until `end` holds, for a minute at most. Returns whether it held.
fn fault_until(memory: &mut PagedMemory, pages: usize, end: impl Fn() -> bool) -> bool {
    let begin = Instant::now();
    while !end() {
        if begin.elapsed() > Duration::from_secs(60) {
            return false;
        }
        (0..50).for_each(|_| check(memory, 0..pages, 1));
    }
    true
}

// One test, because a fault thread of another test would be taken for this one's.
#[test]
fn one_thread_is_followed_and_left_when_it_stops() {
    let lenders = Lenders::start(Provider::Shm, 1, 8 * MIB);
    for follow in [true, false] {
        let (options, _) = options(Provider::Shm, 32);
        let pager = pager(&lenders.addresses(), options.read_ahead(4096).follow(follow));
        let mut memory = pager.map(128 * 4096).expect("memory");
        fill(&mut memory, 0..128, 1);
        assert_eq!(policies().len(), 1);
        let followed = AtomicBool::new(false);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    followed.fetch_or(policies() == [IDLE], Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            });
            if follow {
                assert!(fault_until(&mut memory, 128, || followed.load(Ordering::Relaxed)), "never followed");
            } else {
                (0..50).for_each(|_| check(&memory, 0..128, 1));
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(followed.into_inner(), follow);
        wait_for("the fault thread to leave the core", || policies() == ["0"]);
    }
}
