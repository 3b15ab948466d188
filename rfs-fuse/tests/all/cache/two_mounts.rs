//! Two mounts of one server see each other's names and bytes. Timeouts are an hour to test
//! recalls, and zero to test operations without caching.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    sync::Barrier,
    thread,
};

use crate::common::{Mount, TestServer, eventually, locking::open, mapping::Mapping, pattern};

const MIB: u64 = 1 << 20;
const LONG: &[&str] = &["--attr-timeout", "3600", "--entry-timeout", "3600"];
const NONE: &[&str] = &["--attr-timeout", "0", "--entry-timeout", "0"];

/// Runs a test for every combination of mounts, in both directions.
fn pairs(options: &[&str], test: impl Fn(&TestServer, &Mount, &Mount)) {
    crate::common::pairs(64 * MIB, options, |server, a, b| {
        test(server, a, b);
        test(server, b, a);
    });
}

#[test]
fn an_open_sees_the_bytes_of_the_last_close() {
    pairs(LONG, |_, a, b| {
        let (here, there) = (a.path("file"), b.path("file"));
        fs::write(&here, b"one").expect("written");
        assert_eq!(fs::read(&there).expect("read"), b"one");
        // Longer, shorter, and equal lengths. The other mount has cached pages and attributes of
        // each.
        for content in [&b"longer than one"[..], b"two", b"owt", b""] {
            fs::write(&here, content).expect("written");
            assert_eq!(fs::read(&there).expect("read"), content);
            let file = File::open(&there).expect("opened");
            assert_eq!(file.metadata().expect("attributes").len(), content.len() as u64);
        }
        let big = pattern(3 * MIB as usize + 1, 1);
        fs::write(&there, &big).expect("written");
        assert!(fs::read(&here).expect("read") == big);
        // Rewrites in place, without a change of size.
        let file = OpenOptions::new().write(true).open(&here).expect("opened");
        file.write_all_at(b"changed", MIB).expect("written");
        file.sync_all().expect("synced");
        assert_eq!(fs::read(&there).expect("read")[MIB as usize..][..7], *b"changed");
        fs::remove_file(&here).expect("removed");
        drop(file);
    });
}

#[test]
fn opening_a_replaced_file_opens_the_new_one() {
    pairs(LONG, |_, a, b| {
        fs::write(a.path("file"), b"old").expect("written");
        assert_eq!(fs::read(b.path("file")).expect("read"), b"old");
        fs::write(a.path("new"), b"replaced").expect("written");
        fs::rename(a.path("new"), a.path("file")).expect("renamed");
        assert_eq!(
            fs::read(b.path("file")).expect("read"),
            b"replaced",
            "although its kernel keeps the old name"
        );
        fs::remove_file(a.path("file")).expect("removed");
        assert_eq!(File::open(b.path("file")).expect_err("gone").kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn names_are_the_same_on_both() {
    pairs(NONE, |_, a, b| {
        fs::create_dir_all(a.path("d/e")).expect("directories");
        fs::write(b.path("d/e/f"), b"f").expect("written");
        fs::rename(a.path("d/e/f"), a.path("d/g")).expect("renamed");
        assert!(!b.path("d/e/f").exists());
        assert_eq!(fs::read(b.path("d/g")).expect("read"), b"f");
        fs::hard_link(b.path("d/g"), b.path("h")).expect("linked");
        let (ino, nlink) = (fs::metadata(b.path("h")).expect("h").ino(), 2);
        let seen = fs::metadata(a.path("d/g")).expect("g");
        assert_eq!((seen.ino(), seen.nlink()), (ino, nlink));
        fs::remove_file(a.path("h")).expect("removed");
        fs::remove_file(b.path("d/g")).expect("removed");
        fs::remove_dir(a.path("d/e")).expect("removed");
        assert_eq!(fs::read_dir(b.path("d")).expect("directory").count(), 0);
        fs::remove_dir(b.path("d")).expect("removed");
        assert!(!a.path("d").exists());
    });
}

#[test]
fn two_concurrent_creations_open_the_same_file() {
    pairs(NONE, |_, a, b| {
        let start = Barrier::new(2);
        for round in 0..40 {
            let name = format!("both{round}");
            let write = |mount: &Mount, at: u64| {
                start.wait();
                let mut options = OpenOptions::new();
                let file =
                    options.write(true).create(true).truncate(false).mode(0o600).open(mount.path(&name));
                file.expect("opened").write_all_at(b"x", at).expect("written");
            };
            thread::scope(|scope| {
                scope.spawn(|| write(a, 0));
                write(b, 1);
            });
            assert_eq!(fs::read(a.path(&name)).expect("read"), b"xx");
        }
    });
}

#[test]
fn an_open_file_outlives_its_name_on_the_other_side() {
    pairs(NONE, |server, a, b| {
        let free = server.free_blocks();
        fs::write(a.path("file"), pattern(MIB as usize, 2)).expect("written");
        let file = File::open(b.path("file")).expect("opened");
        fs::remove_file(a.path("file")).expect("removed");
        fs::write(a.path("other"), pattern(MIB as usize, 3)).expect("written");
        let mut out = vec![0; MIB as usize];
        file.read_exact_at(&mut out, 0).expect("read");
        assert!(out == pattern(MIB as usize, 2));
        drop(file);
        fs::remove_file(a.path("other")).expect("removed");
        assert!(eventually(|| server.free_blocks() == free), "its space comes back with the last close");
    });
}

#[test]
fn a_truncation_by_the_other_side_is_seen_by_an_open_file() {
    pairs(NONE, |_, a, b| {
        let path = a.path("file");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .expect("opened");
        file.write_all_at(&pattern(MIB as usize, 4), 0).expect("written");
        OpenOptions::new().write(true).open(b.path("file")).expect("opened").set_len(10).expect("cut");
        assert_eq!(file.metadata().expect("attributes").len(), 10);
        file.write_all_at(b"more", 8192).expect("written");
        let mut expected = pattern(10, 4);
        expected.resize(8192, 0);
        expected.extend_from_slice(b"more");
        assert!(fs::read(b.path("file")).expect("read") == expected);
        drop(file);
        fs::remove_file(&path).expect("removed");
    });
}

/// Over TCP a reader learns of the truncation through the recall of the size.
#[test]
fn a_truncation_by_the_other_side_is_noticed_by_a_reader() {
    pairs(&["--cache", "none"], |_, a, b| {
        let path = a.path("file");
        fs::write(&path, pattern(8192, 4)).expect("written");
        let file = File::open(&path).expect("opened");
        let mut bytes = [0; 4096];
        assert_eq!(file.read_at(&mut bytes, 4096).expect("read"), 4096);
        OpenOptions::new().write(true).open(b.path("file")).expect("opened").set_len(100).expect("cut");
        assert_eq!(file.read_at(&mut bytes, 4096).expect("read"), 0);
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), 100);
        drop(file);
        fs::remove_file(&path).expect("removed");
    });
}

#[test]
fn times_are_the_same_on_both_after_fsync_and_close() {
    pairs(&[], |_, a, b| {
        let file = File::create(a.path("file")).expect("created");
        let time = |mount: &Mount| {
            let attributes = fs::metadata(mount.path("file")).expect("attributes");
            (attributes.mtime(), attributes.mtime_nsec())
        };
        for round in 0..20 {
            file.write_all_at(b"bytes", round).expect("written");
            file.sync_all().expect("synchronized");
            assert_eq!(time(b), time(a));
        }
        file.write_all_at(b"bytes", 0).expect("written");
        drop(file);
        assert_eq!(time(b), time(a));
    });
}

#[test]
fn without_a_cache_every_read_reaches_the_server_and_nothing_is_recalled() {
    pairs(&["--cache", "none"], |server, a, b| {
        let writer = File::create(a.path("file")).expect("created");
        writer.set_len(8).expect("zeroes");
        let reader = File::open(b.path("file")).expect("opened");
        // After each reply a mount asks for recalls again. A starting mount may do so during the
        // rounds.
        let (asked, starting) = (server.handled("recalls"), 2);
        for round in 0..50_u64 {
            writer.write_all_at(&round.to_le_bytes(), 0).expect("written");
            let mut bytes = [0xff; 8];
            reader.read_exact_at(&mut bytes, 0).expect("read");
            assert_eq!(u64::from_le_bytes(bytes), round);
        }
        let before = server.handled("recalls");
        assert!(before <= asked + starting, "{before} requests for recalls, {asked} before the rounds");
        fs::remove_file(b.path("file")).expect("removed");
        assert!(!fs::exists(a.path("file")).expect("looked"));
        // A mount that has the file open is told when the file loses its name.
        assert!(eventually(|| server.handled("recalls") > before));
    });
}

/// Mapped memory is shared between processes of one mount only.
#[test]
fn mapped_memory_is_shared_on_one_mount_only() {
    pairs(LONG, |_, a, b| {
        fs::write(a.path("file"), [0; 4096]).expect("written");
        let [one, two, other] = [a, a, b].map(|mount| open(&mount.path("file")));
        let [mut one, two, other] = [one, two, other].map(|file| Mapping::new(&file, 4096));
        assert_eq!([one.read(0, 4), two.read(0, 4), other.read(0, 4)], [[0; 4]; 3]);
        one.write(0, b"here");
        assert_eq!([two.read(0, 4), other.read(0, 4)], [*b"here", [0; 4]]);
        // A later `open` on the other mount sees bytes that were written back.
        one.sync();
        assert_eq!(fs::read(b.path("file")).expect("read")[..4], *b"here");
        fs::remove_file(a.path("file")).expect("removed");
    });
}
