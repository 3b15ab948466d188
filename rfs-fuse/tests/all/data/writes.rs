//! Small concurrent writes, which the client answers asynchronously.

use std::{
    fs::{self, File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::common::{Mount, Over, TestServer, directory, providers, proxy::Proxy, random::Random};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const WRITERS: u64 = 6;
/// Minimum number of times that connections are cut.
const CUTS: u64 = 8;

fn open(mount: &Mount, name: &str) -> File {
    let path = mount.path(name);
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened")
}

/// Creates a file of zeros.
fn zeros(mount: &Mount) -> File {
    let file = open(mount, "f");
    file.write_all_at(&vec![0; MIB as usize], 0).expect("written");
    file
}

/// Returns the content of a writer's blocks after its `step`th round.
fn content(writer: u64, step: u64) -> Vec<u8> {
    (step * WRITERS + writer).to_le_bytes().repeat(BLOCK / 8)
}

/// Has each thread write blocks of its own in a file of zeros, and immediately read them. After
/// `is_enough` steps all blocks must have their last content.
fn write_and_read(file: &File, is_enough: impl Fn(u64) -> bool + Sync) {
    let blocks = MIB / BLOCK as u64;
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let is_enough = &is_enough;
            scope.spawn(move || {
                let mut last = vec![None; blocks as usize];
                let check = |block: u64, step| {
                    let mut bytes = vec![0; BLOCK];
                    file.read_exact_at(&mut bytes, block * BLOCK as u64).expect("read");
                    assert!(bytes == content(writer, step), "block {block} of writer {writer}, step {step}");
                };
                for step in (1..).take_while(|step| !is_enough(*step)) {
                    let block = (step * 7919) % (blocks / WRITERS) * WRITERS + writer;
                    file.write_all_at(&content(writer, step), block * BLOCK as u64).expect("written");
                    check(block, step);
                    last[block as usize] = Some(step);
                }
                let written = (0..).zip(&last).filter_map(|(block, step)| Some((block, (*step)?)));
                written.for_each(|(block, step)| check(block, step));
            });
        }
    });
}

#[test]
fn each_block_has_its_last_write() {
    for over in providers() {
        for cache in ["none", "auto"] {
            let server = TestServer::new(16 * MIB);
            let mount = server.mount(over, &["--cache", cache]);
            let file = zeros(&mount);
            write_and_read(&file, |step| step > 500);
            // Checks the result through another mount.
            let beside = server.mount(over, &[]);
            assert!(
                fs::read(mount.path("f")).expect("read") == fs::read(beside.path("f")).expect("read"),
                "{cache} over {over:?}"
            );
            drop(file);
            beside.unmount();
            mount.unmount();
        }
    }
}

/// Connections are cut at arbitrary bytes, and programs notice nothing.
#[test]
fn writes_that_are_cut_off_are_repeated() {
    for cache in ["none", "auto"] {
        let server =
            TestServer::with(64 * MIB, |config| config.fencing.lease = Some(Duration::from_secs(60)));
        let proxy = Proxy::to(server.address(Over::Tcp));
        let dir = directory();
        let options = ["--provider", "tcp", "--timeout", "60", "--cache", cache];
        let mount = Mount::start(proxy.address(), dir.path(), &options);
        let file = zeros(&mount);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(42);
                while !over.load(Ordering::SeqCst) {
                    proxy.cut_after(random.below(300_000));
                    while proxy.will_cut() && !over.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    // Mostly long enough to reconnect.
                    thread::sleep(Duration::from_millis(random.below(120)));
                }
            });
            let written =
                scope.spawn(|| write_and_read(&file, |step| step > 200 && proxy.cuts() >= CUTS)).join();
            over.store(true, Ordering::SeqCst);
            written.expect("written and read");
        });
        drop(file);
        mount.unmount();
    }
}

/// Another mount truncates the file, which frees blocks, and another file reuses them.
#[test]
fn no_write_reaches_freed_blocks() {
    for over in providers() {
        // Enough space for little more than one of the two files.
        let server = TestServer::new(2 * MIB);
        let (mount, beside) =
            (server.mount(over, &["--cache", "none"]), server.mount(over, &["--cache", "none"]));
        let (mine, truncated, other) = (open(&mount, "mine"), open(&beside, "mine"), open(&beside, "other"));
        let (over_now, written) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (mine, over_now, written) = (&mine, &over_now, Arc::clone(&written));
                scope.spawn(move || {
                    let mut at = writer * BLOCK as u64;
                    while !over_now.load(Ordering::Relaxed) {
                        match mine.write_all_at(&[b'm'; BLOCK], at) {
                            Ok(()) => _ = written.fetch_add(1, Ordering::Relaxed),
                            Err(e) => assert_eq!(e.kind(), ErrorKind::StorageFull),
                        }
                        at = (at + 5 * BLOCK as u64) % MIB;
                    }
                });
            }
            let rounds = (0..100).try_for_each(|_| {
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) < before + 50 {
                    thread::yield_now();
                }
                truncated.set_len(0)?;
                let len = (1..=MIB)
                    .rev()
                    .step_by(64 << 10)
                    .find(|len| other.write_all_at(&vec![b'o'; *len as usize], 0).is_ok());
                let mut all = vec![0; len.unwrap_or(0) as usize];
                other.read_exact_at(&mut all, 0)?;
                assert!(all.iter().all(|byte| *byte == b'o'));
                other.set_len(0)
            });
            over_now.store(true, Ordering::Relaxed);
            rounds.expect("written and truncated");
        });
        let all = fs::read(mount.path("mine")).expect("read");
        assert!(all.iter().all(|byte| matches!(byte, 0 | b'm')));
        drop((mine, truncated, other));
        beside.unmount();
        mount.unmount();
    }
}
