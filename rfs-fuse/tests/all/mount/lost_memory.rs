//! A server that is killed and comes back without its memory: `--lost-server`.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    process::Stdio,
};

use super::lost_server::ServerProcess;
use crate::common::{Mount, directory, eventually, is_mounted, program, providers};
use rustix::process::Signal;
use serde_json::Value;

const REASON: &str = "the server was restarted and has lost its memory";

/// Starts a server and a mount with a file. The file stays open, so the mount is busy.
fn mount(over: crate::common::Over, options: &[&str]) -> (ServerProcess, Mount, File, tempfile::TempDir) {
    let (server, point) = (ServerProcess::start(), directory());
    let mount = Mount::start(server.address(over), point.path(), options);
    fs::write(mount.path("file"), b"old").expect("written");
    let file = File::open(mount.path("file")).expect("opened");
    (server, mount, file, point)
}

#[test]
fn a_mount_ends_with_status_3_when_its_server_lost_its_memory() {
    crate::common::require_fuse();
    for over in providers() {
        let (server, mut mount, file, point) = mount(over, &[]);
        let _server = server.killed_and_started_anew();
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(3), "over {over:?}: {said}");
        let last = said.lines().last().expect("a message");
        let begin = format!("rfs-fuse: {}: unmounted", point.path().display());
        assert!(last.starts_with(&begin) && last.contains(REASON), "{said}");
        assert!(!is_mounted(point.path()));
        file.read_at(&mut [0], 0).expect_err("the mount is gone");
    }
}

#[test]
fn a_mount_follows_its_server_to_new_memory() {
    crate::common::require_fuse();
    for over in providers() {
        let (server, mut mount, file, point) = mount(over, &["--lost-server", "remount"]);
        let _server = server.killed_and_started_anew();
        // The old mount fails, the directory below is empty, and the new mount is empty.
        let works = || is_mounted(point.path()) && fs::write(mount.path("new"), b"new").is_ok();
        assert!(eventually(works), "over {over:?}");
        assert!(!mount.path("file").exists() && mount.is_running());
        file.read_at(&mut [0], 0).expect_err("the old file system is gone");
        drop(file);
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains(REASON) && said.contains("to mount the server's new export"), "{said}");
        assert!(!is_mounted(point.path()));
        assert!(!point.path().join("new").exists());
    }
}

#[test]
fn a_mount_that_stays_says_why_each_kind_of_operation_fails() {
    crate::common::require_fuse();
    for over in providers() {
        let options = ["--lost-server", "stay", "--cache", "none"];
        let (server, mut mount, file, point) = mount(over, &options);
        let _server = server.killed_and_started_anew();
        let status = || -> Value {
            let output = program()
                .args(["status", "--json"])
                .arg(point.path())
                .stdin(Stdio::null())
                .output()
                .expect("rfs-fuse runs");
            serde_json::from_slice(&output.stdout).expect("JSON")
        };
        assert!(eventually(|| status()["session"]["state"] == "ended"), "over {over:?}");
        assert_eq!(status()["session"]["final_loss"], REASON);
        for _ in 0..3 {
            let failed = file.read_at(&mut [0; 16], 0).expect_err("no server").raw_os_error();
            assert_eq!(failed, Some(rustix::io::Errno::HOSTDOWN.raw_os_error()));
            fs::create_dir(mount.path("new")).expect_err("no server");
        }
        drop(file);
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        for kind in ["read", "getattr"] {
            let logged = format!("{kind} fails until a new mount: {REASON}");
            assert_eq!(said.matches(&logged).count(), 1, "{said}");
        }
    }
}
