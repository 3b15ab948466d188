//! Small concurrent reads, which the client answers asynchronously.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::common::{TestServer, pattern, providers};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const READERS: u64 = 6;

#[test]
fn each_reader_gets_the_requested_bytes() {
    let content = pattern(MIB as usize, 3);
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &["--cache", "none"]);
        fs::write(mount.path("f"), &content).expect("written");
        let file = File::open(mount.path("f")).expect("opened");
        thread::scope(|scope| {
            for reader in 0..READERS {
                let (file, content) = (&file, &content);
                scope.spawn(move || {
                    let mut bytes = [0; BLOCK];
                    for step in 0..1000 {
                        // Offsets that no two readers share at consecutive steps.
                        let at = ((step * 7919 + reader * 104_729) * 13) % (MIB - 1);
                        let len = file.read_at(&mut bytes, at).expect("read");
                        let expected = &content[at as usize..content.len().min(at as usize + BLOCK)];
                        assert!(bytes[..len] == *expected, "{len} bytes at {at}");
                    }
                });
            }
        });
        drop(file);
        mount.unmount();
    }
}

/// A truncation frees blocks, and another file reuses them.
#[test]
fn no_reader_sees_another_files_bytes_in_freed_blocks() {
    for over in providers() {
        // Enough space for only one of the two files.
        let server = TestServer::new(2 * MIB);
        let mount = server.mount(over, &["--cache", "none"]);
        let open = |name| {
            let path = mount.path(name);
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened")
        };
        let (mine, other) = (open("mine"), open("other"));
        let over_now = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..READERS {
                let (mine, over_now) = (&mine, &over_now);
                scope.spawn(move || {
                    let mut bytes = [0; BLOCK];
                    let mut at = reader * BLOCK as u64;
                    while !over_now.load(Ordering::Relaxed) {
                        let len = mine.read_at(&mut bytes, at).expect("read");
                        assert!(bytes[..len].iter().all(|byte| matches!(byte, 0 | b'm')), "at {at}");
                        at = (at + 5 * BLOCK as u64) % MIB;
                    }
                });
            }
            let written = (0..200).try_for_each(|round| {
                let (file, byte) = if round % 2 == 0 { (&mine, b'm') } else { (&other, b'o') };
                file.write_all_at(&vec![byte; MIB as usize], 0)?;
                file.set_len(0)
            });
            over_now.store(true, Ordering::Relaxed);
            written.expect("written and truncated");
        });
        drop((mine, other));
        mount.unmount();
    }
}
