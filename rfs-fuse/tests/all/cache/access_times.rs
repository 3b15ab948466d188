//! Access times of mounts with relatime, noatime and strictatime.

use std::{
    fs::{self, File, FileTimes, OpenOptions, Permissions},
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use crate::common::{Over, TestServer, each, eventually, pairs, providers};
use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};

const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

/// Returns atime, mtime and ctime in nanoseconds.
fn times(path: &Path) -> [i128; 3] {
    let attr = fs::symlink_metadata(path).expect("attributes");
    [(attr.atime(), attr.atime_nsec()), (attr.mtime(), attr.mtime_nsec()), (attr.ctime(), attr.ctime_nsec())]
        .map(|(s, ns)| i128::from(s) * 1_000_000_000 + i128::from(ns))
}

/// Reads a file. Returns true if the read changed atime; nothing else may change.
fn read_counts(path: &Path) -> bool {
    let before = times(path);
    fs::read(path).expect("read");
    let after = times(path);
    assert_eq!(before[1..], after[1..]);
    assert!(after[0] >= before[0]);
    after[0] > before[0]
}

/// Sets atime to `hours` hours ago, and mtime to an hour before.
fn read_hours_ago(path: &Path, hours: u32) {
    let file = OpenOptions::new().write(true).open(path).expect("opened");
    let read = SystemTime::now() - hours * HOUR;
    file.set_times(FileTimes::new().set_accessed(read).set_modified(read - HOUR)).expect("set");
}

#[test]
fn the_first_read_after_a_change_counts() {
    each(64 * MIB, |_, mount| {
        let path = mount.path("file");
        fs::write(&path, b"one").expect("written");
        assert!(read_counts(&path), "first read, from the kernel's pages");
        assert!(!read_counts(&path) && !read_counts(&path));
        fs::write(&path, b"two").expect("written");
        assert!(read_counts(&path));
        assert!(!read_counts(&path));
        fs::write(mount.path("empty"), b"").expect("written");
        assert!(!read_counts(&mount.path("empty")), "there was nothing to read");
    });
}

#[test]
fn reads_of_an_open_file_change_atime_at_once() {
    each(64 * MIB, |_, mount| {
        let path = mount.path("file");
        fs::write(&path, vec![7; 3 << 16]).expect("written");
        // O_DIRECT bypasses the page cache, so rfs-fuse sees every read.
        let direct = OFlags::DIRECT.bits() as i32;
        let mut file =
            OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path).expect("opened");
        let before = times(&path)[0];
        file.read_exact(&mut [0; 4096]).expect("read");
        let first = times(&path)[0];
        assert!(first > before);
        file.read_exact(&mut [0; 4096]).expect("read");
        assert_eq!(times(&path)[0], first);
        file.write_all(&[1; 4096]).expect("written");
        file.read_exact(&mut [0; 4096]).expect("read");
        assert!(times(&path)[0] > first);
    });
}

#[test]
fn setting_times_makes_the_next_read_count() {
    each(64 * MIB, |_, mount| {
        let path = mount.path("file");
        fs::write(&path, b"x").expect("written");
        assert!(read_counts(&path));
        // Setting the times also sets ctime, so one read counts, and then none within a day.
        read_hours_ago(&path, 23);
        assert!(read_counts(&path));
        assert!(!read_counts(&path));
    });
}

#[test]
fn listing_a_directory_changes_its_atime() {
    each(64 * MIB, |_, mount| {
        let dir = mount.path("d");
        fs::create_dir(&dir).expect("made");
        let list = || fs::read_dir(&dir).expect("listed").count();
        let before = times(&dir);
        assert_eq!(list(), 0);
        // The mount reports the read to the server in the background.
        assert!(eventually(|| times(&dir)[0] > before[0]));
        let read = times(&dir);
        assert_eq!(read[1..], before[1..]);
        assert_eq!(list(), 0);
        File::create(dir.join("f")).expect("made");
        assert_eq!(times(&dir)[0], read[0]);
        assert_eq!(list(), 1);
        assert!(eventually(|| times(&dir)[0] > read[0]));
    });
}

/// The reply to a change of names contains the directory's attributes, which can be older than a
/// later read. Catches a mount that takes them for current after it was told of the read.
#[test]
fn attributes_in_a_reply_do_not_undo_a_later_read() {
    each(64 * MIB, |_, mount| {
        let (root, d) = (mount.path("root"), mount.path("root/d"));
        fs::create_dir(&root).expect("made");
        fs::create_dir(&d).expect("made");
        for round in 0..3 {
            fs::write(d.join(round.to_string()), b"x").expect("written");
            let list = |path: &Path| fs::read_dir(path).expect("opened").for_each(drop);
            let written = times(&d);
            list(&d);
            assert!(eventually(|| times(&d)[0] > written[0]), "round {round}");
            let read = times(&d);
            for _ in 0..3 {
                // Listing the parent also returns the directory's attributes.
                let found = fs::read_dir(&root).expect("opened").map(|entry| entry.expect("entry").path());
                found.for_each(|path| assert_eq!(times(&path), read));
                list(&d);
                assert_eq!(times(&d), read, "round {round}");
            }
        }
    });
}

#[test]
fn opening_a_directory_listed_from_the_cache_changes_its_atime() {
    each(64 * MIB, |_, mount| {
        let dir = mount.path("d");
        fs::create_dir(&dir).expect("made");
        File::create(dir.join("f")).expect("made");
        let list = || fs::read_dir(&dir).expect("listed").count();
        let made = times(&dir)[0];
        assert!(eventually(|| list() == 1 && times(&dir)[0] > made));
        for mode in [0o700, 0o755] {
            // This change does not affect the listing.
            fs::set_permissions(&dir, Permissions::from_mode(mode)).expect("changed");
            let before = times(&dir);
            assert_eq!(list(), 1);
            assert!(eventually(|| times(&dir)[0] > before[0]));
            let read = times(&dir);
            assert_eq!(read[1..], before[1..]);
            assert_eq!((list(), times(&dir)), (1, read));
        }
    });
}

#[test]
fn another_mount_sees_the_atime_after_the_last_close() {
    pairs(64 * MIB, &[], |_, a, b| {
        fs::write(a.path("file"), b"x").expect("written");
        let before = times(&b.path("file"));
        assert_eq!(fs::read(b.path("file")).expect("read"), b"x");
        let read = times(&b.path("file"))[0];
        assert!(read > before[0]);
        // The server recalls nothing for an access time. A forced query returns it.
        let anew = |path: &Path| {
            let attr = statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::ATIME).expect("attributes");
            i128::from(attr.stx_atime.tv_sec) * 1_000_000_000 + i128::from(attr.stx_atime.tv_nsec)
        };
        assert!(eventually(|| anew(&a.path("file")) == read));
        assert!(!read_counts(&a.path("file")), "it was read since it was written, wherever");
    });
}

#[test]
fn noatime_mounts_and_opens_change_no_atime() {
    for over in providers() {
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(over, &["--noatime"]);
        let path = mount.path("file");
        fs::write(&path, b"x").expect("written");
        assert!(!read_counts(&path));
        assert_eq!(fs::read_dir(&mount.point).expect("listed").count(), 1);
        let calls = server.inner.stats().calls;
        assert!(calls.contains(&("accessed".into(), 0)), "{calls:?}");
        mount.unmount();

        let mount = server.mount(over, &["--read-only"]);
        assert!(!read_counts(&mount.path("file")));
        mount.unmount();

        let mount = server.mount(over, &[]);
        let path = mount.path("file");
        let before = times(&path);
        let flags = OFlags::NOATIME.bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&path).expect("opened");
        file.read_exact(&mut [0; 1]).expect("read");
        drop(file);
        assert_eq!(times(&path), before, "the reader wants to leave no trace");
        assert!(read_counts(&path));
        mount.unmount();
    }
}

#[test]
fn strictatime_counts_every_read() {
    let server = TestServer::new(64 * MIB);
    let mount = server.mount(Over::Shm, &["--strictatime"]);
    let path = mount.path("file");
    fs::write(&path, b"x").expect("written");
    assert!(read_counts(&path) && read_counts(&path) && read_counts(&path));
    mount.unmount();
}

#[test]
fn reading_a_link_does_not_change_its_atime() {
    each(64 * MIB, |_, mount| {
        let link = mount.path("link");
        std::os::unix::fs::symlink("target", &link).expect("made");
        let before = times(&link);
        assert_eq!(fs::read_link(&link).expect("read"), Path::new("target"));
        assert_eq!(times(&link), before);
    });
}

/// rfs-fuse counts reads according to its own options at the start.
#[test]
fn remounting_does_not_change_how_reads_count() {
    each(64 * MIB, |_, mount| {
        for option in ["noatime", "strictatime", "relatime"] {
            let mut remount = Command::new("mount");
            remount.args(["--internal-only", "-o", &format!("remount,{option}")]).arg(&mount.point);
            assert!(remount.status().expect("mount").success(), "{option}");
            let path = mount.path(option);
            fs::write(&path, b"x").expect("written");
            assert!(read_counts(&path), "{option}");
            assert!(!read_counts(&path), "{option}");
        }
    });
}
