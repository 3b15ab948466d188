//! A descriptor that stays open reads every write of another mount that returned before the read
//! began.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    thread,
};

use crate::common::{Mount, TestServer, each, mapping::Mapping, pairs, program};
use nix::libc::O_DIRECT;
use rustix::fs::fstat;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const PAGE: usize = 4096;
const ROUNDS: u64 = 50;

fn open(mount: &Mount, write: bool) -> File {
    OpenOptions::new().read(true).write(write).open(mount.path("file")).expect("opened")
}

/// Runs a test for each combination of mounts, in both directions, with a file of 16 pages of
/// which no mount caches anything but attributes.
fn shared(options: &[&str], test: impl Fn(&TestServer, &Mount, &Mount)) {
    pairs(64 * MIB, options, |server, a, b| {
        for (here, there) in [(a, b), (b, a)] {
            fs::write(here.path("file"), vec![b'x'; 16 * PAGE]).expect("written");
            test(server, here, there);
            fs::remove_file(here.path("file")).expect("removed");
        }
    });
}

fn word(file: &File, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, offset).expect("read");
    u64::from_le_bytes(bytes)
}

/// Checks that a read returns the last completed write, in every round and at several offsets.
fn each_write_is_read(writer: &File, readers: &[&File]) {
    for round in 1..=ROUNDS {
        let place = round % 3 * PAGE as u64 + 8;
        writer.write_all_at(&round.to_le_bytes(), place).expect("written");
        for (number, reader) in readers.iter().enumerate() {
            for _ in 0..2 {
                assert_eq!(word(reader, place), round, "reader {number}");
            }
        }
    }
}

#[test]
fn an_open_file_reads_what_another_mount_has_just_written() {
    shared(&[], |_, here, there| {
        let first = open(here, false);
        assert_eq!(word(&first, 8), u64::from_le_bytes([b'x'; 8]));
        let writer = open(there, true);
        // One descriptor is opened before the writer's, one after.
        each_write_is_read(&writer, &[&first, &open(here, false), &writer, &open(there, false)]);
    });
}

#[test]
fn an_open_file_reads_other_writes_while_both_mounts_write() {
    shared(&[], |_, here, there| {
        let (one, two) = (open(here, true), open(there, true));
        for _ in 0..3 {
            each_write_is_read(&two, &[&one, &two]);
            each_write_is_read(&one, &[&two, &one]);
        }
        // Each mount overwrites parts of whole pages that the other one caches.
        for round in 0..ROUNDS {
            let byte = round as u8;
            one.write_all_at(&[byte; 2 * PAGE], 0).expect("written");
            two.write_all_at(&[!byte; 100], PAGE as u64 - 50).expect("written");
            let mut bytes = [0; 2 * PAGE];
            one.read_exact_at(&mut bytes, 0).expect("read");
            let is_mixed = |(at, &found): (usize, &u8)| {
                found == if (PAGE - 50..PAGE + 50).contains(&at) { !byte } else { byte }
            };
            assert!(bytes.iter().enumerate().all(is_mixed), "round {round}");
        }
    });
}

#[test]
fn a_mount_without_a_cache_writes_for_one_that_has() {
    crate::common::combinations().for_each(|(first, second)| {
        let server = TestServer::new(64 * MIB);
        let (here, there) = (server.mount(first, &[]), server.mount(second, &["--cache", "none"]));
        fs::write(here.path("file"), vec![b'x'; 16 * PAGE]).expect("written");
        let reader = open(&here, false);
        word(&reader, 8);
        each_write_is_read(&open(&there, true), &[&reader]);
        drop(reader);
        there.unmount();
        here.unmount();
    });
}

#[test]
fn an_open_file_reads_direct_writes_and_appends() {
    shared(&[], |_, here, there| {
        let reader = open(here, false);
        word(&reader, 8);
        let mut options = OpenOptions::new();
        let direct = options.write(true).custom_flags(O_DIRECT).open(there.path("file")).expect("opened");
        // One page of page-aligned memory.
        let mut bytes = vec![0; 2 * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        for round in 1..=ROUNDS {
            bytes[start..start + PAGE].fill(round as u8);
            direct.write_all_at(&bytes[start..start + PAGE], 0).expect("written");
            assert_eq!(word(&reader, 100), u64::from_le_bytes([round as u8; 8]));
        }
        drop(direct);
        let mut appended = OpenOptions::new().append(true).open(there.path("file")).expect("opened");
        for round in 0..ROUNDS {
            appended.write_all(&round.to_le_bytes()).expect("appended");
            let (at, mut bytes) = (16 * PAGE as u64 + 8 * round, [0xff; 64]);
            assert_eq!(reader.read_at(&mut bytes, at).expect("read"), 8, "round {round}");
            assert_eq!(bytes[..8], round.to_le_bytes());
            assert_eq!(reader.metadata().expect("attributes").len(), at + 8);
        }
    });
}

#[test]
fn an_open_file_reads_changes_of_size_and_space() {
    shared(&[], |_, here, there| {
        let reader = open(here, false);
        word(&reader, 8);
        let writer = open(there, true);
        let mut bytes = [0; PAGE];
        for round in (1..=ROUNDS).rev() {
            writer.set_len(round * 70).expect("truncated");
            assert_eq!(reader.read_at(&mut bytes, 0).expect("read"), PAGE.min(round as usize * 70));
            writer.write_all_at(&round.to_le_bytes(), 2 * PAGE as u64).expect("written");
            assert_eq!(word(&reader, 2 * PAGE as u64), round);
            assert_eq!(word(&reader, round * 70), 0, "what was cut off");
        }
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        for round in 1..=ROUNDS {
            writer.write_all_at(&round.to_le_bytes(), 0).expect("written");
            assert_eq!(word(&reader, 0), round);
            rustix::fs::fallocate(&writer, punch, 0, PAGE as u64).expect("punched");
            assert_eq!(word(&reader, 0), 0);
        }
    });
}

#[test]
fn a_mount_that_reopens_the_file_to_write_is_told_of_writes() {
    shared(&[], |_, here, there| {
        let reader = open(here, false);
        word(&reader, 8);
        let writer = open(there, true);
        each_write_is_read(&writer, &[&reader]);
        let again = open(here, true);
        each_write_is_read(&writer, &[&reader, &again]);
        each_write_is_read(&again, &[&writer, &reader]);
        drop(again);
        each_write_is_read(&writer, &[&reader]);
    });
}

/// Both mounts increment a counter in turn, through descriptors that stay open.
#[test]
fn two_mounts_count_in_turn() {
    shared(&[], |_, here, there| {
        let (one, two) = (open(here, true), open(there, true));
        one.write_all_at(&[0; 8], 0).expect("written");
        let count = |file: &File, odd: u64| {
            let mut last = 0;
            while last < 60 {
                let seen = word(file, 0);
                assert!(seen >= last, "{seen} after {last}");
                last = seen;
                if last % 2 == odd {
                    last += 1;
                    file.write_all_at(&last.to_le_bytes(), 0).expect("written");
                } else {
                    thread::yield_now();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| count(&one, 0));
            count(&two, 1);
        });
    });
}

/// A writer on each mount reads the page that the other one has written.
#[test]
fn writers_on_both_mounts_do_not_block_each_other() {
    shared(&[], |_, here, there| {
        let (one, two) = (open(here, true), open(there, true));
        let write = |file: &File, place: u64| {
            for round in 0..200_u64 {
                file.write_all_at(&round.to_le_bytes(), place).expect("written");
                assert_eq!(word(file, place), round);
                word(file, 0);
                word(file, 100);
            }
        };
        thread::scope(|scope| {
            for (file, place) in [(&one, 0), (&two, 100), (&one, 5000), (&two, 5100)] {
                scope.spawn(move || write(file, place));
            }
        });
        for file in [&one, &two] {
            assert!([0, 100, 5000, 5100].iter().all(|&place| word(file, place) == 199));
        }
    });
}

#[test]
fn pages_are_kept_between_writes_and_after_the_writer_has_closed() {
    shared(&[], |server, here, there| {
        // A close that is on its way would count as a request of a read.
        server.all_closed_but(0);
        let reader = open(here, false);
        let read_all = || {
            let mut bytes = vec![0; 16 * PAGE];
            reader.read_exact_at(&mut bytes, 0).expect("read");
            bytes
        };
        read_all();
        let writer = open(there, true);
        for round in 0..3_u8 {
            writer.write_all_at(&[round; 10], 0).expect("written");
            read_all();
            // The writer still has the file open.
            assert_eq!(server.calls_of(|| (0..20).for_each(|_| drop(read_all()))), 0);
            assert_eq!(read_all()[..10], [round; 10]);
        }
        // A second write recalls nothing if no mount has cached the page since. The reader's next
        // request for recalls, which acknowledged the first one, may be counted late.
        writer.write_all_at(b"once", 0).expect("written");
        let recalls = server.handled("recalls");
        (0..20).for_each(|_| writer.write_all_at(b"more", 0).expect("written"));
        assert!(server.handled("recalls") <= recalls + 1);
        drop(writer);
        server.all_closed_but(1);
        assert_eq!(read_all()[..4], *b"more");
        assert_eq!(server.calls_of(|| (0..20).for_each(|_| drop(read_all()))), 0);
    });
}

#[test]
fn a_file_that_is_open_on_one_mount_costs_no_more() {
    shared(&[], |server, here, there| {
        // The other mount has opened the file before and still caches its attributes.
        fs::read(there.path("file")).expect("read");
        server.all_closed_but(0);
        let file = open(here, true);
        word(&file, 8);
        file.write_all_at(b"known", 0).expect("written");
        let work = || {
            for round in 0..ROUNDS {
                file.write_all_at(&round.to_le_bytes(), 8).expect("written");
                assert_eq!(word(&file, 8), round);
            }
        };
        let before = ["holdpages", "droppages"].map(|request| server.handled(request));
        if crate::common::checked() {
            work();
        } else {
            assert_eq!(server.calls_of(work), 0);
        }
        drop(file);
        server.all_closed_but(0);
        let accessed = server.handled("accessed");
        let opened = server.calls_of(|| {
            drop(open(here, true));
            server.all_closed_but(0);
        });
        assert_eq!(opened - (server.handled("accessed") - accessed), 2, "an open and a close");
        assert_eq!(["holdpages", "droppages"].map(|request| server.handled(request)), before);
    });
}

#[test]
fn a_file_that_another_mount_opens_later_costs_its_writer_no_more() {
    shared(&[], |server, here, there| {
        server.all_closed_but(0);
        let writer = open(there, true);
        let reader = open(here, false);
        word(&reader, 8);
        let before = server.handled("droppages");
        each_write_is_read(&writer, &[&reader]);
        assert_eq!(server.handled("droppages"), before);
    });
}

#[test]
fn a_file_of_two_mounts_can_be_mapped_on_both() {
    shared(&[], |_, here, there| {
        let (one, two) = (open(here, true), open(there, true));
        let (mut mapped, other) = (Mapping::new(&one, PAGE), Mapping::new(&two, PAGE));
        assert_eq!([mapped.read(0, 4), other.read(0, 4)], [*b"xxxx"; 2]);
        mapped.write(0, b"here");
        mapped.sync();
        assert_eq!(fs::read(there.path("file")).expect("read")[..4], *b"here");
        let mut bytes = [0; 4];
        two.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, *b"here");
    });
}

/// Returns how often the kernel has asked a mount for attributes.
fn asked_for_attributes(mount: &Mount) -> u64 {
    let output = program().arg("status").arg(&mount.point).arg("--json").output().expect("rfs-fuse runs");
    assert!(output.status.success(), "{output:?}");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    ["getattr", "statx"].map(|kind| status["requests"][kind].as_u64().unwrap_or(0)).iter().sum()
}

/// The kernel takes the attributes of a link's reply over, even if it was told to drop them while
/// the reply waited for its thread. Catches a link whose attributes the kernel may cache: they can
/// be older than a change of another mount that has returned.
#[test]
fn the_kernel_asks_for_attributes_after_a_link() {
    each(64 * MIB, |_, mount| {
        fs::write(mount.path("file"), b"x").expect("written");
        let file = open(mount, false);
        let links = || fstat(&file).expect("attributes").st_nlink;
        assert_eq!(links(), 1);
        for number in 2..6 {
            let before = asked_for_attributes(mount);
            assert_eq!((links(), asked_for_attributes(mount)), (number - 1, before), "they are cached");
            fs::hard_link(mount.path("file"), mount.path(&format!("{number}"))).expect("linked");
            let before = asked_for_attributes(mount);
            assert_eq!((links(), asked_for_attributes(mount)), (number, before + 1));
        }
    });
}
