//! Special files, and kinds of files that a mount does not support.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    process::Command,
    thread,
};

use crate::common::{each, pairs};
use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
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
        // The other mount has the names, but no connection to the processes.
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
fn device_nodes_and_suid_programs_have_an_effect_if_the_mount_allows_it() {
    const OWNER: u32 = 1001;
    pairs(16 * MIB, &["--dev", "--suid"], |_, a, b| {
        node(&a.path("null"), FileType::CharacterDevice, makedev(1, 3));
        fs::copy("/usr/bin/id", a.path("id")).expect("copied");
        chown(a.path("id"), Some(OWNER), Some(OWNER)).expect("chown");
        fs::set_permissions(a.path("id"), Permissions::from_mode(0o4755)).expect("chmod");
        // Made on one mount, used on the other.
        fs::write(b.path("null"), b"nowhere").expect("a device");
        assert_eq!(fs::read(b.path("null")).expect("a device"), b"");
        let out = Command::new(b.path("id")).arg("-u").output().expect("it runs");
        assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{OWNER}\n"));
    });
}
