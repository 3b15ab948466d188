//! Concurrent requests of several threads are posted together, according to the runtime's
//! counters. The scheduler decides whether requests meet, so the tests try repeatedly.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    thread,
};

use crate::common::{Lender, Mount, Over, pattern, providers};
use rustix::fs::OFlags;

const MIB: u64 = 1 << 20;
/// Maximum number of mounts to try.
const TRIES: u32 = 30;

/// Each thread makes directories in a directory of its own, because the kernel serializes changes
/// of one directory.
fn make_directories(mount: &Mount, threads: u32) {
    (0..threads).for_each(|own| fs::create_dir(mount.path(&format!("{own}"))).expect("made"));
    thread::scope(|scope| {
        for own in 0..threads {
            scope.spawn(move || {
                for number in 0..200 {
                    fs::create_dir(mount.path(&format!("{own}/{number}"))).expect("made");
                }
            });
        }
    });
}

#[test]
fn the_calls_of_several_threads_go_in_one_post() {
    for over in providers() {
        let messages_and_posts = |threads: u32| {
            let lender = Lender::new(64 * MIB);
            let mount = lender.mount(over, &["--threads", "8", "--calls", "reply", "--stats-on-exit"]);
            make_directories(&mount, threads);
            let [messages, posts] = mount.counted(["call_messages", "call_doorbells"]);
            assert!(messages >= u64::from(threads) * 200, "{messages}");
            assert!(posts <= messages, "{posts} posts of {messages} messages over {over:?}");
            (messages, posts)
        };
        let met = |_| {
            let (messages, posts) = messages_and_posts(8);
            posts < messages
        };
        assert!((0..TRIES).any(met), "each message over {over:?} has left alone");
    }
}

/// Writes 1 MiB with O_DIRECT. The kernel splits it into eight concurrent requests of 128 KiB.
fn write_in_parts(mount: &Mount) {
    let mut options = OpenOptions::new();
    options.write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file: File = options.open(mount.path("file")).expect("opened");
    // Page-aligned, as O_DIRECT requires.
    let bytes = pattern(MIB as usize + 4096, 3);
    let start = bytes.as_ptr().align_offset(4096);
    // The kernel sends the parts concurrently only if the file already has its length.
    for at in [0, 1, 2, 3].repeat(16) {
        file.write_all_at(&bytes[start..start + MIB as usize], at * MIB).expect("written");
    }
}

#[test]
fn parts_of_a_write_that_meet_go_in_one_request() {
    // Over shared memory a mount copies by itself and posts nothing.
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let counted = |batch: &str| {
            let lender = Lender::new(64 * MIB);
            let options = ["--batch", batch, "--max-write", "128K", "--threads", "8", "--stats-on-exit"];
            let mount = lender.mount(over, &options);
            write_in_parts(&mount);
            let [reads, writes, atomics, merged, work_requests, doorbells] = mount.counted([
                "read_requests",
                "write_requests",
                "atomic_requests",
                "merged",
                "work_requests",
                "doorbells",
            ]);
            assert_eq!(work_requests + merged, reads + writes + atomics, "{batch} over {over:?}");
            assert!(doorbells <= work_requests, "{doorbells} doorbells of {work_requests} work requests");
            merged
        };
        assert_eq!(counted("single"), 0, "over {over:?}");
        let met = |_| counted("hybrid") > 0;
        assert!((0..TRIES).any(met), "no two parts have met over {over:?}");
    }
}
