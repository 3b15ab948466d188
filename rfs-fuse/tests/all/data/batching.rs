//! Concurrent requests of several threads are posted together, according to the runtime's
//! counters. The scheduler decides whether requests meet, so the tests try repeatedly.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    thread,
};

use crate::common::{Mount, Over, TestServer, aio::Aio, checked, pattern, providers};
use rustix::fs::OFlags;

const MIB: u64 = 1 << 20;
/// Maximum number of mounts to try.
const TRIES: u32 = 30;

/// Has each thread make 200 directories in a directory of its own, because the kernel serializes
/// changes of one directory.
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
            let server = TestServer::new(64 * MIB);
            let mount = server.mount(over, &["--threads", "8", "--calls", "reply", "--stats-on-exit"]);
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
            let server = TestServer::new(64 * MIB);
            let options = ["--batch", batch, "--max-write", "128K", "--threads", "8", "--stats-on-exit"];
            let mount = server.mount(over, &options);
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

/// Requests of a write that extends a file: the bytes, the exchange of the size, and a read.
const STEPS: u64 = 3;

/// Has each thread append 200 blocks to a file of its own, because the kernel serializes the writes
/// that extend one file. Such a write is an ordered list of [`STEPS`] requests.
fn extend_files(mount: &Mount, threads: u32) {
    thread::scope(|scope| {
        for own in 0..threads {
            scope.spawn(move || {
                let file = File::create(mount.path(&format!("{own}"))).expect("created");
                let bytes = pattern(4096, own.into());
                (0..200).for_each(|block| file.write_all_at(&bytes, block * 4096).expect("written"));
            });
        }
    });
}

/// Catches writes that extend files and leave alone, while others chain.
#[test]
fn writes_that_extend_several_files_share_doorbells() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    // Over shared memory a mount copies by itself and posts nothing.
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let counted = |batch: &str| {
            let server = TestServer::new(64 * MIB);
            let options = ["--batch", batch, "--threads", "8", "--cache", "none", "--stats-on-exit"];
            let mount = server.mount(over, &options);
            extend_files(&mount, 8);
            let [chains, requests] = mount.counted(["chains", "chain_length_sum"]);
            eprintln!("{batch}: {chains} chains of {requests} work requests over {over:?}");
            (chains, requests)
        };
        let (chains, requests) = counted("single");
        assert!(chains >= 8 * 200 && requests == chains * STEPS, "{chains} chains, {requests}");
        let met = |_| {
            let (chains, requests) = counted("hybrid");
            requests > chains * STEPS
        };
        assert!((0..TRIES).any(met), "each extending write over {over:?} has left alone");
    }
}

/// Writes that extend files wait for nothing but their completion, so more of them are under way
/// than a default mount has session threads. Catches a mount that blocks a thread for each.
#[test]
fn a_default_mount_has_more_extending_writes_under_way_than_threads() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    // Over shared memory a mount copies by itself and posts nothing.
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let many = |_| {
            let server = TestServer::new(64 * MIB);
            let (mount, other) = (server.mount(over, &["--stats-on-exit"]), server.mount(over, &[]));
            extend_files(&mount, 8);
            for own in 0..8 {
                let bytes = fs::read(other.path(&format!("{own}"))).expect("read");
                assert!(bytes == pattern(4096, own).repeat(200), "file {own} over {over:?}");
            }
            // All started requests are writes past the end: the mount has read nothing.
            let names = ["started_peak", "callbacks", "chains", "chain_length_sum"];
            let [peak, started, chains, requests] = mount.counted(names);
            eprintln!("up to {peak} of {started} writes at once over {over:?}");
            eprintln!("{chains} chains of {requests} work requests");
            // A request counts until its answer has returned, so two threads may add two.
            peak > 2 + 2 && requests > chains * STEPS
        };
        assert!((0..TRIES).any(many), "at most two extending writes at once over {over:?}");
    }
}

/// Requests that the kernel offers at once, and their length.
const BLOCKS: usize = 64;
const BLOCK: usize = 4096;
const ROUNDS: usize = 40;

/// Runs a load of adjacent requests on a mount with default options: [`ROUNDS`] times [`BLOCKS`]
/// asynchronous requests of [`BLOCK`] bytes. Returns the number of requests of `counter`, and of
/// merged ones.
fn load_by_default(over: Over, counter: &str, load: impl Fn(&Aio, &File, &mut [u8])) -> (u64, u64) {
    let server = TestServer::new(64 * MIB);
    let mount = server.mount(over, &["--stats-on-exit"]);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file: File = options.open(mount.path("file")).expect("opened");
    // Page-aligned, as O_DIRECT requires.
    let mut memory = pattern((BLOCKS + 1) * BLOCK, 3);
    let start = memory.as_ptr().align_offset(BLOCK);
    let bytes = &mut memory[start..start + BLOCKS * BLOCK];
    // The kernel makes requests concurrently only inside the file.
    file.write_all_at(bytes, 0).expect("written");
    let aio = Aio::new(BLOCKS);
    (0..ROUNDS).for_each(|_| load(&aio, &file, bytes));
    drop(file);
    let [requests, merged] = mount.counted([counter, "merged"]);
    eprintln!("{counter} {requests}, merged {merged} over {over:?}");
    assert!(requests >= (ROUNDS * BLOCKS) as u64, "{requests}");
    (requests, merged)
}

/// A mount with default options has two session threads. It keeps more small requests under way, so
/// neighbours meet. Catches a mount that blocks a thread for each request. At most two requests are
/// then under way, and no work request carries more than two.
#[test]
fn a_default_mount_merges_adjacent_requests() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    // Over shared memory a mount copies by itself and posts nothing.
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let writes = |_| {
            let write = |aio: &Aio, file: &File, bytes: &mut [u8]| aio.write(file, bytes, BLOCK);
            load_by_default(over, "write_requests", write)
        };
        let reads = |_| {
            let read = |aio: &Aio, file: &File, bytes: &mut [u8]| aio.read(file, bytes, BLOCK);
            load_by_default(over, "read_requests", read)
        };
        // More than two requests in each work request, on average.
        let many = |(requests, merged): (u64, u64)| merged > requests / 2;
        assert!((0..TRIES).map(writes).any(many), "writes do not merge over {over:?}");
        assert!((0..TRIES).map(reads).any(many), "reads do not merge over {over:?}");
    }
}

/// Number of large writes of the test below.
const LARGE: u64 = 64;

/// Catches a mount that copies or registers the receive buffer for each large WRITE. It registers
/// the buffer of each of its two threads once, or twice if a shorter write came first.
#[test]
fn large_writes_leave_from_the_registered_receive_buffer() {
    if checked() {
        return eprintln!("not run: with checksums the server makes the writes");
    }
    for over in providers().into_iter().filter(|over| *over != Over::Shm) {
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(over, &["--stats-on-exit"]);
        let file = File::create(mount.path("file")).expect("created");
        let bytes = pattern(MIB as usize, 7);
        // The first ones extend the file.
        (0..LARGE).for_each(|at| file.write_all_at(&bytes, at % 8 * MIB).expect("written"));
        drop(file);
        assert!(fs::read(mount.path("file")).expect("read")[7 * MIB as usize..] == bytes);
        let names = ["registrations", "registered_bytes", "pre_mr_bytes", "dyn_mr_bytes", "bytes_written"];
        let [registrations, registered, copied, dynamic, written] = mount.counted(names);
        eprintln!(
            "{registrations} registrations, {registered} bytes, {dynamic} and {copied} others over {over:?}"
        );
        assert!(registered >= LARGE * MIB && written >= LARGE * MIB, "over {over:?}");
        // Of the reads only.
        assert!(dynamic + copied <= 9 * MIB, "over {over:?}");
        assert!(registrations <= 4 + dynamic / (64 << 10), "over {over:?}");
    }
}
