//! `--cache writeback`: a mount with exclusive use of its export.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    sync::Barrier,
    thread,
    time::Duration,
};

use crate::common::{
    Mount, Over, TestServer, combinations, directory, eventually, is_mounted, program, providers, stop,
};
use rdmabox::Fencing;
use rfs_server::ExportConfig;
use rustix::process::{Pid, Signal, kill_process};

const MIB: u64 = 1 << 20;
const WRITEBACK: &[&str] = &["--cache", "writeback"];

/// Runs a mount that must fail.
fn refused(server: &TestServer, over: Over, options: &[&str]) -> Output {
    let point = directory();
    let out = program()
        .args(["--provider", &over.to_string()])
        .args(options)
        .arg(server.address(over))
        .arg(point.path())
        .output()
        .expect("rfs-fuse runs");
    assert!(!is_mounted(point.path()));
    out
}

#[track_caller]
fn assert_says(out: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("rfs-fuse: ") && words.iter().all(|word| said.contains(word)), "{said}");
}

/// Mounts once the server has noticed the end of all sessions.
fn mount_when_free(server: &TestServer, over: Over, options: &[&str]) -> Mount {
    assert!(eventually(|| server.inner.stats().sessions == 0), "another session is still there");
    server.mount(over, options)
}

#[test]
fn an_exclusive_and_another_mount_exclude_each_other() {
    for (first, second) in combinations() {
        let server = TestServer::new(16 * MIB);
        let alone = server.mount(first, WRITEBACK);
        fs::write(alone.path("file"), "its own").expect("written");
        for options in [&[][..], WRITEBACK, &["--cache", "none", "--read-only"]] {
            assert_says(
                &refused(&server, second, options),
                &["its first export", "--cache writeback", "elsewhere"],
            );
        }
        assert_eq!(fs::read(alone.path("file")).expect("read"), b"its own");
        // After a clean unmount the next mount needs no retry: it waits until the server has freed
        // the export.
        alone.unmount();
        let (one, two) = (server.mount(second, &[]), server.mount(first, &["--cache", "none"]));
        assert_eq!(fs::read(two.path("file")).expect("read"), b"its own");
        assert_says(&refused(&server, first, WRITEBACK), &["in use by 2 other mounts", "--cache auto"]);
        two.unmount();
        assert!(eventually(|| server.inner.stats().sessions == 1));
        assert_says(&refused(&server, second, WRITEBACK), &["in use by 1 other mount,", "--cache auto"]);
        one.unmount();
        server.mount(second, WRITEBACK).unmount();
    }
}

#[test]
fn the_export_is_free_after_an_exclusive_mount_is_killed() {
    for over in providers() {
        let server = TestServer::new(16 * MIB);
        for options in [WRITEBACK, &[], WRITEBACK] {
            let mut mount = server.mount(over, options);
            fs::write(mount.path("file"), "closed").expect("written");
            mount.signal(Signal::KILL);
            mount.wait();
        }
        let mount = mount_when_free(&server, over, &[]);
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"closed");
        mount.unmount();
    }
}

#[test]
fn the_export_is_free_after_the_lease_of_an_exclusive_mount_expires() {
    for over in providers() {
        let lease = Duration::from_secs(2);
        let server = TestServer::with(16 * MIB, |config| {
            config.fencing = Fencing::new(lease, true);
        });
        let mut held = server.mount(over, WRITEBACK);
        stop(held.pid());
        let mount = mount_when_free(&server, over, WRITEBACK);
        fs::write(mount.path("file"), "ours").expect("written");
        held.signal(Signal::KILL);
        held.wait();
        assert_eq!(fs::read(mount.path("file")).expect("read"), b"ours");
        mount.unmount();
    }
}

#[test]
fn an_exclusive_mount_does_not_affect_other_exports() {
    let server = TestServer::with(0, |config| {
        let root = config.root;
        let export = |name: &str| ExportConfig {
            name: name.into(),
            memory: 4 * MIB,
            max: None,
            inodes: None,
            root,
            eviction: Default::default(),
        };
        config.exports = vec![export("a"), export("b")];
    });
    for over in providers() {
        let alone = server.mount(over, &[WRITEBACK, &["--export", "b"]].concat());
        let (one, two) = (server.mount(over, &[]), server.mount(over, &["--export", "a"]));
        assert_says(&refused(&server, over, &["--export", "b"]), &["the export \"b\"", "elsewhere"]);
        assert_says(
            &refused(&server, over, &[WRITEBACK, &["--export", "a"]].concat()),
            &["the export \"a\"", "2 other mounts"],
        );
        [alone, one, two].into_iter().for_each(Mount::unmount);
    }
}

/// A starting rfs-fuse process, terminated when dropped.
struct Started(Child);

impl Started {
    /// Returns the line that a successful mount prints, or an empty string.
    fn greeting(&mut self) -> String {
        let mut said = String::new();
        let stdout = self.0.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut said).expect("UTF-8");
        said
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).ok();
        self.0.wait().ok();
    }
}

#[test]
fn one_of_two_simultaneous_mounts_succeeds() {
    let server = TestServer::new(16 * MIB);
    for round in 0..5 {
        for over in providers() {
            let points = [directory(), directory()];
            let barrier = Barrier::new(2);
            let start = |at: usize| {
                let mut command: Command = program();
                // In some rounds the second mount does not ask for exclusive use.
                let cache = if at == 0 || round % 2 == 0 { "writeback" } else { "auto" };
                command.args(["--cache", cache]).arg(server.address(over)).arg(points[at].path());
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
                barrier.wait();
                let mut started = Started(command.spawn().expect("rfs-fuse starts"));
                let mounted = !started.greeting().is_empty();
                (mounted, started)
            };
            let both = thread::scope(|scope| {
                let other = scope.spawn(|| start(1));
                let one = start(0);
                [one, other.join().expect("no panic")]
            });
            assert_eq!(both.iter().filter(|(mounted, _)| *mounted).count(), 1, "round {round}");
            drop(both);
            assert!(points.iter().all(|point| !is_mounted(point.path())));
        }
    }
}
