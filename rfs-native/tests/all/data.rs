//! Bytes, lengths, space and locks of open files.

use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

use rfs_native::{LockMode, OpenOptions};

use crate::common::*;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8 + 1).collect()
}

#[test]
fn written_bytes_are_read_and_holes_are_zero() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        let data = pattern(3 << 20);
        file.write_all_at(&data, 5_000_013).unwrap();
        let mut out = vec![9; data.len() + 100];
        assert_eq!(file.read_at(&mut out, 5_000_013).unwrap(), data.len());
        assert_eq!(out[..data.len()], data);
        assert_eq!(file.read_at(&mut out[..10], 100).unwrap(), 10);
        assert_eq!(out[..10], [0; 10]);
        assert_eq!(file.read_at(&mut out, u64::MAX).unwrap(), 0);
        assert_eq!(file.stat().unwrap().size, 5_000_013 + data.len() as u64);
        assert_eq!(errno(file.read_exact_at(&mut out, 5_000_013)), 61, "ENODATA");
        assert_eq!(file.seek_data(0).unwrap().map(|at| at <= 5_000_013), Some(true));
        assert_eq!(file.seek_data(1 << 40).unwrap(), None);
        let mut whole = vec![0; 5_000_013];
        whole.extend(&data);
        assert!(mount.read("f").unwrap() == whole);
    });
}

#[test]
fn reads_and_writes_need_their_open_mode() {
    with_mounts(|mount| {
        mount.write("f", "bytes").unwrap();
        let reader = mount.open("f").unwrap();
        assert_eq!(errno(reader.write_at(b"x", 0)), EBADF);
        assert_eq!(errno(reader.append(b"x")), EBADF);
        assert_eq!(errno(reader.set_len(0)), EBADF);
        let writer = mount.open_with("f", OpenOptions::new().write(true)).unwrap();
        assert_eq!(errno(writer.read_at(&mut [0], 0)), EBADF);
        assert_eq!(errno(writer.write_at(b"xy", i64::MAX as u64 - 1)), EFBIG);
        assert_eq!(errno(writer.set_len(u64::MAX)), EINVAL);
        assert_eq!(errno(mount.open_with("f", &OpenOptions::new())), EINVAL);
        assert_eq!(errno(mount.create("new/")), EISDIR);
        assert_eq!(errno(mount.open("/")), EISDIR);
    });
}

#[test]
fn buffers_are_one_operation() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(file.write_vectored_at(&parts, 3).unwrap(), 7);
        assert_eq!(file.append_vectored(&parts).unwrap(), 10);
        let (mut a, mut b, mut c) = ([9; 3], [9; 5], [9; 20]);
        let mut buffers = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
        assert_eq!(file.read_vectored_at(&mut buffers, 0).unwrap(), 17);
        assert_eq!((&a, &b, &c[..9]), (b"\0\0\0", b"one t", &b"woone two"[..]));
    });
}

#[test]
fn cursors_are_streams() {
    with_mounts(|mount| {
        let mut cursor = mount.create("f").unwrap().cursor();
        writeln!(cursor, "{} lines", 2).unwrap();
        cursor.write_all(b"second\n").unwrap();
        assert_eq!(cursor.seek(SeekFrom::End(-7)).unwrap(), 8);
        let mut rest = String::new();
        cursor.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "second\n");
        assert!(cursor.seek(SeekFrom::Current(-100)).is_err());
        let mut log = mount.open_with("f", OpenOptions::new().append(true)).unwrap().cursor();
        log.write_all(b"third\n").unwrap();
        assert_eq!(log.position(), 21);
        assert_eq!(mount.read("f").unwrap(), b"2 lines\nsecond\nthird\n");
    });
}

#[test]
fn space_is_reserved_freed_and_reported() {
    with_mounts(|mount| {
        let file = mount.create("f").unwrap();
        file.write_all_at(&pattern(64 << 10), 0).unwrap();
        file.punch_hole(4096, 8192).unwrap();
        assert_eq!(file.seek_hole(0).unwrap(), Some(4096));
        assert_eq!(file.seek_data(4096).unwrap(), Some(12288));
        file.allocate(0, 128 << 10).unwrap();
        assert_eq!(file.stat().unwrap().size, 128 << 10);
        file.set_len(5000).unwrap();
        let other = mount.create("g").unwrap();
        assert_eq!(file.copy_to(0, &other, 10, 1 << 20).unwrap(), 5000);
        assert_eq!(mount.stat("g").unwrap().size, 5010);
        let space = mount.space().unwrap();
        assert!(space.bytes_free < space.bytes && space.inodes_free < space.inodes);
    });
}

#[test]
fn a_full_server_takes_a_part_or_refuses() {
    for provider in PROVIDERS {
        let server = TestServer::new(16 << 20);
        let mount = server.mount(provider);
        let file = mount.create("f").unwrap();
        let data = pattern(32 << 20);
        let written = file.write_at(&data, 0).unwrap();
        assert!(written > 1 << 20 && written <= 16 << 20, "{written}");
        let error = file.write_all_at(&data, 0).unwrap_err();
        assert_eq!((error.errno(), error.may_have_happened()), (ENOSPC, false));
        assert_eq!(errno(file.append(&data)), ENOSPC);
        file.set_len(0).unwrap();
        file.write_all_at(&data[..1 << 20], 0).unwrap();
    }
}

#[test]
fn an_unlinked_file_lives_until_its_last_close() {
    with_two_mounts(|one, two| {
        let file = one.create("f").unwrap();
        file.write_all_at(b"bytes", 0).unwrap();
        let there = two.open("f").unwrap();
        two.remove_file("f").unwrap();
        drop(file);
        assert_eq!(errno(one.stat("f")), ENOENT);
        let mut out = [0; 5];
        there.read_exact_at(&mut out, 0).unwrap();
        assert_eq!((&out, there.stat().unwrap().nlink), (b"bytes", 0));
        let free = |mount: &rfs_native::Mount| mount.space().unwrap().inodes_free;
        let before = free(two);
        there.close().unwrap();
        let deadline = std::time::Instant::now() + WAIT_LIMIT;
        while free(two) == before {
            assert!(std::time::Instant::now() < deadline, "the inode stays");
            std::thread::yield_now();
        }
    });
}

#[test]
fn appends_of_two_mounts_are_whole() {
    with_two_mounts(|one, two| {
        drop(one.create("log").unwrap());
        let append = |mount: &rfs_native::Mount, byte: u8| {
            let file = mount.open_with("log", OpenOptions::new().append(true)).unwrap();
            for _ in 0..100 {
                file.append(&[byte; 1000]).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| append(one, b'1'));
            scope.spawn(|| append(one, b'2'));
            scope.spawn(|| append(two, b'3'));
        });
        let log = two.read("log").unwrap();
        assert_eq!(log.len(), 300_000);
        assert!(log.chunks(1000).all(|line| line.iter().all(|byte| *byte == line[0])));
    });
}

#[test]
fn locks_exclude_each_other_on_all_mounts() {
    with_two_mounts(|one, two| {
        let (a, b) = (one.create("f").unwrap(), two.create("f").unwrap());
        let c = one.create("f").unwrap();
        assert!(a.try_lock(LockMode::Exclusive, 0..100).unwrap());
        assert!(!b.try_lock(LockMode::Shared, 50..60).unwrap());
        assert!(!c.try_lock(LockMode::Shared, 99..).unwrap(), "locks are of the open file");
        assert!(b.try_lock(LockMode::Exclusive, 100..).unwrap());
        assert_eq!(errno(a.try_lock(LockMode::Shared, 5..5)), EINVAL);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| c.lock(LockMode::Shared, ..100).unwrap());
            a.unlock(..).unwrap();
            waits.join().unwrap();
        });
        drop(c);
        assert!(b.try_lock(LockMode::Exclusive, ..).unwrap(), "the close has unlocked");
        let counter = |mount: &rfs_native::Mount| {
            let file = mount.open_with("n", OpenOptions::new().read(true).write(true)).unwrap();
            for _ in 0..50 {
                file.lock(LockMode::Exclusive, ..).unwrap();
                let mut word = [0; 8];
                file.read_exact_at(&mut word, 0).unwrap();
                file.write_all_at(&(u64::from_le_bytes(word) + 1).to_le_bytes(), 0).unwrap();
                file.unlock(..).unwrap();
            }
        };
        one.write("n", [0; 8]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| counter(one));
            scope.spawn(|| counter(two));
            scope.spawn(|| counter(two));
        });
        assert_eq!(one.read("n").unwrap(), 150_u64.to_le_bytes());
    });
}

/// Catches an open by number that names another file, or that keeps no file without a name.
#[test]
fn a_file_is_opened_by_the_number_of_its_inode() {
    with_two_mounts(|one, two| {
        assert_eq!(one.memory(), two.memory());
        one.write("f", "bytes").unwrap();
        one.make_dir("d", 0o755).unwrap();
        let (file, dir) = (one.stat("f").unwrap().ino, one.stat("d").unwrap().ino);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open_number(two, file).unwrap();
        one.rename("f", "g").unwrap();
        one.remove_file("g").unwrap();
        let mut out = [0; 5];
        assert_eq!(opened.read_at(&mut out, 0).unwrap(), 5);
        assert_eq!(opened.write_at(b"BYTES", 0).unwrap(), 5);
        assert_eq!(&out, b"bytes");
        assert_eq!(errno(options.open_number(one, file)), ENOENT);
        assert_eq!(errno(options.open_number(two, dir)), EISDIR);
        assert_eq!(errno(OpenOptions::new().open_number(two, file)), EINVAL);
        assert_eq!(errno(options.create(true).open_number(two, file)), EINVAL);
    });
}
