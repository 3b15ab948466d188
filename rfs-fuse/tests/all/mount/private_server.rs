//! `rfs-fuse --memory`: a mount with a private server. Both end together, regardless of which one
//! ends first.

use std::{fs, path::PathBuf, process::Stdio};

use crate::common::{directory, eventually, is_mounted, program, require_fuse};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A mount with a private server, in a runtime directory of its own.
struct PrivateMount {
    child: std::process::Child,
    point: TempDir,
}

impl PrivateMount {
    fn start(options: &[&str]) -> PrivateMount {
        require_fuse();
        let point = directory();
        let mut command = program();
        command.args(["--memory", "64M"]).args(options).arg(point.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mount = PrivateMount { child: child.expect("rfs-fuse runs"), point };
        assert!(
            eventually(|| is_mounted(mount.point.path()) && mount.server().is_some()),
            "the mount answers"
        );
        assert!(eventually(|| fs::read_dir(mount.point.path()).is_ok()), "the root directory");
        mount
    }

    /// Returns the server: a child of the mount's process with the mark of a private server.
    fn server(&self) -> Option<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = fs::read_to_string(path).ok()?;
        let is_server = |pid: &&str| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"--private-server")
        };
        Pid::from_raw(children.split_whitespace().find(is_server)?.parse().ok()?)
    }

    /// Returns the directory of the server's socket.
    fn socket_directory(&self) -> PathBuf {
        let pid = self.server().expect("a server").as_raw_nonzero();
        let line = fs::read(format!("/proc/{pid}/cmdline")).expect("its command line");
        let socket = line.split(|byte| *byte == 0).rfind(|word| !word.is_empty());
        let socket = PathBuf::from(String::from_utf8(socket.expect("a socket").to_vec()).expect("UTF-8"));
        socket.parent().expect("a directory").to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("sent");
    }

    fn wait(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("read");
        let status = self.child.wait().expect("waited");
        assert!(!is_mounted(self.point.path()), "{said}");
        (status.code(), said)
    }
}

fn is_running(pid: Pid) -> bool {
    // A zombie has no command line.
    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).is_ok_and(|line| !line.is_empty())
}

#[test]
fn a_signal_ends_the_mount_and_its_server() {
    for signal in [Signal::INT, Signal::TERM] {
        let mount = PrivateMount::start(&[]);
        let file = mount.point.path().join("file");
        fs::write(&file, b"bytes").expect("written");
        assert_eq!(fs::read(&file).expect("read"), b"bytes");
        let (server, directory) = (mount.server().expect("a server"), mount.socket_directory());
        assert!(directory.exists());
        mount.signal(signal);
        let (code, said) = mount.wait();
        assert_eq!(code, Some(0), "{said}");
        assert!(!is_running(server) && !directory.exists(), "{said}");
    }
}

#[test]
fn an_unmount_ends_the_server() {
    let mount = PrivateMount::start(&[]);
    let server = mount.server().expect("a server");
    // The mount is busy while rfs-fuse checks that it answers.
    let unmount = || std::process::Command::new("umount").arg(mount.point.path()).status();
    assert!(eventually(|| unmount().expect("umount runs").success()));
    let (code, said) = mount.wait();
    assert_eq!((code, is_running(server)), (Some(0), false), "{said}");
}

#[test]
fn a_killed_mount_leaves_neither_server_nor_socket() {
    let mut mount = PrivateMount::start(&[]);
    let (server, directory) = (mount.server().expect("a server"), mount.socket_directory());
    mount.signal(Signal::KILL);
    mount.child.wait().expect("waited");
    assert!(eventually(|| !is_running(server)), "the server has ended");
    assert!(eventually(|| !directory.exists() && !is_mounted(mount.point.path())), "nothing is left");
}

#[test]
fn a_mount_whose_server_is_killed_ends_with_an_error() {
    let mount = PrivateMount::start(&[]);
    let (server, directory) = (mount.server().expect("a server"), mount.socket_directory());
    kill_process(server, Signal::KILL).expect("sent");
    let (code, said) = mount.wait();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the server of this mount ended (signal: 9 (SIGKILL))"), "{said}");
    assert!(!directory.exists());
}

#[test]
fn ctrl_c_of_the_terminal_reaches_only_the_mount() {
    let mount = PrivateMount::start(&[]);
    let server = mount.server().expect("a server");
    assert_ne!(
        rustix::process::getpgid(Some(server)).expect("a group"),
        rustix::process::getpgid(Some(Pid::from_child(&mount.child))).expect("a group")
    );
    mount.signal(Signal::INT);
    assert_eq!(mount.wait().0, Some(0));
}

#[test]
fn a_private_server_that_cannot_start_is_refused_with_its_reason() {
    require_fuse();
    let point = directory();
    for (size, words) in [("1k", "the least is 1 MiB"), ("900000G", "of memory is available")] {
        let out = program().args(["--memory", size]).arg(point.path()).output().expect("rfs-fuse runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(words), "{said}");
        assert!(!is_mounted(point.path()));
    }
    let out = program().args(["--memory", "64M", "--key", "/key"]).arg(point.path()).output();
    assert_eq!(out.expect("rfs-fuse runs").status.code(), Some(2));
}

#[test]
fn a_background_mount_holds_no_output_open() {
    require_fuse();
    let point = directory();
    // Returns only when no process holds the pipes open.
    let out = program().args(["--daemon", "--memory", "64M"]).arg(point.path()).output();
    let out = out.expect("rfs-fuse runs");
    assert!(out.status.success() && is_mounted(point.path()), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("rfs is mounted on"), "{out:?}");
    let status = std::process::Command::new("umount").arg(point.path()).status();
    assert!(status.expect("umount runs").success());
}
