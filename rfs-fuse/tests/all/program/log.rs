//! The log of a mount: its format, and the system's log in the background.

use std::{
    os::unix::net::UnixDatagram,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{Over, TestServer, directory, eventually, program};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

#[test]
fn each_line_of_a_json_log_is_an_object() {
    let server = TestServer::new(16 * MIB);
    let mut mount = server.mount(Over::Shm, &["--log-format", "json"]);
    mount.signal(Signal::INT);
    let (status, said) = mount.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let unmounting = lines.iter().find(|line| line["message"].as_str().expect("text").contains("signal 2"));
    let unmounting = unmounting.unwrap_or_else(|| panic!("{said}"));
    assert_eq!(
        (&unmounting["level"], &unmounting["module"]),
        (&"info".into(), &"rfs_fuse::run::unmount".into())
    );
}

/// A mount in the background, in a mount namespace whose `/dev` has a socket of the test as
/// `/dev/log`. Catches messages that go nowhere.
#[test]
fn a_mount_in_the_background_logs_to_the_system() {
    let server = TestServer::new(16 * MIB);
    let (place, point) = (directory(), directory());
    let socket = UnixDatagram::bind(place.path().join("log")).expect("bound");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let script = "set -e; mkdir $0/dev; mount --rbind /dev $0/dev; mount -t tmpfs -o mode=755 tmpfs /dev; \
                  for name in fuse null urandom shm; do ln -s $0/dev/$name /dev/$name; done; \
                  ln -s $0/log /dev/log; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(place.path()).arg(program().get_program());
    command.args(["--daemon", &server.address(Over::Shm)]).arg(point.path()).stdin(Stdio::null());
    let output = command.output().expect("unshare runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The memory is lost, so the mount ends, and says why.
    let _again = server.again(16 * MIB, |_| {});
    let (mut said, mut bytes) = (String::new(), [0; 9000]);
    while !said.contains("unmounted, because")
        && let Ok(length) = socket.recv(&mut bytes)
    {
        said.push_str(&String::from_utf8_lossy(&bytes[..length]));
        said.push('\n');
    }
    let priority = |number: u8, text: &str| {
        let begin = format!("<{number}>rfs-fuse[");
        said.lines().any(|line| line.starts_with(&begin) && line.contains(text))
    };
    assert!(priority(28, "]: lost the session with the server; reconnecting"), "{said}");
    assert!(priority(27, "has lost its memory"), "{said}");
    let is_free = || Command::new("rmdir").arg(point.path()).status().is_ok_and(|status| status.success());
    assert!(eventually(is_free), "the mount is still there");
}
