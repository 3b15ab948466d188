//! Mounts of a server with checksums: corrupted data is an error and never returned, and there
//! are no other errors.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::common::{Over, TestServer, combinations, exit_of, pattern, program, providers};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const B: usize = 4096;

/// A server whose memory file the test can corrupt.
struct Checked {
    server: TestServer,
    arena: PathBuf,
}

impl Checked {
    fn new() -> Checked {
        let memory = crate::common::directory();
        let arena = memory.path().join("memory/rfs/arena");
        let server = TestServer::with(64 * MIB, |config| {
            config.checksum = true;
            config.memory_dir = Some(memory.path().join("memory"));
        });
        // The directory must outlive the server; `drop` removes it.
        std::mem::forget(memory);
        Checked { server, arena }
    }

    /// Flips a bit in the first of `bytes`, which must occur exactly once.
    fn damage(&self, bytes: &[u8]) {
        let arena = OpenOptions::new().read(true).write(true).open(&self.arena).expect("arena");
        let all = fs::read(&self.arena).expect("arena");
        let places: Vec<usize> =
            (0..all.len()).step_by(16).filter(|&at| all[at..].starts_with(bytes)).collect();
        let [place] = places[..] else { panic!("they are there at {places:?}") };
        arena.write_all_at(&[bytes[0] ^ 0x40], place as u64).expect("damaged");
    }

    fn scrub(&self, over: Over) -> Output {
        let address = self.server.address(over);
        program().args(["scrub", "--full-speed", &address]).output().expect("rfs-fuse starts")
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let memory = self.arena.parent().and_then(Path::parent).and_then(Path::parent);
        memory.map(fs::remove_dir_all).expect("a directory above").ok();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Reads a file block by block.
fn blocks(path: &Path) -> Vec<Result<Vec<u8>, Option<i32>>> {
    let file = File::open(path).expect("opened");
    let len = file.metadata().expect("attributes").len() as usize;
    let block = |at: usize| {
        let mut block = vec![0; B.min(len - at)];
        file.read_exact_at(&mut block, at as u64).map(|()| block).map_err(|e| e.raw_os_error())
    };
    (0..len).step_by(B).map(block).collect()
}

#[test]
fn a_flipped_bit_is_an_error_in_its_block_only() {
    let eio = Some(Errno::IO.raw_os_error());
    let checked = Checked::new();
    for over in providers() {
        for cache in ["none", "auto"] {
            let name = format!("{over:?}-{cache}");
            let mount = checked.server.mount(over, &["--cache", cache]);
            let mut data = pattern(40 * B + 10, 1);
            let mark = format!("the block of {name:>20}");
            data[17 * B + 32..][..mark.len()].copy_from_slice(mark.as_bytes());
            fs::create_dir(mount.path(&name)).expect("made");
            fs::write(mount.path(&name).join("file"), &data).expect("written");
            mount.unmount();
            checked.damage(mark.as_bytes());
            // A new mount, whose kernel has no page of the file cached.
            let mount = checked.server.mount(over, &["--cache", cache]);
            let path = mount.path(&name).join("file");
            for (at, block) in blocks(&path).into_iter().enumerate() {
                let expected = data[at * B..data.len().min(at * B + B)].to_vec();
                assert!(block == if at == 17 { Err(eio) } else { Ok(expected) }, "{name}: {at}");
            }
            let scrubbed = checked.scrub(over);
            let said = text(&scrubbed.stdout);
            let expected = format!("/{name}/file: bytes {} to {} are bad (inode ", 17 * B, 18 * B - 1);
            assert!(said.starts_with(&expected) && said.ends_with("1 block is bad\n"), "{said}");
            assert_eq!((scrubbed.status.code(), said.lines().count()), (Some(1), 2), "{said}");
            // A partial write to a corrupted block fails. A write of the whole block succeeds.
            let file = OpenOptions::new().write(true).open(&path).expect("opened");
            let part = file.write_all_at(b"part", 17 * B as u64 + 5).and_then(|()| file.sync_all());
            assert_eq!(errno(part), eio, "{name}");
            file.write_all_at(&data[17 * B..18 * B], 17 * B as u64).expect("written");
            drop(file);
            assert!(fs::read(&path).expect("read") == data, "{name}");
            let scrubbed = checked.scrub(over);
            assert_eq!(scrubbed.status.code(), Some(0), "{}", text(&scrubbed.stdout));
            assert!(text(&scrubbed.stdout).ends_with("nothing is bad\n"));
            fs::remove_file(&path).expect("removed");
            mount.unmount();
        }
    }
}

#[test]
fn the_log_names_the_file_and_the_place_of_a_bad_block() {
    let checked = Checked::new();
    for over in providers() {
        let name = format!("{over:?}");
        let mount = checked.server.mount(over, &["--cache", "none"]);
        let mut data = pattern(5 * B, 1);
        let mark = format!("the block that {name:>20}");
        data[3 * B..][..mark.len()].copy_from_slice(mark.as_bytes());
        fs::write(mount.path(&name), &data).expect("written");
        mount.unmount();
        checked.damage(mark.as_bytes());
        let dir = crate::common::directory();
        let log = dir.path().join("log");
        let options = ["--cache", "none", "--log-file", log.to_str().expect("UTF-8")];
        let mount = checked.server.mount(over, &options);
        let file = File::open(mount.path(&name)).expect("opened");
        let inode = file.metadata().expect("attributes").ino();
        let mut block = [0; B];
        file.read_exact_at(&mut block, 2 * B as u64).expect("read");
        let said = || fs::read_to_string(&log).expect("a log");
        assert!(!said().contains("is bad"), "{}", said());
        let read = file.read_exact_at(&mut block, 3 * B as u64);
        assert_eq!(errno(read), Some(Errno::IO.raw_os_error()), "{name}");
        let said = said();
        let bad: Vec<&str> = said.lines().filter(|line| line.contains("is bad")).collect();
        let place = format!("inode {inode}: the block at {}, at ", 3 * B);
        assert!(!bad.is_empty() && bad.iter().all(|line| line.contains(&place)), "{name}: {said}");
        drop(file);
        mount.unmount();
    }
}

/// Two mounts write whole blocks and both read. No reader may get an error or a mixture of two
/// writes.
#[test]
fn readers_beside_writers_see_whole_blocks_and_no_error() {
    const BLOCKS: usize = 24;
    const ROUNDS: usize = 150;
    for (first, second) in combinations() {
        let server = TestServer::with(64 * MIB, |config| config.checksum = true);
        let (a, b) = (server.mount(first, &["--cache", "none"]), server.mount(second, &["--cache", "none"]));
        fs::write(a.path("file"), vec![1; BLOCKS * B]).expect("written");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = [&a, &b]
                .into_iter()
                .enumerate()
                .map(|(who, mount)| {
                    let file = OpenOptions::new().write(true).open(mount.path("file")).expect("opened");
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            // One block, a few blocks, or more than one message carries.
                            let len = [1, 3, 20][round % 3];
                            let at = (round * 7 + who * 3) % (BLOCKS - len);
                            let byte = (2 * round + who) as u8 | 1;
                            file.write_all_at(&vec![byte; len * B], (at * B) as u64).expect("written");
                        }
                    })
                })
                .collect();
            let over = &over;
            for mount in [&a, &b] {
                let file = File::open(mount.path("file")).expect("opened");
                scope.spawn(move || {
                    let mut bytes = vec![0; BLOCKS * B];
                    while !over.load(Ordering::Acquire) {
                        file.read_exact_at(&mut bytes, 0).expect("read");
                        for (at, block) in bytes.chunks(B).enumerate() {
                            assert!(block.iter().all(|byte| *byte == block[0]), "block {at} is torn");
                        }
                    }
                });
            }
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            over.store(true, Ordering::Release);
            assert!(written.iter().all(Result::is_ok));
        });
        b.unmount();
        a.unmount();
    }
}

#[test]
fn writes_of_all_kinds_are_calls_and_reads_are_none() {
    let server = TestServer::with(64 * MIB, |config| config.checksum = true);
    for over in providers() {
        let mount = server.mount(over, &["--cache", "none"]);
        let data = pattern(MIB as usize + 77, 5);
        fs::write(mount.path("file"), &data).expect("written");
        assert!(server.handled("write") >= 18, "{}", server.handled("write"));
        server.all_closed_but(0);
        let file = OpenOptions::new().read(true).write(true).open(mount.path("file")).expect("opened");
        let mut bytes = vec![0; 300_000];
        let mut reads =
            |from: u64| file.read_exact_at(&mut bytes, from).map(|()| bytes.clone()).expect("read");
        reads(0);
        let calls = server.calls_of(|| {
            for from in [0, 1, 4095, 4096, 700_000] {
                assert!(reads(from) == data[from as usize..from as usize + 300_000], "{from}");
            }
        });
        assert_eq!(calls, 0);
        drop(file);
        fs::remove_file(mount.path("file")).expect("removed");
        server.all_closed_but(0);
        mount.unmount();
    }
}

#[test]
fn a_mount_that_requires_checksums_gets_them_or_fails() {
    let plain = TestServer::with(16 * MIB, |config| config.checksum = false);
    let address = plain.address(Over::Shm);
    let dir = crate::common::directory();
    let mut mount = program()
        .args(["--checksum", &address])
        .arg(dir.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("rfs-fuse starts");
    assert_eq!(exit_of(&mut mount).code(), Some(1));
    let said = io::read_to_string(mount.stderr.take().expect("piped")).expect("UTF-8");
    let expected =
        "its first export has no checksums, which --checksum asks for: start the server with --checksum";
    assert!(said.contains(expected), "{said}");
    let scrubbed = program().args(["scrub", &address]).output().expect("rfs-fuse starts");
    assert_eq!(scrubbed.status.code(), Some(3));
    assert!(text(&scrubbed.stderr).contains("has no checksums"), "{}", text(&scrubbed.stderr));
    let checked = TestServer::with(16 * MIB, |config| config.checksum = true);
    let mount = checked.mount(Over::Shm, &["--checksum"]);
    assert!(mount.greeting.trim_end().ends_with(", with checksums)"), "{}", mount.greeting);
    mount.unmount();
    let usage = program().arg("scrub").output().expect("rfs-fuse starts");
    assert_eq!(usage.status.code(), Some(2));
}
