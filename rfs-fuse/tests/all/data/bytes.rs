//! Concurrent writes, and reuse of freed space.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::FileExt,
    process::Stdio,
    sync::Barrier,
    thread,
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{Mount, each, locking::open, mapping::Mapping, pairs, test_process};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};

const MIB: u64 = 1 << 20;
const ROUNDS: u8 = 50;

/// Runs both writes concurrently in every round, then `check`s the result.
fn at_once(
    mounts: [&Mount; 2],
    write: impl Fn(usize, &fs::File, u8) + Sync,
    look: impl Fn(&fs::File, u8) + Sync,
) {
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        for (at, mount) in mounts.into_iter().enumerate() {
            let (begin, end, write, look) = (&begin, &end, &write, &look);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let file = open(&mount.path(&format!("{round}")));
                    begin.wait();
                    write(at, &file, round);
                    file.sync_all().expect("synchronized");
                    end.wait();
                    look(&open(&mount.path(&format!("{round}"))), round);
                }
            });
        }
    });
}

#[test]
fn writes_of_one_mount_do_not_mix_and_writes_of_two_leave_no_other_bytes() {
    const LEN: usize = 64 << 10;
    let overlap = |mounts: [&Mount; 2], may_mix: bool| {
        at_once(
            mounts,
            |at, file, round| file.write_all_at(&[2 * round + at as u8; LEN], 0).expect("written"),
            |file, round| {
                let mut bytes = vec![0; LEN];
                file.read_exact_at(&mut bytes, 0).expect("read");
                assert!(bytes.iter().all(|byte| byte / 2 == round), "round {round}");
                assert!(may_mix || bytes.iter().all(|byte| *byte == bytes[0]), "round {round}");
            },
        );
    };
    each(32 * MIB, |_, mount| overlap([mount, mount], false));
    pairs(32 * MIB, &[], |_, a, b| overlap([a, b], true));
}

#[test]
fn concurrent_writes_beyond_the_end_are_both_in_the_file() {
    const LEN: usize = 5000;
    pairs(32 * MIB, &[], |_, a, b| {
        at_once(
            [a, b],
            |at, file, _| {
                file.write_all_at(&[7 + at as u8; LEN], 3 * at as u64 * LEN as u64).expect("written")
            },
            |file, round| {
                assert_eq!(file.metadata().expect("attributes").len(), 4 * LEN as u64, "round {round}");
                let mut bytes = vec![1; 4 * LEN];
                file.read_exact_at(&mut bytes, 0).expect("read");
                let parts = [0, 1, 2, 3].map(|part| &bytes[part * LEN..][..LEN]);
                for (part, expected) in parts.into_iter().zip([7, 0, 0, 8]) {
                    assert!(part.iter().all(|byte| *byte == expected), "round {round}");
                }
            },
        );
    });
}

#[test]
fn reused_space_reads_as_zero() {
    each(16 * MIB, |_, mount| {
        let len = 12 * MIB;
        for _ in 0..2 {
            fs::write(mount.path("old"), crate::common::pattern(len as usize, 5)).expect("written");
            fs::remove_file(mount.path("old")).expect("removed");
            // With so little space, the new file must reuse freed space.
            let file = open(&mount.path("new"));
            fallocate(&file, FallocateFlags::empty(), 0, len).expect("reserved");
            let mut bytes = vec![1; len as usize];
            file.read_exact_at(&mut bytes, 0).expect("read");
            assert!(bytes.iter().all(|byte| *byte == 0));
            drop(file);
            fs::remove_file(mount.path("new")).expect("removed");
        }
    });
}

#[test]
fn a_copy_goes_16_mib_at_a_time() {
    each(64 * MIB, |_, mount| {
        let (from, to) = (open(&mount.path("from")), open(&mount.path("to")));
        let bytes = crate::common::pattern(20 * MIB as usize, 3);
        from.write_all_at(&bytes, 0).expect("written");
        let (mut read, mut written) = (0, 0);
        let mut copy = || copy_file_range(&from, Some(&mut read), &to, Some(&mut written), bytes.len());
        assert_eq!([copy(), copy(), copy()], [Ok(16 << 20), Ok(4 << 20), Ok(0)]);
        assert_eq!(fs::read(mount.path("to")).expect("read"), bytes);
    });
}

/// Selects the action of the mapper process: unmap, msync, or close.
const MAPPER: &str = "RFS_TEST_MAPPER";

/// Maps a file, modifies the mapping, and unmaps it, possibly after msync. Both calls wait for
/// writeback with the process's memory locked, so the server must run in another process.
#[test]
#[ignore = "a helper process of other tests"]
fn mapper() {
    let Ok(path) = std::env::var(MAPPER) else { return };
    let file = open(path.as_ref());
    let mut mapped = Mapping::new(&file, 4096);
    mapped.write(0, &[7]);
    if path.ends_with("msync") {
        mapped.sync();
    }
    drop(mapped);
    println!("\nunmapped");
    io::stdout().flush().expect("stdout");
    // The file stays open until the test has checked it.
    io::stdin().read_to_end(&mut Vec::new()).ok();
}

#[test]
fn writeback_of_a_mapping_changes_the_times() {
    each(16 * MIB, |_, mount| {
        for how in ["munmap", "msync"] {
            let path = mount.path(how);
            let file = open(&path);
            file.set_len(4096).expect("a hole");
            // Far enough in the past for any clock.
            let old = UNIX_EPOCH + Duration::from_secs(1);
            file.set_times(fs::FileTimes::new().set_modified(old).set_accessed(old)).expect("set");
            let mut mapper = test_process(module_path!(), "mapper")
                .arg("--ignored")
                .env(MAPPER, &path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a helper process");
            let mut out = BufReader::new(mapper.stdout.take().expect("piped")).lines().map_while(Result::ok);
            assert!(out.any(|line| line == "unmapped"));
            assert!(fs::metadata(&path).expect("attributes").modified().expect("a time") > old, "{how}");
            assert_eq!(fs::read(&path).expect("read")[0], 7);
            drop(mapper.stdin.take());
            out.for_each(drop);
            assert!(mapper.wait().expect("ended").success());
        }
    });
}

#[test]
fn changes_of_a_mapping_are_data_after_msync() {
    each(16 * MIB, |_, mount| {
        let file = open(&mount.path("file"));
        file.set_len(MIB).expect("a hole");
        assert_eq!(seek(&file, SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO));
        let len = MIB as usize;
        let mut mapped = Mapping::new(&file, len);
        mapped.write(len / 2, &[7]);
        mapped.sync();
        drop(mapped);
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(MIB / 2));
        assert_eq!(seek(&file, SeekFrom::Hole(MIB / 2)), Ok(MIB / 2 + 4096));
    });
}
