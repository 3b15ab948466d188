//! Files that stay open on two mounts while either mount changes size and space, one operation at
//! a time.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use crate::common::{
    Mount, TestServer,
    bytes::{copy_within, put},
    combinations, pairs, pattern,
    random::{Random, seed},
};
use rustix::{
    fs::{FallocateFlags, SeekFrom, fallocate, seek},
    io::Errno,
};

const MIB: u64 = 1 << 20;
const MAX_OFFSET: u64 = 40_000;
const STEPS: u32 = 800;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn open(path: PathBuf) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("opened")
}

/// Runs a test for each kind of mount, in both directions, with a file of 3,000 bytes open on
/// both mounts.
fn shared(test: impl Fn(&File, &File, &Mount)) {
    for options in [&[][..], &["--cache", "none"]] {
        pairs(64 * MIB, options, |_, a, b| {
            for (here, there) in [(a, b), (b, a)] {
                let path = here.path("file");
                let (one, two) = (open(path.clone()), open(there.path("file")));
                one.write_all_at(&[b'x'; 3000], 0).expect("written");
                // From now on the mount has cached the size.
                one.write_all_at(b"y", 0).expect("written");
                one.read_exact_at(&mut [0; 10], 0).expect("read");
                test(&one, &two, there);
                drop((one, two));
                std::fs::remove_file(path).expect("removed");
            }
        });
    }
}

/// Returns the content that a new `open` on a mount sees.
fn content(mount: &Mount) -> Vec<u8> {
    std::fs::read(mount.path("file")).expect("read")
}

fn expected(kept: usize, at: usize, late: &[u8]) -> Vec<u8> {
    let mut bytes = [b"y", &vec![b'x'; 2999][..]].concat();
    bytes.truncate(kept);
    bytes.resize(at, 0);
    bytes.extend_from_slice(late);
    bytes
}

#[test]
fn a_write_after_a_truncation_within_a_block_makes_the_file_longer() {
    shared(|one, two, there| {
        two.set_len(100).expect("truncated");
        one.write_all_at(b"late", 2000).expect("written");
        assert_eq!(two.metadata().expect("attributes").len(), 2004);
        assert!(content(there) == expected(100, 2000, b"late"));
    });
}

/// The truncation frees no space, and no byte behind the new end is stored.
#[test]
fn a_write_after_a_truncation_to_a_hole_makes_the_file_longer() {
    shared(|one, two, there| {
        one.set_len(0).expect("truncated");
        one.set_len(3000).expect("a hole");
        one.read_exact_at(&mut [0; 10], 2000).expect("read");
        two.set_len(100).expect("truncated");
        one.write_all_at(b"late", 2000).expect("written");
        assert_eq!(two.metadata().expect("attributes").len(), 2004);
        assert!(content(there) == expected(0, 2000, b"late"));
    });
}

#[test]
fn a_write_after_a_truncating_open_makes_the_file_longer() {
    shared(|one, _, there| {
        File::create(there.path("file")).expect("truncated");
        one.write_all_at(b"late", 2000).expect("written");
        assert!(content(there) == expected(0, 2000, b"late"));
    });
}

#[test]
fn an_append_after_a_truncation_is_at_the_new_end() {
    shared(|_, two, there| {
        let here = OpenOptions::new().append(true).open(there.path("file")).expect("opened");
        std::io::Write::write_all(&mut &here, b"first").expect("appended");
        two.set_len(100).expect("truncated");
        std::io::Write::write_all(&mut &here, b"late").expect("appended");
        assert!(content(there) == expected(100, 100, b"late"));
    });
}

/// Reads past the page cache. The kernel does not query the size for such a read.
#[test]
fn a_read_after_a_truncation_ends_at_the_new_end() {
    pairs(64 * MIB, &["--cache", "none"], |_, a, b| {
        let (one, two) = (open(a.path("file")), open(b.path("file")));
        one.write_all_at(&[b'x'; 3000], 0).expect("written");
        let mut bytes = [0; 4096];
        for len in (0..3000).rev().step_by(37) {
            assert!(one.read_at(&mut bytes, 0).expect("read") > len);
            two.set_len(len as u64).expect("truncated");
            assert_eq!(one.read_at(&mut bytes, 0).expect("read"), len);
        }
    });
}

/// A file that two mounts have open, with a model of its content.
struct Shared {
    /// Descriptors of each mount: one to read and write, one to append.
    files: [[File; 2]; 2],
    paths: [PathBuf; 2],
    model: Vec<u8>,
    /// True if reads through an open descriptor see all previous writes.
    coherent: bool,
}

impl Shared {
    fn new(mounts: [&Mount; 2], coherent: bool) -> Shared {
        let paths = mounts.map(|mount| mount.path("file"));
        let files = paths.clone().map(Shared::descriptors);
        Shared { files, paths, model: Vec::new(), coherent }
    }

    fn descriptors(path: PathBuf) -> [File; 2] {
        let file = open(path.clone());
        [file, OpenOptions::new().read(true).append(true).open(path).expect("opened")]
    }

    /// Runs one step on a mount. Returns its description.
    fn step(&mut self, random: &mut Random, by: usize) -> String {
        let (at, len) = (random.below(MAX_OFFSET), random.below(6000) + 1);
        let (offset, size) = (at as usize, self.model.len());
        let end = offset + len as usize;
        let [file, end_of_file] = &self.files[by];
        match random.below(12) {
            0..=2 => {
                let bytes = pattern(len as usize, random.below(1 << 20));
                file.write_all_at(&bytes, at).expect("written");
                put(&mut self.model, offset, &bytes);
                format!("write {at} {len}")
            }
            3 => {
                let bytes = pattern(len as usize, random.below(1 << 20));
                std::io::Write::write_all(&mut &*end_of_file, &bytes).expect("appended");
                self.model.extend_from_slice(&bytes);
                format!("append {len}")
            }
            4 | 5 => {
                // Often within the last block.
                let at = if random.below(2) == 0 { (size as u64).saturating_sub(len % 1000) } else { at };
                if random.below(2) == 0 {
                    file.set_len(at).expect("truncated");
                } else {
                    rustix::fs::ftruncate(open(self.paths[by].clone()), at).expect("truncated");
                }
                self.model.resize(at as usize, 0);
                format!("truncate {at}")
            }
            6 => {
                fallocate(file, PUNCH, at, len).expect("punched");
                self.model[offset.min(size)..end.min(size)].fill(0);
                format!("punch {at} {len}")
            }
            7 => {
                fallocate(file, FallocateFlags::ZERO_RANGE, at, len).expect("zeroed");
                put(&mut self.model, offset, &vec![0; len as usize]);
                format!("zero {at} {len}")
            }
            8 => {
                // The kernel bounds a copy by the size that it knows, so query the size first, as
                // copy programs do.
                assert_eq!(file.metadata().expect("attributes").len(), size as u64);
                let from = random.below(size as u64);
                copy_within(file, &mut self.model, (from, at), len);
                format!("copy {from} {at} {len}")
            }
            9 => {
                self.seek(by, at);
                format!("seek {at}")
            }
            10 => {
                self.files[by] = Shared::descriptors(self.paths[by].clone());
                "reopen".into()
            }
            _ => {
                if self.coherent {
                    let mut bytes = vec![0xee; len as usize];
                    let count = file.read_at(&mut bytes, at).expect("read");
                    let there = &self.model[offset.min(size)..end.min(size)];
                    assert!(bytes[..count] == *there, "read {at} {len}: {count} of {}", there.len());
                }
                format!("read {at} {len}")
            }
        }
    }

    /// Checks that holes contain only zeros.
    fn seek(&self, by: usize, at: u64) {
        let (file, size) = (&self.files[by][0], self.model.len() as u64);
        let zero = |from: u64, to: u64| self.model[from as usize..to as usize].iter().all(|byte| *byte == 0);
        match (seek(file, SeekFrom::Data(at)), seek(file, SeekFrom::Hole(at))) {
            (Ok(data), Ok(hole)) => {
                assert!(at <= data && data < size && zero(at, data), "data at {data} of {size}");
                assert!(at <= hole && hole <= size, "a hole at {hole} of {size}");
                assert!(zero(hole, (hole + 1).min(size)));
            }
            (Err(Errno::NXIO), Ok(hole)) => assert!(hole == at && at < size && zero(at, size)),
            (Err(Errno::NXIO), Err(Errno::NXIO)) => assert!(at >= size, "{at} of {size}"),
            other => panic!("{other:?}"),
        }
    }

    fn check(&self, by: usize) {
        let size = self.model.len() as u64;
        assert_eq!(self.files[by][0].metadata().expect("attributes").len(), size);
        let bytes = if self.coherent {
            let mut bytes = vec![0xee; self.model.len() + 5000];
            let count = self.files[by][0].read_at(&mut bytes, 0).expect("read");
            bytes.truncate(count);
            bytes
        } else {
            std::fs::read(&self.paths[by]).expect("read")
        };
        let wrong = bytes.iter().zip(&self.model).position(|(is, should)| is != should);
        assert_eq!((wrong, bytes.len()), (None, self.model.len()));
    }
}

fn exercise(mounts: [&Mount; 2], coherent: bool, seed: u64) {
    let mut random = Random::new(seed);
    let mut shared = Shared::new(mounts, coherent);
    let mut done = Vec::new();
    for number in 0..STEPS {
        let (by, seen_by) = (random.below(2) as usize, random.below(2) as usize);
        let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            done.push((by, shared.step(&mut random, by)));
            shared.check(seen_by);
        }));
        if let Err(panic) = step {
            let last = &done[done.len().saturating_sub(10)..];
            eprintln!("RFS_EXERCISER_SEED={seed} repeats it: step {number}, seen by {seen_by}; {last:?}");
            std::panic::resume_unwind(panic);
        }
    }
    std::fs::remove_file(&shared.paths[0]).expect("removed");
}

fn exercise_all(options: &[&str], coherent: bool) {
    let fresh = seed();
    for (first, second) in combinations() {
        let server = TestServer::new(64 * MIB);
        let (a, b) = (server.mount(first, options), server.mount(second, options));
        for seed in [7, fresh] {
            eprintln!("{first:?} and {second:?}, {options:?}, seed {seed}");
            exercise([&a, &b], coherent, seed);
        }
        b.unmount();
        a.unmount();
    }
}

/// Uses a fixed seed, then a new one.
#[test]
fn a_file_open_on_two_mounts_is_one_array_of_bytes() {
    exercise_all(&["--cache", "none"], true);
}

/// A read through an open descriptor may see older pages. A new `open` sees all writes.
#[test]
fn a_file_open_on_two_caching_mounts_is_one_array_of_bytes() {
    exercise_all(&[], false);
}
