//! Reads through the page cache beside asynchronous O_DIRECT writes.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::common::{aio::Aio, each, mapping::Mapping};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
};

const CHUNK: usize = 64 << 10;
/// Above the kernel's default limit of background requests, so that waiting writes could delay
/// read-ahead.
const CHUNKS: usize = 32;
const SIZE: usize = CHUNK * CHUNKS;
const ROUNDS: u8 = 40;
const PAGE: usize = 4096;

fn direct(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).expect("opened")
}

/// Stops the readers when dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Overwrites the file in rounds, beside two readers. After each round `look` gets its byte.
fn written_beside_readers(path: &Path, file: &File, look: impl Fn(u8)) {
    let (aio, stop, mut memory) = (Aio::new(CHUNKS), AtomicBool::new(false), vec![0; SIZE + PAGE]);
    let at = memory.as_ptr().align_offset(PAGE);
    let bytes = &mut memory[at..at + SIZE];
    thread::scope(|scope| {
        // Also when `look` panics, because the scope waits for the readers.
        let _stops = Stops(&stop);
        for _ in 0..2 {
            let (file, stop) = (File::open(path).expect("opened"), &stop);
            scope.spawn(move || {
                let mut buffer = vec![0; SIZE];
                while !stop.load(Ordering::Relaxed) {
                    file.read_at(&mut buffer, 0).expect("read");
                }
            });
        }
        for round in 1..=ROUNDS {
            bytes.fill(round);
            aio.write(file, bytes, CHUNK);
            look(round);
        }
    });
}

/// Fails unless a buffered read through `file` returns only this byte.
fn is_filled_with(file: &File, byte: u8) {
    let mut buffer = vec![0; SIZE];
    assert_eq!(file.read_at(&mut buffer, 0).expect("read"), SIZE);
    let stale = buffer.iter().position(|found| *found != byte);
    assert_eq!(stale, None, "the first byte that is stale in round {byte}");
}

#[test]
fn a_buffered_read_sees_an_asynchronous_direct_write_that_is_complete() {
    each(64 << 20, |_, mount| {
        let path = mount.path("file");
        std::fs::write(&path, vec![0; SIZE]).expect("written");
        let (file, reader) = (direct(&path, libc::O_DIRECT), File::open(&path).expect("opened"));
        written_beside_readers(&path, &file, |round| is_filled_with(&reader, round));
    });
}

#[test]
fn a_buffered_read_sees_direct_writes_after_o_direct_was_set_later() {
    each(64 << 20, |_, mount| {
        let path = mount.path("file");
        std::fs::write(&path, vec![0; SIZE]).expect("written");
        let (file, reader) = (direct(&path, 0), File::open(&path).expect("opened"));
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_DIRECT)).expect("set");
        written_beside_readers(&path, &file, |round| is_filled_with(&reader, round));
    });
}

#[test]
fn a_mapping_sees_a_complete_asynchronous_direct_write() {
    each(64 << 20, |_, mount| {
        let path = mount.path("file");
        std::fs::write(&path, vec![0; SIZE]).expect("written");
        let file = direct(&path, libc::O_DIRECT);
        let mapped = Mapping::read_only(&File::open(&path).expect("opened"), SIZE);
        written_beside_readers(&path, &file, |round| {
            let pages = (0..SIZE).step_by(PAGE).map(|at| mapped.read(at, 1)[0]);
            assert_eq!(pages.filter(|byte| *byte != round).count(), 0, "stale pages in round {round}");
        });
    });
}
