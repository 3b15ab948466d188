//! Space on real mounts: fallocate, SEEK_HOLE, and copies within the server.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
};

use crate::common::{TestServer, each, locking::open, pattern, providers};
use rustix::{
    fs::{FallocateFlags as F, OFlags, SeekFrom, copy_file_range, fallocate, seek},
    io::Errno,
};

const MIB: u64 = 1 << 20;
const PUNCH: F = F::PUNCH_HOLE.union(F::KEEP_SIZE);

fn size_and_blocks(file: &File) -> (u64, u64) {
    let attributes = file.metadata().expect("attributes");
    (attributes.len(), attributes.blocks())
}

#[test]
fn a_write_takes_the_remaining_space() {
    for over in providers() {
        for options in [&[][..], &["--cache", "none"]] {
            let server = TestServer::new(16 * MIB);
            let mount = server.mount(over, options);
            let filler = open(&mount.path("filler"));
            let free = server.free_blocks() - 67;
            fallocate(&filler, F::empty(), 0, free * 4096).expect("reserved");
            let bytes = pattern(MIB as usize, 3);
            let file = open(&mount.path("file"));
            let mut at = 0;
            let refused = loop {
                match file.write_at(&bytes[at..], at as u64) {
                    Ok(written) => at += written,
                    Err(e) => break e,
                }
            };
            assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
            assert_eq!((at, server.free_blocks()), (67 * 4096, 0), "all of it was taken");
            assert!(fs::read(mount.path("file")).expect("read") == bytes[..at]);
            // Allocated space can be written; beyond it nothing can.
            let across = &bytes[..8192];
            assert_eq!(file.write_at(across, at as u64 - 4096).expect("written"), 4096);
            // Appends are whole or fail.
            fs::remove_file(mount.path("file")).expect("removed");
            drop(file);
            let mut log =
                OpenOptions::new().append(true).create(true).open(mount.path("log")).expect("opened");
            let refused = log.write(&bytes[..68 * 4096]).expect_err("no space");
            assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
            assert_eq!(log.metadata().expect("attributes").len(), 0);
            let mut direct = OpenOptions::new();
            direct.write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
            let direct = direct.open(mount.path("direct")).expect("opened");
            let refused = direct.write_at(&bytes[..68 * 4096], 0).expect_err("no space");
            assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
            assert_eq!(direct.metadata().expect("attributes").len(), 0);
            assert_eq!(direct.write_at(&bytes[..67 * 4096], 0).expect("all that there is"), 67 * 4096);
            drop((log, filler, direct));
            mount.unmount();
        }
    }
}

/// Space that a file frees is not kept by another mount that has the file open.
#[test]
fn rewriting_a_file_open_on_another_mount_takes_no_more_space() {
    for options in [&[][..], &["--cache", "none"]] {
        crate::common::pairs(16 * MIB, options, |server, a, b| {
            let (here, there) = (a.path("file"), b.path("file"));
            fs::write(&here, pattern(3 * MIB as usize, 1)).expect("written");
            let held = open(&there);
            held.read_exact_at(&mut [0; 4096], 0).expect("read");
            let free = server.free_blocks();
            for round in 2..40 {
                let bytes = pattern(3 * MIB as usize, round);
                fs::write(&here, &bytes).expect("written");
                assert!(fs::read(&there).expect("read") == bytes);
            }
            drop(held);
            assert!(crate::common::eventually(|| server.free_blocks() == free));
        });
    }
}

#[test]
fn reserved_space_is_data_and_reads_as_zero() {
    each(64 * MIB, |_, mount| {
        let file = open(&mount.path("file"));
        file.set_len(MIB).expect("extended");
        fallocate(&file, F::empty(), 8192, 4096).expect("reserved");
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(8192));
        assert_eq!(seek(&file, SeekFrom::Hole(8192)), Ok(12_288));
        assert_eq!(size_and_blocks(&file), (MIB, 8));
        assert!(fs::read(mount.path("file")).expect("read").iter().all(|byte| *byte == 0));
    });
}

/// Holds even for a growing file that got space ahead of need.
#[test]
fn extending_by_truncation_adds_a_hole() {
    each(64 * MIB, |_, mount| {
        let file = open(&mount.path("file"));
        for at in 0..4 {
            file.write_all_at(&[7; 4096], at * 4096).expect("written");
        }
        file.set_len(MIB).expect("extended");
        assert_eq!(size_and_blocks(&file), (MIB, 32));
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(4 * 4096));
        assert_eq!(seek(&file, SeekFrom::Data(4 * 4096)), Err(Errno::NXIO));
        file.write_all_at(&[8; 4096], 5 * 4096).expect("written");
        assert_eq!(seek(&file, SeekFrom::Data(4 * 4096)), Ok(5 * 4096));
        assert_eq!(size_and_blocks(&file), (MIB, 40));
    });
}

#[test]
fn holes_are_punched_and_found() {
    each(64 * MIB, |server, mount| {
        let file = open(&mount.path("file"));
        let mut expected = pattern(MIB as usize, 1);
        file.write_all_at(&expected, 0).expect("written");
        let free = server.free_blocks();
        // Reads the file, so that the kernel has its pages.
        assert!(fs::read(mount.path("file")).expect("read") == expected);
        fallocate(&file, PUNCH, 4000, 300_000).expect("punched");
        expected[4000..304_000].fill(0);
        let mut bytes = vec![1; expected.len()];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes == expected);
        // 73 whole blocks: 4096 to 303,104.
        assert_eq!(size_and_blocks(&file), (MIB, 2048 - 73 * 8));
        assert_eq!(server.free_blocks(), free + 73);
        let find = |from| seek(&file, from);
        assert_eq!(find(SeekFrom::Data(0)), Ok(0));
        assert_eq!(find(SeekFrom::Hole(0)), Ok(4096));
        assert_eq!(find(SeekFrom::Data(4096)), Ok(303_104));
        assert_eq!(find(SeekFrom::Hole(303_104)), Ok(MIB));
        assert_eq!(find(SeekFrom::Hole(MIB)), Err(Errno::NXIO));
        // Bytes written into the hole are data.
        file.write_all_at(b"x", 100_000).expect("written");
        assert_eq!(find(SeekFrom::Data(4096)), Ok(98_304));
        file.set_len(4 * MIB).expect("extended");
        assert_eq!(find(SeekFrom::Data(MIB)), Err(Errno::NXIO));
        assert_eq!(find(SeekFrom::Hole(MIB - 1)), Ok(MIB));
    });
}

#[test]
fn space_is_reserved_zeroed_and_refused() {
    each(16 * MIB, |server, mount| {
        let path = mount.path("file");
        let file = open(&path);
        file.write_all_at(&pattern(10_000, 2), 0).expect("written");
        fallocate(&file, F::empty(), 5000, MIB - 5000).expect("reserved");
        assert_eq!(size_and_blocks(&file), (MIB, 2048));
        fallocate(&file, F::KEEP_SIZE, MIB, MIB).expect("reserved");
        assert_eq!(size_and_blocks(&file), (MIB, 4096));
        fallocate(&file, F::ZERO_RANGE, 100, 9000).expect("zeroed");
        let mut expected = pattern(10_000, 2);
        expected[100..9100].fill(0);
        expected.resize(MIB as usize, 0);
        assert!(fs::read(&path).expect("read") == expected);
        // The kernel passes no other modes to FUSE.
        for mode in [F::COLLAPSE_RANGE, F::INSERT_RANGE, F::UNSHARE_RANGE] {
            assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
        }
        let free = server.free_blocks();
        assert_eq!(fallocate(&file, F::empty(), 0, 64 * MIB), Err(Errno::NOSPC));
        assert_eq!((size_and_blocks(&file), server.free_blocks()), ((MIB, 4096), free));
        drop(file);
        // The reservation outlives the close.
        let file = File::open(&path).expect("opened");
        assert_eq!(size_and_blocks(&file), (MIB, 4096));
    });
}

#[test]
fn a_range_is_zeroed_with_and_without_the_size() {
    each(16 * MIB, |server, mount| {
        let path = mount.path("file");
        let file = open(&path);
        let mut expected = pattern(20_000, 6);
        file.write_all_at(&expected, 0).expect("written");
        // The kernel's pages are zeroed, too.
        assert!(fs::read(&path).expect("read") == expected);
        // A range across the end allocates space, and the size stays.
        let free = server.free_blocks();
        fallocate(&file, F::ZERO_RANGE | F::KEEP_SIZE, 10_001, 30_000).expect("zeroed");
        expected[10_001..].fill(0);
        assert!(fs::read(&path).expect("read") == expected);
        // 0 to 40,960.
        assert_eq!(size_and_blocks(&file), (20_000, 80));
        assert!(server.free_blocks() <= free, "nothing is given back");
        // When the file is extended, that space reads as zero and is data.
        file.set_len(24_000).expect("extended");
        expected.resize(24_000, 0);
        assert!(fs::read(&path).expect("read") == expected);
        // Without KEEP_SIZE the file ends at the end of the range.
        file.write_all_at(&pattern(100, 1), 23_900).expect("written");
        fallocate(&file, F::ZERO_RANGE, 23_950, 10_000).expect("zeroed");
        expected[23_900..].copy_from_slice(&pattern(100, 1));
        expected[23_950..].fill(0);
        expected.resize(33_950, 0);
        assert!(fs::read(&path).expect("read") == expected);
        // Holes in the range get space.
        let sparse = open(&mount.path("sparse"));
        sparse.set_len(MIB).expect("extended");
        fallocate(&sparse, F::ZERO_RANGE | F::KEEP_SIZE, 8192, 8192).expect("zeroed");
        assert_eq!(size_and_blocks(&sparse), (MIB, 16));
        assert_eq!(seek(&sparse, SeekFrom::Data(0)), Ok(8192));
        assert_eq!(seek(&sparse, SeekFrom::Hole(8192)), Ok(16_384));
    });
}

#[test]
fn space_allocated_ahead_is_data_before_a_far_write() {
    each(64 * MIB, |server, mount| {
        let path = mount.path("file");
        let file = open(&path);
        let free = server.free_blocks();
        (0..40).for_each(|at| file.write_all_at(&[7; 4096], at * 4096).expect("written"));
        let taken = free - server.free_blocks();
        assert!(taken > 40, "a file that grows is given space ahead of need");
        file.write_all_at(&[8; 4096], 16 * MIB).expect("written");
        // The space extends to the allocation's end; then comes a hole.
        assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(taken * 4096));
        assert_eq!(seek(&file, SeekFrom::Data(taken * 4096)), Ok(16 * MIB));
        let mut bytes = vec![1; (taken as usize - 40) * 4096];
        file.read_exact_at(&mut bytes, 40 * 4096).expect("read");
        assert!(bytes.iter().all(|byte| *byte == 0));
    });
}

/// Space behind the end belongs to the file until it is truncated.
#[test]
fn space_reserved_behind_the_end_stays_until_a_truncation() {
    each(16 * MIB, |server, mount| {
        let path = mount.path("file");
        let free = server.free_blocks();
        let file = open(&path);
        fallocate(&file, F::KEEP_SIZE, 0, 8 * MIB).expect("reserved");
        assert_eq!((size_and_blocks(&file), server.free_blocks()), ((0, 16_384), free - 2048));
        drop(file);
        // Another file takes the remaining space. The reserved space is still available.
        let other = open(&mount.path("other"));
        fallocate(&other, F::empty(), 0, server.free_blocks() * 4096).expect("reserved");
        let file = open(&path);
        file.write_all_at(&pattern(4096, 1), 7 * MIB).expect("written");
        assert_eq!(size_and_blocks(&file), (7 * MIB + 4096, 16_384));
        file.set_len(4096).expect("cut");
        assert_eq!(size_and_blocks(&file), (4096, 8));
        assert_eq!(server.free_blocks(), 2047);
    });
}

#[test]
fn copies_move_no_data_through_the_client() {
    each(128 * MIB, |server, mount| {
        let len = 20 * MIB + 123;
        let (from, to) = (open(&mount.path("from")), open(&mount.path("to")));
        let mut data = pattern(len as usize, 3);
        from.write_all_at(&data, 0).expect("written");
        fallocate(&from, PUNCH, 8 * MIB, 4 * MIB).expect("punched");
        data[8 << 20..12 << 20].fill(0);
        // The kernel has pages of the destination.
        to.write_all_at(&pattern(MIB as usize, 4), 0).expect("written");
        let (mut at, mut into) = (0, 0);
        let before = server.handled("copy");
        while at < len {
            let copied =
                copy_file_range(&from, Some(&mut at), &to, Some(&mut into), len as usize).expect("copied");
            assert!(copied > 0);
        }
        // One call copies 16 MiB.
        assert_eq!(server.handled("copy") - before, 2);
        assert!(fs::read(mount.path("to")).expect("read") == data);
        assert_eq!(to.metadata().expect("attributes").len(), len);
        // Holes stay holes where the destination had no data.
        assert_eq!(seek(&to, SeekFrom::Hole(MIB)), Ok(8 * MIB));
        assert_eq!(copy_file_range(&from, Some(&mut len.clone()), &to, Some(&mut 0), 100), Ok(0));
        let overlap = copy_file_range(&to, Some(&mut 0), &to, Some(&mut 10), 100);
        assert_eq!(overlap, Err(Errno::INVAL));
    });
}

#[test]
fn another_mount_sees_holes_and_copies() {
    for over in providers() {
        let server = TestServer::new(64 * MIB);
        let (a, b) = (server.mount(over, &[]), server.mount(over, &[]));
        fs::write(a.path("file"), pattern(MIB as usize, 5)).expect("written");
        assert!(fs::read(b.path("file")).expect("read") == pattern(MIB as usize, 5));
        let file = open(&a.path("file"));
        fallocate(&file, PUNCH, 0, MIB / 2).expect("punched");
        let mut expected = pattern(MIB as usize, 5);
        expected[..MIB as usize / 2].fill(0);
        // Opened while the other mount still has the file open.
        let seen = File::open(b.path("file")).expect("opened");
        assert_eq!(size_and_blocks(&seen), (MIB, 1024));
        assert!(fs::read(b.path("file")).expect("read") == expected);
        assert_eq!(seek(&seen, SeekFrom::Data(0)), Ok(MIB / 2));
        copy_file_range(&file, Some(&mut (MIB / 2)), &file, Some(&mut 0), 4096).expect("copied");
        expected.copy_within(MIB as usize / 2..MIB as usize / 2 + 4096, 0);
        assert!(fs::read(b.path("file")).expect("read") == expected);
        drop((file, seen));
        b.unmount();
        a.unmount();
    }
}
