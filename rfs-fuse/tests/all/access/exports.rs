//! Several exports of one server, mounted side by side: each has its own names, space and inodes.

use std::{fs, os::unix::fs::FileExt, path::Path};

use crate::common::{Over, TestServer, directory, eventually, program, providers};
use rfs_server::ExportConfig;
use rustix::{fs::statvfs, io::Errno};

const BLOCK: u64 = 4096;

/// Starts a server with two exports. "small" has 512 blocks and 5 inodes, including the root's;
/// "large" has 1024 and 100.
fn server() -> TestServer {
    TestServer::with(0, |config| {
        let export = |name: &str, blocks, inodes| ExportConfig {
            name: name.into(),
            memory: blocks * BLOCK,
            max: None,
            inodes: Some(inodes),
            root: config.root,
            eviction: Default::default(),
        };
        config.exports = vec![export("small", 512, 5), export("large", 1024, 100)];
    })
}

/// Returns total and free blocks, total and free inodes. An ordinary user may use all of them.
fn totals(point: &Path) -> (u64, u64, u64, u64) {
    let totals = statvfs(point).expect("totals");
    assert_eq!((totals.f_bavail, totals.f_favail), (totals.f_bfree, totals.f_ffree));
    assert_eq!((totals.f_bsize, totals.f_frsize, totals.f_namemax), (BLOCK, BLOCK, 255));
    (totals.f_blocks, totals.f_bfree, totals.f_files, totals.f_ffree)
}

#[test]
fn a_full_export_does_not_affect_another_export() {
    for over in providers() {
        let server = server();
        let (small, large) =
            (server.mount(over, &["--export", "small"]), server.mount(over, &["--export", "large"]));
        // Without `--export` a mount gets the first export.
        let first = server.mount(over, &[]);
        assert_eq!(totals(&small.point), (512, 512, 5, 4));
        assert_eq!(totals(&large.point), (1024, 1024, 100, 99));
        let file = fs::File::create_new(small.path("file")).expect("created");
        assert!(first.path("file").exists() && !large.path("file").exists());
        // Writes that fit succeed. The write that crosses the end is short, and the next one fails.
        let bytes = crate::common::pattern(512 * BLOCK as usize, 3);
        file.write_all_at(&bytes, 0).expect("written");
        let full = file.write_at(b"x", bytes.len() as u64).expect_err("full");
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(totals(&small.point), (512, 0, 5, 3));
        assert!(fs::read(first.path("file")).expect("read") == bytes);
        // Inodes.
        for name in ["b", "c", "d"] {
            fs::create_dir(small.path(name)).expect("made");
        }
        let full = fs::create_dir(small.path("e")).expect_err("full");
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        fs::remove_dir(small.path("b")).expect("removed");
        fs::create_dir(small.path("e")).expect("made");
        assert_eq!(totals(&large.point), (1024, 1024, 100, 99));
        [small, large, first].into_iter().for_each(crate::common::Mount::unmount);
    }
}

/// Catches a kernel that keeps the old totals, and a write that goes on failing after the export
/// has grown. Also catches a mount that loses data when the export shrinks.
#[test]
fn df_and_writes_follow_the_size_of_an_export() {
    for over in providers().into_iter().filter(|over| *over != Over::Rdma) {
        let server = TestServer::with(2 << 20, |config| {
            config.listen.retain(|address| address.provider() != Over::Rdma);
            (config.max_memory, config.inodes) = (Some(256 << 20), Some(100));
        });
        let (mount, other) = (server.mount(over, &[]), server.mount(over, &[]));
        assert_eq!(totals(&mount.point).0, 512);
        let file = fs::File::create_new(mount.path("file")).expect("created");
        let bytes = crate::common::pattern(512 * BLOCK as usize, 7);
        file.write_all_at(&bytes, 0).expect("written");
        let full = file.write_at(&bytes, bytes.len() as u64).expect_err("full");
        assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        server.inner.resize("rfs", 8 << 20).expect("grown");
        assert_eq!((totals(&mount.point).0, totals(&other.point).0), (2048, 2048));
        file.write_all_at(&bytes, bytes.len() as u64).expect("written");
        drop(file);
        assert!(fs::read(other.path("file")).expect("read") == bytes.repeat(2));
        // The space in use. The space ahead of need is back after the last close, of which the
        // kernel tells the mount later.
        let shrunk = || server.inner.resize("rfs", 4 << 20).ok();
        assert!(eventually(|| shrunk() == Some((8 << 20, 4 << 20))));
        assert!(server.inner.resize("rfs", (4 << 20) - BLOCK).is_err());
        assert_eq!([&mount, &other].map(|mount| totals(&mount.point).0), [1024; 2]);
        assert!(fs::read(mount.path("file")).expect("read") == bytes.repeat(2));
        fs::write(mount.path("more"), b"x").expect_err("full");
        fs::remove_file(mount.path("file")).expect("removed");
        fs::write(mount.path("more"), b"x").expect("written");
        [mount, other].into_iter().for_each(crate::common::Mount::unmount);
    }
}

#[test]
fn a_missing_export_is_reported() {
    let server = server();
    let point = directory();
    for over in providers() {
        let address = server.address(over);
        let refused = program().args(["--export", "none", &address]).arg(point.path()).output().expect("ran");
        let said = String::from_utf8(refused.stderr).expect("UTF-8");
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().filter(|line| line.contains("\"none\"")).count(), 1, "{said}");
    }
}
