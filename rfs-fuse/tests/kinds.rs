//! What is neither a file nor a directory, and what there is not.

mod common;

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
            net::{UnixListener, UnixStream},
        },
    },
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use common::{each, pairs};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open},
    io::Errno,
};

const MIB: u64 = 1 << 20;

fn node(path: &std::path::Path, kind: FileType, device: u64) {
    mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device).expect("made");
}

#[test]
fn fifos_and_sockets_connect_processes_of_one_machine() {
    pairs(16 * MIB, &[], |_, a, b| {
        node(&a.path("fifo"), FileType::Fifo, 0);
        thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read(a.path("fifo")).expect("read"));
            fs::write(a.path("fifo"), b"through").expect("written");
            assert_eq!(reader.join().expect("thread"), b"through");
        });
        let listener = UnixListener::bind(a.path("socket")).expect("bound");
        UnixStream::connect(a.path("socket")).expect("connected");
        // The other side has their names, and nothing behind them.
        assert!(fs::metadata(b.path("fifo")).expect("attributes").file_type().is_fifo());
        assert!(fs::metadata(b.path("socket")).expect("attributes").file_type().is_socket());
        let refused = UnixStream::connect(b.path("socket")).map(drop).map_err(|e| e.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused));
        drop(listener);
    });
}

#[test]
fn device_nodes_and_suid_programs_have_no_effect() {
    each(16 * MIB, |_, mount| {
        let null = makedev(1, 3);
        node(&mount.path("null"), FileType::CharacterDevice, null);
        node(&mount.path("loop"), FileType::BlockDevice, makedev(7, 0));
        let attributes = fs::metadata(mount.path("null")).expect("attributes");
        assert!(attributes.file_type().is_char_device() && attributes.rdev() == null);
        assert!(fs::metadata(mount.path("loop")).expect("attributes").file_type().is_block_device());
        for name in ["null", "loop"] {
            let error = File::open(mount.path(name)).expect_err("a device");
            assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()), "{name}");
        }
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mount table");
        let point = mount.point.to_str().expect("UTF-8");
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(point)).expect("mounted");
        let options: Vec<&str> = line.split(' ').nth(5).expect("options").split(',').collect();
        assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{line}");
    });
}

#[test]
fn device_nodes_and_suid_programs_have_an_effect_where_the_mount_allows_it() {
    const OWNER: u32 = 1001;
    pairs(16 * MIB, &["--dev", "--suid"], |_, a, b| {
        node(&a.path("null"), FileType::CharacterDevice, makedev(1, 3));
        fs::copy("/usr/bin/id", a.path("id")).expect("copied");
        chown(a.path("id"), Some(OWNER), Some(OWNER)).expect("chown");
        fs::set_permissions(a.path("id"), Permissions::from_mode(0o4755)).expect("chmod");
        // Made there, used here.
        fs::write(b.path("null"), b"nowhere").expect("a device");
        assert_eq!(fs::read(b.path("null")).expect("a device"), b"");
        let out = Command::new(b.path("id")).arg("-u").output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{OWNER}\n"));
    });
}

#[test]
fn there_are_no_files_without_a_name() {
    each(16 * MIB, |_, mount| {
        let unnamed = open(&mount.point, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).map(drop);
        assert_eq!(unnamed, Err(Errno::OPNOTSUPP));
    });
}

/// What is behind a descriptor that is none of an open file may be gone.
#[test]
fn what_the_other_side_removed_is_stale() {
    pairs(16 * MIB, &[], |_, a, b| {
        fs::write(a.path("file"), b"bytes").expect("written");
        let entry = open(a.path("file"), OFlags::PATH, Mode::empty()).expect("found");
        fs::remove_file(b.path("file")).expect("removed");
        let error = rustix::fs::fstat(&entry).map(drop);
        assert_eq!(error, Err(Errno::STALE));
    });
}

/// What was looked up under a name, and has been replaced by the other side before it is opened: through the descriptor of what was
/// found no name can be looked up again.
#[test]
fn what_the_other_side_replaced_between_the_look_and_the_opening_is_stale() {
    pairs(16 * MIB, &[], |_, a, b| {
        let path = a.path("file");
        fs::write(&path, b"old").expect("written");
        let found = open(&path, OFlags::PATH, Mode::empty()).expect("found");
        fs::write(b.path("new"), b"new").expect("written");
        fs::rename(b.path("new"), b.path("file")).expect("replaced");
        let through = format!("/proc/self/fd/{}", found.as_raw_fd());
        for flags in [OFlags::RDONLY, OFlags::RDWR, OFlags::RDWR | OFlags::TRUNC] {
            assert_eq!(open(&through, flags, Mode::empty()).map(drop), Err(Errno::STALE));
        }
        // By its name it is the new one.
        assert_eq!(fs::read(&path).expect("read"), b"new");
    });
}

/// While the other side replaces a name over and over, whoever opens it gets one of the files, whole, or is told to look again.
#[test]
fn a_name_that_is_replaced_over_and_over_is_opened_or_stale() {
    const ROUNDS: u32 = 300;
    pairs(16 * MIB, &[], |_, a, b| {
        let content = |round: u32| vec![round as u8; 5000];
        fs::write(b.path("name"), content(0)).expect("written");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let replaces = scope.spawn(|| {
                for round in 1..=ROUNDS {
                    fs::write(b.path("next"), content(round)).expect("written");
                    fs::rename(b.path("next"), b.path("name")).expect("replaced");
                }
                over.store(true, Ordering::SeqCst);
            });
            while !over.load(Ordering::SeqCst) {
                match fs::read(a.path("name")) {
                    Ok(bytes) => {
                        assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
                    }
                    Err(e) => assert_eq!(e.raw_os_error(), Some(Errno::STALE.raw_os_error())),
                }
            }
            replaces.join().expect("thread");
        });
        assert_eq!(fs::read(a.path("name")).expect("read"), content(ROUNDS));
    });
}

/// Linux looks the name up once more, and not a third time.
#[test]
fn a_name_that_comes_and_goes_over_and_over_is_made_or_opened_or_stale() {
    const ROUNDS: u32 = 2000;
    pairs(16 * MIB, &[], |_, a, b| {
        let open =
            |path: &std::path::Path| File::options().write(true).create(true).truncate(false).open(path);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let comes_and_goes = scope.spawn(|| {
                for _ in 0..ROUNDS {
                    // Also this one may be told so.
                    drop(open(&b.path("name")));
                    fs::remove_file(b.path("name")).ok();
                }
                over.store(true, Ordering::SeqCst);
            });
            let (mut opened, mut stale) = (0, 0);
            while !over.load(Ordering::SeqCst) {
                match open(&a.path("name")) {
                    Ok(_) => opened += 1,
                    Err(e) => {
                        assert_eq!(e.raw_os_error(), Some(Errno::STALE.raw_os_error()));
                        stale += 1;
                    }
                }
            }
            comes_and_goes.join().expect("thread");
            eprintln!("opened {opened} times, stale {stale} times");
        });
        drop(open(&a.path("name")).expect("made"));
    });
}
