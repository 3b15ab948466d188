//! Limits of sizes, names, times and numbers.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{each, locking};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
};
use rustix::{
    fs::{FallocateFlags, Timespec, Timestamps, XattrFlags, fallocate, futimens, setxattr},
    io::Errno,
};

const MIB: u64 = 1 << 20;
const LARGEST: u64 = i64::MAX as u64;

#[test]
fn sizes_reach_to_the_largest_offset() {
    each(16 * MIB, |_, mount| {
        let file = locking::open(&mount.path("file"));
        file.set_len(LARGEST).expect("a hole");
        assert_eq!(file.metadata().expect("attributes").len(), LARGEST);
        file.write_all_at(b"end", LARGEST - 3).expect("written");
        let mut bytes = [1; 8];
        file.read_exact_at(&mut bytes, LARGEST - 8).expect("read");
        assert_eq!(&bytes, b"\0\0\0\0\0end");
        assert_eq!(fallocate(&file, FallocateFlags::empty(), LARGEST, 1), Err(Errno::FBIG));
    });
}

#[test]
fn names_and_targets_have_their_lengths() {
    each(16 * MIB, |_, mount| {
        let too_long = Some(Errno::NAMETOOLONG.raw_os_error());
        fs::write(mount.path(&"n".repeat(255)), b"").expect("written");
        let error = fs::write(mount.path(&"n".repeat(256)), b"").expect_err("a name of 256 bytes");
        assert_eq!(error.raw_os_error(), too_long);
        symlink("t".repeat(4095), mount.path("link")).expect("linked");
        let error = symlink("t".repeat(4096), mount.path("longer")).expect_err("a target of 4096 bytes");
        assert_eq!(error.raw_os_error(), too_long);
    });
}

#[test]
fn times_reach_from_1677_to_2262() {
    each(16 * MIB, |_, mount| {
        let file = locking::open(&mount.path("file"));
        for (seconds, nanoseconds) in
            [(-9_223_372_036, 1), (9_223_372_036, 854_775_807), (-1, 999_999_999), (0, 0)]
        {
            let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            futimens(&file, &Timestamps { last_access: time, last_modification: time }).expect("set");
            let found = fs::metadata(mount.path("file")).expect("attributes");
            assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds));
            assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanoseconds));
        }
        // Times beyond the range become the nearest valid time.
        let (first, last) = ((-9_223_372_037, 145_224_192), (9_223_372_036, 854_775_807));
        for (seconds, nearest) in
            [(-9_223_372_037, first), (i64::MIN / 4, first), (1 << 34, last), (1 << 60, last)]
        {
            let time = Timespec { tv_sec: seconds, tv_nsec: 5 };
            futimens(&file, &Timestamps { last_access: time, last_modification: time }).expect("set");
            let found = file.metadata().expect("attributes");
            assert_eq!((found.mtime(), found.mtime_nsec()), nearest, "{seconds} s");
            assert_eq!((found.atime(), found.atime_nsec()), nearest, "{seconds} s");
        }
        let now = file.set_modified(UNIX_EPOCH + Duration::new(1, 1)).and_then(|()| file.metadata());
        assert_eq!(now.expect("attributes").mtime_nsec(), 1);
    });
}

#[test]
fn the_number_of_locks_of_a_mount_is_limited() {
    each(16 * MIB, |_, mount| {
        let file = locking::open(&mount.path("file"));
        let lock = |at: i64| {
            let lock = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: libc::SEEK_SET as i16,
                l_start: 2 * at,
                l_len: 1,
                l_pid: 0,
            };
            fcntl(&file, FcntlArg::F_SETLK(&lock)).map(drop)
        };
        let had = (0..20_000).take_while(|&at| lock(at).is_ok()).count();
        assert_eq!(had, 16_384);
        assert_eq!(lock(20_000), Err(nix::Error::ENOLCK));
        // The first close of the file by this process releases all of its locks.
        drop(File::open(mount.path("file")).expect("opened"));
        assert_eq!(lock(0), Ok(()));
    });
}

#[test]
fn extended_attributes_take_a_sixteenth_of_the_memory_at_most() {
    each(32 * MIB, |_, mount| {
        let value = vec![b'v'; 60 << 10];
        let set = |number: usize| {
            let path = mount.path(&format!("{number}"));
            fs::write(&path, b"").expect("written");
            setxattr(&path, "user.v", &value, XattrFlags::empty())
        };
        let had = (0..100).take_while(|&number| set(number) == Ok(())).count();
        // 2 MiB, minus the server's overhead for each attribute.
        assert!((30..=34).contains(&had), "{had}");
        assert_eq!(set(100), Err(Errno::NOSPC));
        fs::remove_file(mount.path("0")).expect("removed");
        assert_eq!(set(100), Ok(()));
    });
}
