//! `--cache writeback`: when written data reaches the server, and the tasks that the kernel takes
//! over meanwhile.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
    thread,
    time::{Duration, SystemTime},
};

use crate::common::{
    Mount, NOBODY, Over, TestServer, directory, is_mounted, locking::open, mapping::Mapping, pattern,
    providers, shell_as,
};
use rustix::{
    fs::{
        FallocateFlags, FlockOperation, OFlags, SeekFrom, copy_file_range, fallocate, fcntl_setfl, flock,
        seek,
    },
    io::Errno,
    process::Signal,
};

const MIB: usize = 1 << 20;
const WRITEBACK: &[&str] = &["--cache", "writeback"];

/// Starts a server of `mib` MiB with a writeback mount, for every provider.
fn each(mib: usize, test: impl Fn(&TestServer, Mount, Over)) {
    for over in providers() {
        eprintln!("over {over:?}");
        let server = TestServer::new((mib * MIB) as u64);
        let mount = server.mount(over, WRITEBACK);
        test(&server, mount, over);
    }
}

/// Mounts again, to see the state at the server.
fn mount_again(server: &TestServer, over: Over) -> Mount {
    server.mount(over, &[])
}

fn kill(mount: &mut Mount) {
    mount.signal(Signal::KILL);
    mount.wait();
}

/// Catches a mount that takes a file for empty because the server has none of its bytes yet. Also
/// catches a mount that compares times of the kernel and the server as if they had one clock.
#[test]
fn the_first_read_of_bytes_that_are_not_written_back_changes_atime() {
    each(16, |_, mount, _| {
        let path = mount.path("file");
        fs::write(&path, b"one").expect("written");
        let accessed = || fs::metadata(&path).expect("attributes").accessed().expect("atime");
        let before = accessed();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(fs::read(&path).expect("read"), b"one");
        assert!(accessed() > before);
    });
}

#[test]
fn small_writes_leave_in_few_large_requests() {
    for over in providers() {
        let server = TestServer::new(16 * MIB as u64);
        let mount = server.mount(over, &[WRITEBACK, &["--stats-on-exit"]].concat());
        let data = pattern(4 * MIB, 3);
        let mut file = File::create(mount.path("file")).expect("created");
        data.chunks(1000).for_each(|chunk| file.write_all(chunk).expect("written"));
        drop(file);
        let [requests] = mount.counted(["write_requests"]);
        assert!(requests < 400, "{requests} for 4195 writes");
        let mount = mount_again(&server, over);
        assert!(fs::read(mount.path("file")).expect("read") == data);
        mount.unmount();
    }
}

#[test]
fn synced_and_closed_files_survive_the_death_of_rfs_fuse() {
    each(32, |server, mut mount, over| {
        let data = pattern(MIB + 77, 5);
        fs::write(mount.path("closed"), &data).expect("written");
        // Closing one descriptor writes back the writes through another one.
        let open_twice = open(&mount.path("twice"));
        let second = open(&mount.path("twice"));
        open_twice.write_all_at(&data, 0).expect("written");
        drop(second);
        let synced = open(&mount.path("fsync"));
        synced.write_all_at(&data, 0).expect("written");
        synced.sync_all().expect("synced");
        let synced_data = open(&mount.path("fdatasync"));
        synced_data.write_all_at(&data, 0).expect("written");
        synced_data.sync_data().expect("synced");
        let mapped = open(&mount.path("msync"));
        mapped.set_len(data.len() as u64).expect("extended");
        let mut map = Mapping::new(&mapped, data.len());
        map.write(0, &data);
        map.sync();
        let through = [("dsync", OFlags::DSYNC), ("sync", OFlags::SYNC)].map(|(name, flags)| {
            let mut through = OpenOptions::new();
            through.write(true).create(true).custom_flags(flags.bits() as i32);
            let through = through.open(mount.path(name)).expect("opened");
            through.write_all_at(&data, 0).expect("written");
            through
        });
        let mut around = OpenOptions::new();
        around.write(true).create(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let around = around.open(mount.path("direct")).expect("opened");
        around.write_all_at(&Aligned::of(7).0, 4096).expect("written");
        // An arbitrary part of these writes may be at the server, but no other bytes.
        let lost = open(&mount.path("lost"));
        lost.write_all_at(&data, 0).expect("written");
        kill(&mut mount);
        let failed = lost.sync_all().expect_err("the server or mount is gone");
        assert!(
            crate::common::KILLED
                .iter()
                .chain([&Errno::IO])
                .any(|errno| Some(errno.raw_os_error()) == failed.raw_os_error()),
            "{failed}"
        );
        drop((map, open_twice, synced, synced_data, mapped, through, around, lost));
        let mount = mount_again(server, over);
        for name in ["closed", "twice", "fsync", "fdatasync", "msync", "dsync", "sync"] {
            assert!(fs::read(mount.path(name)).expect("read") == data, "{name} over {over:?}");
        }
        let direct = fs::read(mount.path("direct")).expect("read");
        assert!(direct == [vec![0; 4096], vec![7; 4096]].concat());
        let lost = fs::read(mount.path("lost")).expect("read");
        assert!(lost.len() <= data.len());
        assert!(lost.iter().zip(&data).all(|(is, meant)| is == meant || *is == 0));
        mount.unmount();
    });
}

#[test]
fn an_unmount_loses_nothing() {
    each(64, |server, mut mount, over| {
        let data = pattern(8 * MIB + 13, 7);
        fs::write(mount.path("fusermount"), &data).expect("written");
        let done = Command::new("fusermount3").arg("-u").arg(&mount.point).status().expect("fusermount3");
        assert!(done.success());
        assert_eq!(mount.wait().0.code(), Some(0));

        // A signal detaches the mount, with open files and mapped memory.
        let mut mount = server.mount(over, WRITEBACK);
        let (file, mapped) = (open(&mount.path("open")), open(&mount.path("mapped")));
        data.chunks(4096)
            .enumerate()
            .for_each(|(at, chunk)| file.write_all_at(chunk, (at * 4096) as u64).expect("written"));
        mapped.set_len(data.len() as u64).expect("extended");
        let mut map = Mapping::new(&mapped, data.len());
        map.write(0, &data);
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("busy") && !said.contains("written back"), "{said}");
        assert!(!is_mounted(&mount.point));
        drop((file, map, mapped));

        // A lazy unmount by another process: the mount ends with its last file.
        let mut mount = server.mount(over, WRITEBACK);
        let file = open(&mount.path("lazily"));
        file.write_all_at(&data[..MIB], 0).expect("written");
        let done = Command::new("umount").arg("--lazy").arg(&mount.point).status().expect("umount");
        assert!(done.success() && !is_mounted(&mount.point));
        file.write_all_at(&data[MIB..], MIB as u64).expect("written");
        drop(file);
        assert_eq!(mount.wait().0.code(), Some(0));

        let mount = mount_again(server, over);
        for name in ["fusermount", "open", "mapped", "lazily"] {
            assert!(fs::read(mount.path(name)).expect("read") == data, "{name} over {over:?}");
        }
        mount.unmount();
    });
}

#[test]
fn fsync_and_close_report_a_full_server() {
    each(8, |_, mut mount, _| {
        let piece = pattern(MIB, 9);
        let fill = |file: &File, count: usize| {
            (0..count).try_for_each(|at| file.write_all_at(&piece, (at * MIB) as u64))
        };
        let file = open(&mount.path("synced"));
        fill(&file, 12).expect("taken by the kernel");
        let full = file.sync_all().expect_err("there is no space");
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        file.set_len(0).expect("cut");
        // The error is reported once; then the file works normally.
        file.sync_all().expect("nothing is left to be written");
        file.write_all_at(b"fits", 0).expect("written");
        file.sync_all().expect("synced");
        drop(file);
        // dd checks the result of close.
        let elsewhere = directory();
        let log = elsewhere.path().join("said");
        let script = format!("dd if=/dev/zero of=closed bs=1M count=12 2>{}", log.display());
        assert_eq!(shell_as(0, &mount.point, &script), Some(1));
        let said = fs::read_to_string(&log).expect("read");
        assert!(said.contains("No space left on device"), "{said}");
        fs::remove_file(mount.path("closed")).expect("removed");
        assert_eq!(shell_as(0, &mount.point, "dd if=/dev/zero of=closed bs=1M count=4 2>/dev/null"), Some(0));
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0));
        assert_eq!(said.lines().filter(|line| line.contains("cannot write back")).count(), 1, "{said}");
    });
}

/// Returns size, mode and times in nanoseconds.
fn attributes(path: &Path) -> [i64; 6] {
    let m = fs::metadata(path).expect("stat");
    [m.size() as i64, i64::from(m.mode()), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()]
}

type Change = fn(&Mount);

#[test]
fn sizes_and_times_at_the_server_are_those_shown_before() {
    let changes: [(&str, Change); 8] = [
        ("written", |m| fs::write(m.path("written"), "x").expect("written")),
        ("rewritten", |m| open(&m.path("rewritten")).write_all_at(b"y", 9).expect("written")),
        ("appended", |m| {
            let mut file = OpenOptions::new().append(true).open(m.path("appended")).expect("opened");
            file.write_all(b"z").expect("written");
        }),
        ("cut", |m| open(&m.path("cut")).set_len(1).expect("cut")),
        ("touched", |m| {
            let file = open(&m.path("touched"));
            file.write_all_at(b"late", 0).expect("written");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(77, 5)).expect("set");
        }),
        ("mode", |m| {
            let file = open(&m.path("mode"));
            file.write_all_at(b"late", 0).expect("written");
            file.set_permissions(fs::Permissions::from_mode(0o640)).expect("chmod");
        }),
        ("linked", |m| fs::hard_link(m.path("linked"), m.path("link")).expect("linked")),
        ("moved", |m| {
            fs::rename(m.path("moved"), m.path("there")).expect("moved");
            symlink("there", m.path("moved")).expect("linked");
        }),
    ];
    each(16, |server, mut mount, over| {
        changes.iter().for_each(|(name, _)| fs::write(mount.path(name), "first").expect("written"));
        // The kernel's clock for file times advances in steps of a few milliseconds.
        thread::sleep(Duration::from_millis(20));
        changes.iter().for_each(|(_, change)| change(&mount));
        let shown = changes.map(|(name, _)| attributes(&mount.path(name)));
        assert_eq!((shown[4][2], shown[4][3]), (77, 5));
        kill(&mut mount);
        let mount = mount_again(server, over);
        for ((name, _), shown) in changes.iter().zip(shown) {
            assert_eq!(attributes(&mount.path(name)), shown, "{name} over {over:?}");
        }
        mount.unmount();
    });
}

#[test]
fn dirty_pages_are_data_and_part_of_copies() {
    each(16, |_, mount, _| {
        let (file, copy) = (open(&mount.path("sparse")), open(&mount.path("copy")));
        file.set_len(2 * MIB as u64).expect("extended");
        let data = pattern(8192, 4);
        file.write_all_at(&data, MIB as u64).expect("written");
        let found = [
            SeekFrom::Data(0),
            SeekFrom::Hole(MIB as u64),
            SeekFrom::Data(MIB as u64 + 5000),
            SeekFrom::Hole(0),
        ]
        .map(|wanted| seek(&file, wanted).expect("found"));
        assert_eq!(found, [MIB, MIB + 8192, MIB + 5000, 0].map(|at| at as u64));
        assert_eq!(seek(&file, SeekFrom::Data(MIB as u64 + 8192)), Err(Errno::NXIO));
        // Beyond the size that the server knows.
        file.write_all_at(&data, 3 * MIB as u64).expect("written");
        assert_eq!(seek(&file, SeekFrom::Data(2 * MIB as u64)), Ok(3 * MIB as u64));
        file.write_all_at(&data, 4 * MIB as u64).expect("written");
        copy.write_all_at(b"before", 100).expect("written");
        let (mut from, mut to) = (0, 4096);
        while from < 4 * MIB as u64 + 8192 {
            let copied =
                copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 8 * MIB).expect("copied");
            assert_ne!(copied, 0, "at {from}");
        }
        let mut expected = vec![0; 4096 + 4 * MIB + 8192];
        expected[100..106].copy_from_slice(b"before");
        for at in [MIB, 3 * MIB, 4 * MIB] {
            expected[4096 + at..][..8192].copy_from_slice(&data);
        }
        assert!(fs::read(mount.path("copy")).expect("read") == expected);

        // Holes and reservations over dirty pages.
        copy.write_all_at(&data, 0).expect("written");
        fallocate(&copy, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4000, 5000)
            .expect("punched");
        copy.write_all_at(b"after", 4096).expect("written");
        fallocate(&copy, FallocateFlags::empty(), 0, 6 * MIB as u64).expect("reserved");
        expected[..8192].copy_from_slice(&data);
        expected[4000..9000].fill(0);
        expected[4096..4101].copy_from_slice(b"after");
        expected.resize(6 * MIB, 0);
        drop((file, copy));
        assert!(fs::read(mount.path("copy")).expect("read") == expected);
        // Exact once the file is closed.
        fs::write(mount.path("blocks"), &data).expect("written");
        assert_eq!(fs::metadata(mount.path("blocks")).expect("stat").blocks(), 16);
        mount.unmount();
    });
}

#[test]
fn appends_of_all_processes_are_whole() {
    each(64, |server, mount, over| {
        const LEN: usize = 10_001;
        const COUNT: usize = 100;
        let path = mount.path("log");
        thread::scope(|scope| {
            for who in 1..=4_u8 {
                let path = &path;
                scope.spawn(move || {
                    // O_APPEND is set on open or later.
                    let mut file = match who % 2 {
                        0 => OpenOptions::new().append(true).create(true).open(path).expect("opened"),
                        _ => open(path),
                    };
                    fcntl_setfl(&file, OFlags::APPEND).expect("set");
                    (0..COUNT).for_each(|_| file.write_all(&[who; LEN]).expect("appended"));
                });
            }
        });
        mount.unmount();
        let mount = mount_again(server, over);
        let log = fs::read(mount.path("log")).expect("read");
        assert_eq!(log.len(), 4 * COUNT * LEN);
        let mut counts = [0; 5];
        for record in log.chunks(LEN) {
            assert!(record.iter().all(|byte| *byte == record[0]), "a torn record");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [0, COUNT, COUNT, COUNT, COUNT]);
        mount.unmount();
    });
}

#[test]
fn locks_and_part_written_pages_lose_nothing() {
    each(16, |server, mount, over| {
        // For a write-only descriptor the kernel reads the rest of a page itself.
        fs::write(mount.path("write-only"), pattern(10_000, 1)).expect("written");
        fs::set_permissions(mount.path("write-only"), fs::Permissions::from_mode(0o222)).expect("chmod");
        let script = "printf part | dd of=write-only bs=1 seek=5000 conv=notrunc 2>/dev/null";
        assert_eq!(shell_as(NOBODY, &mount.point, script), Some(0));

        let file = open(&mount.path("locked"));
        let data = pattern(3 * MIB, 2);
        for (at, chunk) in data.chunks(MIB).enumerate() {
            flock(&file, FlockOperation::LockExclusive).expect("locked");
            file.write_all_at(chunk, (at * MIB) as u64).expect("written");
            flock(&file, FlockOperation::Unlock).expect("unlocked");
        }
        // Direct and cached access to the same file.
        let mut around = OpenOptions::new();
        around.read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let around = around.open(mount.path("locked")).expect("opened");
        let aligned = Aligned::of(7);
        around.write_all_at(&aligned.0[..], 4096).expect("written");
        let mut read = [0; 8192];
        file.read_exact_at(&mut read, 0).expect("read");
        assert!(read[..4096] == data[..4096] && read[4096..] == aligned.0);
        drop((file, around));
        mount.unmount();

        let mount = mount_again(server, over);
        let mut expected = pattern(10_000, 1);
        expected[5000..5004].copy_from_slice(b"part");
        assert!(fs::read(mount.path("write-only")).expect("read") == expected);
        let mut expected = data;
        expected[4096..8192].copy_from_slice(&aligned.0);
        assert!(fs::read(mount.path("locked")).expect("read") == expected);
        mount.unmount();
    });
}

/// A page at an address that O_DIRECT accepts.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

impl Aligned {
    fn of(byte: u8) -> Aligned {
        Aligned([byte; 4096])
    }
}

#[test]
fn the_first_write_of_others_clears_suid_and_sgid() {
    each(16, |_, mount, _| {
        let path = mount.path("program");
        fs::write(&path, "first").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        assert_eq!(shell_as(NOBODY, &mount.point, "printf second >>program"), Some(0));
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o777);
        assert_eq!(fs::read(&path).expect("read"), b"firstsecond");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        // Writes of root keep them.
        assert_eq!(shell_as(0, &mount.point, "printf third >>program"), Some(0));
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o6777);
        mount.unmount();
    });
}

/// At the unmount no program can get an error. The exit status and the last line report a loss.
#[test]
fn a_loss_at_the_unmount_is_an_error() {
    for over in providers() {
        let server = TestServer::new(16 * MIB as u64);
        let mut mount = server.mount(over, &[WRITEBACK, &["--no-return"]].concat());
        let file = open(&mount.path("file"));
        file.write_all_at(&pattern(MIB, 1), 0).expect("written");
        server.inner.shutdown().expect("no snapshots");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(1), "over {over:?}: {said}");
        let last = said.lines().last().expect("a message");
        let untold = last.starts_with("rfs-fuse: ") && last.contains("1048576 bytes of 1 files are lost");
        assert!(untold || last.contains("recent writes of programs may be lost"), "{said}");
        drop(file);
    }
}

#[test]
fn fsync_and_close_report_a_lost_server() {
    for over in providers() {
        let server = TestServer::new(16 * MIB as u64);
        let mount = server.mount(over, &[WRITEBACK, &["--no-return"]].concat());
        let file = open(&mount.path("file"));
        file.write_all_at(&pattern(MIB, 1), 0).expect("written");
        server.inner.shutdown().expect("no snapshots");
        let failed: io::Error = file.sync_all().expect_err("the server or mount is gone");
        assert!(
            [Errno::HOSTDOWN, Errno::IO].map(|e| Some(e.raw_os_error())).contains(&failed.raw_os_error()),
            "{failed}"
        );
        drop(file);
        mount.unmount();
    }
}
