//! Files on one mount, over each provider.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::{
        fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
        io::AsFd,
    },
    path::Path,
    time::{Duration, SystemTime},
};

use crate::common::{
    NOBODY, TestServer, each, emulated, eventually, locking::open, mapping::Mapping, pattern, providers,
    shell_as,
};
use rustix::{
    fs::{CWD, OFlags, RenameFlags, renameat_with},
    io::Errno,
};

const MIB: u64 = 1 << 20;

/// Returns the kernel's version.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).expect("a number");
    (next(), next())
}

fn read_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    file.read_exact_at(&mut out, offset).expect("read");
    out
}

fn names(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).expect("directory");
    entries.map(|e| e.expect("entry").file_name().into_string().expect("UTF-8")).collect()
}

#[test]
fn every_byte_and_name_survives_the_mount() {
    for over in providers() {
        let server = TestServer::new(64 * MIB);
        let big = pattern(5 * MIB as usize + 123, 1);
        let mount = server.mount(over, &[]);
        fs::create_dir_all(mount.path("a/b")).expect("directories");
        fs::write(mount.path("a/b/big"), &big).expect("written");
        fs::write(mount.path("a/empty"), b"").expect("written");
        symlink("b/big", mount.path("a/link")).expect("symlink");
        fs::set_permissions(mount.path("a/empty"), fs::Permissions::from_mode(0o4751)).expect("chmod");
        std::os::unix::fs::chown(mount.path("a/empty"), Some(1), Some(2)).expect("chown");
        mount.unmount();

        // Mounts again over another provider, if several are tested.
        let other = providers().into_iter().find(|other| *other != over).unwrap_or(over);
        let mount = server.mount(other, &[]);
        assert_eq!(names(&mount.path("a")), ["b", "empty", "link"].map(String::from).into());
        assert!(fs::read(mount.path("a/link")).expect("through the link") == big);
        let empty = fs::metadata(mount.path("a/empty")).expect("attributes");
        // chown clears suid.
        assert_eq!((empty.mode(), empty.uid(), empty.gid(), empty.len()), (0o100751, 1, 2, 0));
        mount.unmount();
    }
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    each(64 * MIB, |server, mount| {
        let free = server.free_blocks();
        let mut file = open(&mount.path("gone"));
        file.write_all(&pattern(3 * MIB as usize, 2)).expect("written");
        fs::remove_file(mount.path("gone")).expect("unlinked");
        assert_eq!(fs::metadata(mount.path("gone")).expect_err("no name").kind(), io::ErrorKind::NotFound);
        assert_eq!(file.metadata().expect("attributes").nlink(), 0);
        file.write_all(b"more").expect("written");
        assert!(read_at(&file, 0, 3 * MIB as usize) == pattern(3 * MIB as usize, 2));
        assert_eq!(read_at(&file, 3 * MIB, 4), b"more");
        // Opens the unlinked file again through /proc, as on any file system.
        let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd())));
        assert_eq!(read_at(&again.expect("opened"), 3 * MIB, 4), b"more");
        drop(file);
        assert!(eventually(|| server.free_blocks() == free), "its space comes back");
    });
}

#[test]
fn rename_has_its_flags() {
    each(16 * MIB, |_, mount| {
        let (a, b) = (mount.path("a"), mount.path("b"));
        fs::write(&a, b"A").expect("written");
        fs::write(&b, b"B").expect("written");
        let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
        assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
        rename(&a, &b, RenameFlags::EXCHANGE).expect("exchanged");
        assert_eq!((fs::read(&a).expect("a"), fs::read(&b).expect("b")), (b"B".to_vec(), b"A".to_vec()));
        rename(&a, &b, RenameFlags::empty()).expect("replaced");
        assert_eq!((fs::read(&b).expect("b"), a.exists()), (b"B".to_vec(), false));
        rename(&b, &a, RenameFlags::NOREPLACE).expect("renamed");
        assert_eq!(rename(&b, &a, RenameFlags::EXCHANGE), Err(Errno::NOENT));
        fs::create_dir(mount.path("d")).expect("directory");
        fs::create_dir(mount.path("d/e")).expect("directory");
        assert_eq!(rename(&mount.path("d"), &mount.path("d/e/f"), RenameFlags::empty()), Err(Errno::INVAL));
        assert_eq!(rename(&a, &mount.path("d"), RenameFlags::empty()), Err(Errno::ISDIR));
    });
}

#[test]
fn hard_links_are_one_file_and_symlinks_are_text() {
    each(16 * MIB, |_, mount| {
        fs::write(mount.path("a"), b"one").expect("written");
        fs::hard_link(mount.path("a"), mount.path("b")).expect("linked");
        let (a, b) = (fs::metadata(mount.path("a")).expect("a"), fs::metadata(mount.path("b")).expect("b"));
        assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
        fs::write(mount.path("b"), b"another").expect("written");
        assert_eq!(fs::read(mount.path("a")).expect("a"), b"another");
        fs::remove_file(mount.path("a")).expect("unlinked");
        assert_eq!(fs::metadata(mount.path("b")).expect("b").nlink(), 1);
        assert!(fs::hard_link(mount.path("."), mount.path("dir")).is_err());

        let target = "x".repeat(4095);
        symlink(&target, mount.path("long")).expect("symlink");
        assert_eq!(fs::read_link(mount.path("long")).expect("target").to_str(), Some(&target[..]));
        assert_eq!(fs::symlink_metadata(mount.path("long")).expect("attributes").len(), 4095);
        let name = "n".repeat(255);
        fs::write(mount.path(&name), b"").expect("the longest name");
        let longer = fs::write(mount.path(&"n".repeat(256)), b"").expect_err("too long");
        assert_eq!(longer.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    });
}

#[test]
fn holes_and_what_was_cut_off_read_as_zero() {
    each(64 * MIB, |server, mount| {
        let free = server.free_blocks();
        let path = mount.path("sparse");
        let file = open(&path);
        file.write_all_at(b"end", 1 << 40).expect("written far away");
        assert_eq!(file.metadata().expect("attributes").len(), (1 << 40) + 3);
        assert_eq!(read_at(&file, (1 << 40) - 5, 8), b"\0\0\0\0\0end");
        assert!(free - server.free_blocks() < 1024, "a hole takes no space");
        file.set_len(0).expect("truncated");

        file.write_all_at(&pattern(3 * MIB as usize, 3), 0).expect("written");
        for len in [2 * MIB + 77, MIB, 5000, 4096, 10] {
            file.set_len(len).expect("cut");
            file.set_len(3 * MIB).expect("extended");
            let mut expected = pattern(len as usize, 3);
            expected.resize(3 * MIB as usize, 0);
            assert!(read_at(&file, 0, 3 * MIB as usize) == expected, "cut at {len}");
            assert!(fs::read(&path).expect("opened anew") == expected, "cut at {len}");
        }
        // Truncates with O_TRUNC.
        assert_eq!(File::create(&path).expect("created").metadata().expect("attributes").len(), 0);
        assert!(eventually(|| server.free_blocks() == free || {
            drop(fs::remove_file(&path));
            false
        }));
    });
}

#[test]
fn mapped_files_share_their_bytes_with_read_and_write() {
    each(16 * MIB, |_, mount| {
        let len = 3 * 4096;
        let file = open(&mount.path("mapped"));
        file.write_all_at(&pattern(len, 4), 0).expect("written");
        let mut mapped = Mapping::new(&file, len);
        assert!(mapped.read(0, len) == pattern(len, 4));
        mapped.write(5000, b"mmap");
        mapped.sync();
        assert_eq!(read_at(&file, 4998, 8)[2..6], *b"mmap");
        file.write_all_at(b"file", 9000).expect("written");
        assert_eq!(mapped.read(9000, 4), b"file");
        mapped.write(0, b"late");
        assert_eq!(read_at(&file, 0, 4), b"late", "before it is written back");
        drop((mapped, file));
        assert_eq!(fs::read(mount.path("mapped")).expect("read")[..4], *b"late");
    });
}

/// Files that are read and written past the page cache: files open to append, and all files if
/// nothing is cached. They can be mapped from Linux 6.6 on.
#[test]
fn mapped_files_read_past_the_page_cache_agree_after_msync() {
    let can_map = kernel() >= (6, 6);
    for over in providers() {
        for (options, append) in
            [(&[][..], true), (&["--cache", "none"], false), (&["--cache", "none"], true)]
        {
            let server = TestServer::new(16 * MIB);
            let mount = server.mount(over, options);
            let mut options_of_file = OpenOptions::new();
            options_of_file.read(true).write(true).create(true).append(append);
            let file = options_of_file.open(mount.path("mapped")).expect("opened");
            let len = 3 * 4096;
            (&file).write_all(&pattern(len, 4)).expect("written");
            let mut mapped = match Mapping::tried(&file, len) {
                Ok(mapped) if can_map => mapped,
                refused => {
                    assert_eq!((refused.err(), can_map), (Some(Errno::NODEV), false));
                    drop(file);
                    mount.unmount();
                    continue;
                }
            };
            assert!(mapped.read(0, len) == pattern(len, 4));
            mapped.write(5000, b"mmap");
            mapped.sync();
            let mut expected = pattern(len, 4);
            expected[5000..5004].copy_from_slice(b"mmap");
            assert!(read_at(&file, 0, len) == expected, "{options:?}, append: {append}");
            drop((mapped, file));
            assert!(fs::read(mount.path("mapped")).expect("read") == expected);
            mount.unmount();
        }
    }
}

#[test]
fn private_mappings_stay_with_the_process() {
    each(16 * MIB, |_, mount| {
        let len = 2 * 4096;
        let file = open(&mount.path("mapped"));
        file.write_all_at(&pattern(len, 4), 0).expect("written");
        let mut mapped = Mapping::private(&file, len);
        assert!(mapped.read(0, len) == pattern(len, 4));
        mapped.write(4096, b"mine");
        file.sync_all().expect("synced");
        assert!(read_at(&file, 0, len) == pattern(len, 4));
        file.write_all_at(b"all's", 4096).expect("written");
        assert_eq!(mapped.read(4096, 4), b"mine");
        drop(mapped);
        assert_eq!(read_at(&file, 4096, 5), *b"all's");
    });
}

#[test]
fn writes_with_o_sync_are_at_the_server() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mut mount = server.mount(over, &[]);
        let sync = OFlags::SYNC.bits() as i32;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).custom_flags(sync).open(mount.path("file"));
        let mut file = file.expect("opened");
        let data = pattern(MIB as usize + 3, 6);
        file.write_all(&data).expect("written");
        let written = file.metadata().expect("attributes").modified().expect("a time");
        // The mount is killed while the file is still open.
        mount.signal(rustix::process::Signal::KILL);
        mount.wait();
        drop(file);
        let mount = server.mount(over, &[]);
        assert!(fs::read(mount.path("file")).expect("read") == data);
        let found = fs::metadata(mount.path("file")).expect("attributes").modified().expect("a time");
        assert_eq!(found, written);
        mount.unmount();
    }
}

#[test]
fn a_path_may_be_as_long_as_the_kernel_takes_it() {
    each(16 * MIB, |_, mount| {
        // At most 4095 bytes, including the mount point.
        let mut deep = mount.point.clone();
        while deep.as_os_str().len() + 1 + 100 + 5 <= 4095 {
            deep.push("d".repeat(100));
            fs::create_dir(&deep).expect("made");
        }
        assert!(deep.strip_prefix(&mount.point).expect("below it").components().count() >= 39);
        fs::write(deep.join("file"), b"deep").expect("written");
        fs::rename(deep.join("file"), mount.path("up")).expect("renamed");
        fs::rename(mount.path("up"), deep.join("down")).expect("renamed");
        assert_eq!(names(&deep), ["down".to_owned()].into());
        assert_eq!(fs::read(deep.join("down")).expect("read"), b"deep");
        let mut all = 0;
        let mut at = mount.point.clone();
        while let Some(entry) = fs::read_dir(&at).expect("listed").next() {
            let entry = entry.expect("an entry");
            all += 1;
            match entry.file_type().expect("a kind").is_dir() {
                true => at = entry.path(),
                false => break,
            }
        }
        assert_eq!(at, deep);
        fs::remove_dir_all(mount.path(&"d".repeat(100))).expect("removed");
        assert_eq!(names(&mount.point), BTreeSet::new());
        assert!(all > 39);
    });
}

#[test]
fn a_full_server_returns_enospc_and_stays_consistent() {
    each(8 * MIB, |server, mount| {
        fs::write(mount.path("kept"), pattern(MIB as usize, 5)).expect("written");
        let free = server.free_blocks();
        let mut file = open(&mount.path("big"));
        let mut written = 0;
        let full = loop {
            match file.write(&pattern(256 << 10, written)) {
                Ok(n) => written += n as u64,
                Err(e) => break e,
            }
            assert!(written <= 8 * MIB, "more than there is");
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(written >= free * 4096 - MIB, "only {written} of {free} blocks were to be had");
        assert!(fs::read(mount.path("kept")).expect("read") == pattern(MIB as usize, 5));
        let mut at = 0;
        file.seek(SeekFrom::Start(0)).expect("seek");
        while at < written {
            let mut chunk = vec![0; (256 << 10).min((written - at) as usize)];
            file.read_exact(&mut chunk).expect("read");
            assert!(chunk == pattern(256 << 10, at)[..chunk.len()], "at {at}");
            at += chunk.len() as u64;
        }
        drop(file);
        fs::remove_file(mount.path("big")).expect("unlinked");
        assert!(eventually(|| server.free_blocks() == free), "all space comes back");

        // The new file must not show old bytes.
        let file = open(&mount.path("fresh"));
        for i in 0..(free * 4096 / MIB).saturating_sub(1) {
            file.write_all_at(b"!", i * MIB + MIB / 2).expect("written");
        }
        let mut all = Vec::new();
        File::open(mount.path("fresh")).expect("opened").read_to_end(&mut all).expect("read");
        let strange = all.iter().position(|b| ![0, b'!'].contains(b));
        assert_eq!(strange, None, "old bytes");
    });
}

#[test]
fn threads_write_append_and_read_side_by_side() {
    const THREADS: u64 = 4;
    const CHUNK: usize = 30_000;
    each(128 * MIB, |_, mount| {
        let shared = open(&mount.path("shared"));
        std::thread::scope(|scope| {
            for t in 0..THREADS {
                let shared = &shared;
                let log = mount.path("log");
                scope.spawn(move || {
                    let mut append = OpenOptions::new().append(true).create(true).open(log).expect("log");
                    for i in 0..40 {
                        let at = (i * THREADS + t) * CHUNK as u64;
                        shared.write_all_at(&pattern(CHUNK, at), at).expect("written");
                        assert!(read_at(shared, at, CHUNK) == pattern(CHUNK, at));
                        append.write_all(format!("{t} {i:04}\n").as_bytes()).expect("appended");
                    }
                });
            }
        });
        let all = fs::read(mount.path("shared")).expect("read");
        assert_eq!(all.len(), 40 * THREADS as usize * CHUNK);
        for (i, chunk) in all.chunks(CHUNK).enumerate() {
            assert!(chunk == pattern(CHUNK, (i * CHUNK) as u64), "chunk {i}");
        }
        let log = fs::read_to_string(mount.path("log")).expect("log");
        let lines: BTreeSet<&str> = log.lines().collect();
        assert_eq!((log.lines().count(), lines.len()), (160, 160), "no append is lost or torn");
    });
}

#[test]
fn reads_and_writes_of_an_open_file_with_space_run_no_server_code() {
    // With checksums, writes are calls.
    if crate::common::checked() {
        return eprintln!("not run: a server with checksums carries writes out itself");
    }
    each(64 * MIB, |server, mount| {
        let file = open(&mount.path("file"));
        file.write_all_at(&pattern(8 * MIB as usize, 6), 0).expect("written");
        let before = server.inner.stats().calls;
        for i in 0..8 {
            file.write_all_at(&pattern(MIB as usize, i), i * MIB).expect("written");
            file.write_all_at(&pattern(100, i), i * MIB + 5).expect("written");
            assert!(read_at(&file, i * MIB, 5) == pattern(5, i));
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("pages dropped");
        assert!(read_at(&file, 7 * MIB + 200, 1000) == pattern(MIB as usize, 7)[200..1200]);
        assert_eq!(file.metadata().expect("attributes").len(), 8 * MIB);
        file.sync_all().expect("synced");
        assert_eq!(server.inner.stats().calls, before);
    });
}

#[test]
fn growing_asks_for_space_seldom() {
    // With checksums, writes are calls.
    if crate::common::checked() {
        return eprintln!("not run: a server with checksums carries writes out itself");
    }
    for over in providers() {
        let server = TestServer::new(128 * MIB);
        let mount = server.mount(over, &["--direct-io"]);
        let file = open(&mount.path("file"));
        let before = server.calls();
        let writes = if emulated() { 512 } else { 2048 };
        for i in 0..writes {
            file.write_all_at(&[i as u8; 4096], i * 4096).expect("written");
        }
        let calls = server.calls() - before;
        assert!(calls < writes / 32, "{calls} calls for {writes} writes");
        drop(file);
        mount.unmount();
    }
}

#[test]
fn times_follow_writes_and_can_be_set() {
    each(16 * MIB, |_, mount| {
        let path = mount.path("file");
        let file = open(&path);
        let modified = || fs::metadata(&path).expect("attributes").modified().expect("mtime");
        let old = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
        file.set_modified(old).expect("set");
        assert_eq!(modified(), old);
        let before = SystemTime::now();
        file.write_all_at(b"x", 0).expect("written");
        assert!(modified() >= before);
        file.set_modified(old).expect("set");
        file.write_all_at(b"y", 0).expect("written");
        assert!(modified() >= before, "the write after it counts");
        file.set_modified(old).expect("set");
        drop(file);
        assert_eq!(modified(), old, "closing writes no time that is older");
        // A time before 1970.
        let ancient = SystemTime::UNIX_EPOCH - Duration::from_millis(1750);
        File::open(&path).expect("opened").set_modified(ancient).expect("set");
        assert_eq!(modified(), ancient);
    });
}

#[test]
fn large_directories_are_listed_whole() {
    each(64 * MIB, |_, mount| {
        let dir = mount.path("dir");
        fs::create_dir(&dir).expect("directory");
        let all = if emulated() { 400 } else { 1500 };
        let made: BTreeSet<String> = (0..all).map(|i| format!("{i:05}-{}", "n".repeat(i % 90))).collect();
        for name in &made {
            fs::write(dir.join(name), b"").expect("made");
        }
        assert_eq!(names(&dir), made);
        // Removing entries while listing, as `rm -r` does, misses none.
        let entries = fs::read_dir(&dir).expect("directory");
        for entry in entries {
            fs::remove_file(entry.expect("entry").path()).expect("removed");
        }
        assert_eq!(names(&dir), BTreeSet::new());
        fs::remove_dir(&dir).expect("removed");
        let missing = fs::read_dir(&dir).expect_err("gone").kind();
        assert_eq!(missing, io::ErrorKind::NotFound);
    });
}

#[test]
fn an_ordinary_users_write_takes_suid_away() {
    for (over, options) in
        providers().into_iter().flat_map(|over| [(over, &[][..]), (over, &["--direct-io"][..])])
    {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, options);
        let path = mount.path("program");
        fs::write(&path, b"x").expect("written");
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("chown");
        for (before, after) in [(0o6755, 0o0755), (0o2745, 0o2745), (0o4700, 0o0700)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).expect("chmod");
            assert_eq!(shell_as(NOBODY, &mount.point, "printf y >> program"), Some(0));
            let mode = fs::metadata(&path).expect("attributes").mode() & 0o7777;
            assert_eq!(mode, after, "{options:?}: from {before:o} became {mode:o}, not {after:o}");
        }
        mount.unmount();
    }
}

/// CAP_FSETID: fuser does not report it for truncations. For writes the kernel checks it.
#[test]
fn truncation_by_root_without_cap_fsetid_counts_as_roots() {
    each(16 * MIB, |_, mount| {
        let path = mount.path("program");
        fs::write(&path, b"bytes").expect("written");
        for (change, after) in
            [("truncate -s 3 program", 0o4755), ("dd of=program conv=notrunc 2>/dev/null", 0o755)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("chmod");
            let script = format!("printf y | setpriv --bounding-set=-fsetid --inh-caps=-fsetid {change}");
            assert_eq!(shell_as(0, &mount.point, &script), Some(0));
            let mode = fs::metadata(&path).expect("attributes").mode() & 0o7777;
            assert_eq!(mode, after, "{change}: {mode:o}");
        }
    });
}

/// If the group may not execute a file, a write clears sgid unless the writer is in the group.
#[test]
fn a_strangers_write_clears_sgid_if_the_group_may_not_execute() {
    const STRANGER: u32 = NOBODY - 1;
    let changes = [
        "printf y >> program",
        "printf y | dd of=program conv=notrunc 2>/dev/null",
        "truncate -s 3 program",
        ": > program",
        "fallocate -l 9000 program",
        "fallocate -p -l 4096 program",
        "cp --reflink=never /etc/passwd program",
    ];
    let modes = [(0o2666, 0o0666, 0o2666), (0o6666, 0o0666, 0o2666), (0o2676, 0o0676, 0o0676)];
    for (over, options) in
        providers().into_iter().flat_map(|over| [(over, &[][..]), (over, &["--direct-io"][..])])
    {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, options);
        let path = mount.path("program");
        for (nth, change) in changes.into_iter().enumerate() {
            // Emulated processors take a second for each shell.
            let modes = if emulated() { &modes[nth % modes.len()..][..1] } else { &modes[..] };
            for &(before, by_stranger, by_member) in modes {
                for (user, after) in [(STRANGER, by_stranger), (NOBODY, by_member)] {
                    fs::write(&path, b"x").expect("written");
                    std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("chown");
                    fs::set_permissions(&path, fs::Permissions::from_mode(before)).expect("chmod");
                    assert_eq!(shell_as(user, &mount.point, change), Some(0), "{change}");
                    let mode = fs::metadata(&path).expect("attributes").mode() & 0o7777;
                    assert_eq!(mode, after, "{options:?}: {change} by {user}: {before:o} became {mode:o}");
                }
            }
        }
        mount.unmount();
    }
}

#[test]
fn permissions_are_checked() {
    each(16 * MIB, |_, mount| {
        fs::write(mount.path("secret"), b"s").expect("written");
        fs::set_permissions(mount.path("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
        assert_ne!(shell_as(NOBODY, &mount.point, "cat secret 2>/dev/null"), Some(0));
        assert_eq!(
            shell_as(NOBODY, &mount.point, "echo mine > own && test -O own && cat own >/dev/null"),
            Some(0)
        );
        fs::create_dir(mount.path("closed")).expect("directory");
        assert_ne!(shell_as(NOBODY, &mount.point, "echo x 2>/dev/null > closed/file"), Some(0));
    });
}

#[test]
fn a_read_only_mount_changes_nothing() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        let mount = server.mount(over, &[]);
        fs::write(mount.path("file"), b"there").expect("written");
        let reader = server.mount(over, &["--read-only"]);
        assert_eq!(fs::read(reader.path("file")).expect("read"), b"there");
        let refused = fs::write(reader.path("file"), b"no").expect_err("read-only");
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(fs::remove_file(reader.path("file")).is_err());
        reader.unmount();
        mount.unmount();
    }
}

#[test]
fn direct_io_is_the_same_file_system() {
    for over in providers() {
        let server = TestServer::new(64 * MIB);
        let mount = server.mount(over, &["--direct-io", "--threads", "3"]);
        let data = pattern(3 * MIB as usize + 5, 8);
        fs::write(mount.path("file"), &data).expect("written");
        assert!(fs::read(mount.path("file")).expect("read") == data);
        let file = open(&mount.path("file"));
        assert_eq!(file.read_at(&mut [0; 10], data.len() as u64).expect("at the end"), 0);
        assert_eq!(file.read_at(&mut [0; 10], data.len() as u64 - 3).expect("near the end"), 3);
        drop(file);
        mount.unmount();

        // O_DIRECT on an ordinary mount. The kernel splits it into concurrent requests.
        let mount = server.mount(over, &[]);
        let direct = OFlags::DIRECT.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(direct).open(mount.path("file"));
        let file = opened.expect("opened");
        let mut out = vec![0; 2 * MIB as usize];
        file.read_exact_at(&mut out, 4096).expect("read");
        assert!(out == data[4096..][..out.len()]);
        drop(file);
        mount.unmount();
    }
}
