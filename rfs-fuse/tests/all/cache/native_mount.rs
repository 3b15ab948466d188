//! A FUSE mount and native mounts of one server see each other's changes.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rfs_native::{LockMode, Mount as NativeMount, MountOptions, OpenOptions, RenameMode};

use crate::common::{Mount, Over, TestServer};

/// Runs a test with a FUSE mount and a native one, over both providers and in two cache modes.
fn beside(test: impl Fn(&Mount, &NativeMount)) {
    for (over, cache) in [(Over::Shm, "auto"), (Over::Tcp, "auto"), (Over::Shm, "none")] {
        let server = TestServer::new(64 << 20);
        let fuse = server.mount(over, &["--cache", cache]);
        let options = MountOptions { provider: Some(over), ..MountOptions::default() };
        let native = NativeMount::connect(&server.address(over), &options).expect("mounted");
        test(&fuse, &native);
        fuse.unmount();
    }
}

fn missing(path: PathBuf) -> bool {
    fs::metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

#[test]
fn a_native_mount_and_a_fuse_mount_are_one_file_system() {
    beside(|fuse, native| {
        for round in 0..20_u64 {
            native.make_dir("d", 0o755).expect("made");
            native.write("d/f", format!("native {round}")).expect("written");
            assert_eq!(fs::read_to_string(fuse.path("d/f")).expect("read"), format!("native {round}"));
            fs::write(fuse.path("d/f"), format!("fuse {round}")).expect("written");
            assert_eq!(native.read("d/f").expect("read"), format!("fuse {round}").into_bytes());
            assert_eq!(native.stat("d/f").expect("stat").size, 5 + round.to_string().len() as u64);
            fs::rename(fuse.path("d/f"), fuse.path("g")).expect("renamed");
            assert!(native.list("d").expect("listed").is_empty() && !native.exists("d/f").expect("known"));
            assert!(missing(fuse.path("h")));
            native.rename_with("g", "h", RenameMode::NoReplace).expect("renamed");
            assert!(missing(fuse.path("g")));
            native.set_mode("h", 0o640).expect("mode");
            assert_eq!(fs::metadata(fuse.path("h")).expect("stat").mode() & 0o7777, 0o640);
            fs::set_permissions(fuse.path("h"), PermissionsExt::from_mode(0o600)).expect("mode");
            assert_eq!(native.stat("h").expect("stat").perm, 0o600);
            native.symlink("h", "l").expect("linked");
            assert_eq!(fs::read_link(fuse.path("l")).expect("link"), Path::new("h"));
            fs::remove_file(fuse.path("l")).expect("removed");
            native.remove_file("h").expect("removed");
            assert!(missing(fuse.path("h")));
            fs::remove_dir(fuse.path("d")).expect("removed");
            assert!(!native.exists("d").expect("known"));
        }
    });
}

#[test]
fn a_fuse_mount_reads_each_native_write() {
    beside(|fuse, native| {
        native.write("f", [0; 8192]).expect("written");
        // The kernel has pages of the file from before the writer came.
        let file = File::open(fuse.path("f")).expect("opened");
        let mut out = [9; 8192];
        file.read_exact_at(&mut out, 0).expect("read");
        let writer = native.open_with("f", OpenOptions::new().read(true).write(true)).expect("opened");
        for round in 1..100_u8 {
            writer.write_all_at(&[round; 4096], 2000).expect("written");
            file.read_exact_at(&mut out, 0).expect("read");
            assert_eq!(out[2000..6096], [round; 4096], "round {round}");
            let end = writer.append(&[round]).expect("appended");
            file.read_exact_at(&mut out[..1], end).expect("read");
            assert_eq!(out[0], round);
            assert_eq!(file.metadata().expect("stat").len(), end + 1);
        }
        writer.set_len(100).expect("truncated");
        assert_eq!(file.metadata().expect("stat").len(), 100);
        // And the other way round.
        let file = File::options().write(true).open(fuse.path("f")).expect("opened");
        for round in 1..100_u8 {
            file.write_all_at(&[round; 100], 50).expect("written");
            let mut out = [0; 100];
            writer.read_exact_at(&mut out, 50).expect("read");
            assert_eq!(out, [round; 100]);
        }
    });
}

#[test]
fn locks_hold_between_both() {
    beside(|fuse, native| {
        let (here, there) =
            (native.create("f").expect("created"), File::create(fuse.path("f")).expect("opened"));
        assert!(here.try_lock(LockMode::Exclusive, 0..10).expect("asked"));
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        let refused = rustix::fs::fcntl_lock(&there, lock).expect_err("locked");
        assert!(matches!(refused, rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS), "{refused}");
        drop(here);
        rustix::fs::fcntl_lock(&there, lock).expect("unlocked");
        let again = native.open_with("f", OpenOptions::new().write(true)).expect("opened");
        assert!(!again.try_lock(LockMode::Exclusive, ..).expect("asked"));
    });
}
