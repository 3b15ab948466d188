//! Exercises one file through two mounts in turn, and compares it with an array of bytes. Each
//! step opens the file that the previous step closed.

use std::{
    fs::{File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use crate::common::{
    Mount, TestServer,
    bytes::{copy_within, put},
    combinations, pattern, providers,
    random::{Random, seed},
};
use rustix::fs::{FallocateFlags, fallocate};

const MAX_OFFSET: u64 = 300_000;
const STEPS: u32 = 1500;

fn open(path: &Path, append: bool) -> File {
    OpenOptions::new().read(true).write(!append).append(append).open(path).expect("opened")
}

/// Runs one step on the file and on the model.
pub(super) fn step(random: &mut Random, path: &Path, model: &mut Vec<u8>) -> &'static str {
    let at = random.below(MAX_OFFSET);
    // Mostly short, sometimes several pages.
    let len = if random.below(4) == 0 { random.below(100_000) } else { random.below(5000) } + 1;
    let (offset, size) = (at as usize, model.len());
    match random.below(10) {
        0..=2 => {
            let bytes = pattern(len as usize, random.below(1 << 20));
            open(path, false).write_all_at(&bytes, at).expect("written");
            put(model, offset, &bytes);
            "write"
        }
        3 => {
            let bytes = pattern(len as usize, random.below(1 << 20));
            open(path, true).write_all(&bytes).expect("appended");
            model.extend_from_slice(&bytes);
            "append"
        }
        4 => {
            open(path, false).set_len(at).expect("truncated");
            model.resize(offset, 0);
            "truncate"
        }
        5 => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(open(path, false), flags, at, len).expect("punched");
            let (from, to) = (offset.min(size), (offset + len as usize).min(size));
            model[from..to].fill(0);
            "punch"
        }
        6 => {
            fallocate(open(path, false), FallocateFlags::ZERO_RANGE, at, len).expect("zeroed");
            put(model, offset, &vec![0; len as usize]);
            "zero"
        }
        7 => {
            fallocate(open(path, false), FallocateFlags::empty(), at, len).expect("allocated");
            if size < offset + len as usize {
                model.resize(offset + len as usize, 0);
            }
            "allocate"
        }
        8 => {
            let file = open(path, false);
            // The kernel bounds a copy by the size that it knows, so query the size first, as copy
            // programs do.
            assert_eq!(file.metadata().expect("attributes").len(), size as u64);
            copy_within(&file, model, (random.below(size as u64), at), len);
            "copy"
        }
        _ => {
            let file = open(path, false);
            let mut map = random.below(2) == 0;
            map &= size > 0;
            if map {
                // Writes through a mapping, to be written back on close.
                let at = random.below(size as u64);
                file.write_all_at(b"pages", at).expect("written");
                file.sync_all().expect("synced");
                put(model, at as usize, b"pages");
            }
            "sync"
        }
    }
}

fn check(random: &mut Random, path: &Path, model: &[u8]) {
    let mut file = File::open(path).expect("opened");
    assert_eq!(file.metadata().expect("attributes").len(), model.len() as u64);
    assert_eq!(file.seek(SeekFrom::End(0)).expect("position"), model.len() as u64);
    // Mostly a part of the file, now and then all of it.
    let (from, to) = match random.below(8) {
        0 => (0, model.len()),
        _ => {
            let from = random.below(model.len() as u64 + 1) as usize;
            (from, (from + 20_000).min(model.len()))
        }
    };
    let mut bytes = vec![0xee; to - from];
    file.read_exact_at(&mut bytes, from as u64).expect("read");
    let wrong = bytes.iter().zip(&model[from..to]).position(|(is, should)| is != should);
    assert_eq!(wrong.map(|at| from + at), None, "of {}", model.len());
}

pub(super) fn exercise(a: &Mount, b: &Mount, (seed, steps): (u64, u32)) {
    let mut random = Random::new(seed);
    let mut model = Vec::new();
    File::create(a.path("file")).expect("created");
    let mut done = Vec::new();
    for number in 0..steps {
        let by = [a, b][random.below(2) as usize];
        let what = step(&mut random, &by.path("file"), &mut model);
        done.push((what, if std::ptr::eq(by, a) { "a" } else { "b" }));
        let to_see = [a, b][random.below(2) as usize];
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&mut random, &to_see.path("file"), &model);
        }));
        if let Err(panic) = seen {
            let last = &done[done.len().saturating_sub(8)..];
            eprintln!("RFS_EXERCISER_SEED={seed} repeats it: step {number}; the last were {last:?}");
            std::panic::resume_unwind(panic);
        }
        if model.len() as u64 > 4 * MAX_OFFSET {
            File::create(a.path("file")).expect("truncated");
            model.clear();
        }
    }
    std::fs::remove_file(b.path("file")).expect("removed");
}

/// Uses a fixed seed, then a new one.
#[test]
fn two_mounts_in_turn_are_one_file_system() {
    let fresh = seed();
    for (first, second) in combinations() {
        let server = TestServer::new(64 << 20);
        let (a, b) = (server.mount(first, &[]), server.mount(second, &[]));
        for seed in [42, fresh] {
            eprintln!("{first:?} and {second:?}, seed {seed}");
            exercise(&a, &b, (seed, STEPS));
        }
        b.unmount();
        a.unmount();
    }
    assert!(!providers().is_empty());
}

/// The same with checksums: no change may leave a stale checksum.
#[test]
fn two_mounts_in_turn_are_one_file_system_with_checksums() {
    for (first, second) in combinations() {
        let server = TestServer::with(64 << 20, |config| config.checksum = true);
        let (a, b) = (server.mount(first, &[]), server.mount(second, &["--cache", "none"]));
        let seed = seed();
        eprintln!("{first:?} and {second:?}, seed {seed}");
        exercise(&a, &b, (seed, STEPS / 3));
        b.unmount();
        a.unmount();
    }
}
