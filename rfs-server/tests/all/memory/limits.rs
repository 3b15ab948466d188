//! A server under the memory limit of a control group. Needs root, and a file system of control
//! groups that this process may change.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{ProviderKind, RequestError, Session, WcStatus};
use rfs_proto::{Reply, Request};

use crate::common::{
    Client, attach,
    program::{self, Running, place},
};

const MIB: u64 = 1 << 20;

/// A control group with a limit on memory. Dropping it removes the group.
struct Group {
    path: PathBuf,
    /// The file with the limit.
    limit: &'static str,
}

impl Group {
    /// Returns a new group, or `None` if this machine allows none.
    fn new(name: &str, bytes: u64) -> Option<Group> {
        let places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        places.into_iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(format!("rfs-test-{name}-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Group { path, limit };
            group.set(bytes).ok()?;
            Some(group)
        })
    }

    /// Sets the limit.
    fn set(&self, bytes: u64) -> std::io::Result<()> {
        fs::write(self.path.join(self.limit), bytes.to_string())
    }

    /// Returns a command that runs a server in the group.
    fn server(&self, directory: &Path, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        program::piped(&mut command);
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.path);
        command.arg(env!("CARGO_BIN_EXE_rfs-server")).arg("--inodes=1000").args(args);
        command.arg("--listen").arg(format!("unix:{}", directory.join("socket").display()));
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The process that was killed may still be there for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn group(name: &str, bytes: u64) -> Option<Group> {
    let group = Group::new(name, bytes);
    if group.is_none() {
        println!("not run: this process may not limit the memory of a control group");
    }
    group
}

/// Catches a server that starts with memory that its group does not allow, and is killed later.
#[test]
fn a_limit_that_is_too_low_is_named_at_the_start() {
    let Some(group) = group("low", 48 * MIB) else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut command = group.server(directory.path(), &["--memory=256M"]);
    program::refuses(&mut command, &["the memory limit of control group", "rfs-test-low"]);
    assert!(!directory.path().join("socket").exists(), "a socket is left");
}

/// Without reserved memory, a page that cannot be had when it is first written ends the server. A
/// client learns that its server has gone. Catches a write that seems to succeed, and a request
/// that waits for ever.
#[test]
fn a_limit_that_is_reached_later_ends_the_server_and_its_sessions() {
    let Some(group) = group("later", 256 * MIB) else { return };
    let directory = tempfile::tempdir().unwrap();
    // Over TCP the server touches the pages. Those that a client maps count for the client's group.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tcp = format!("--listen=tcp:127.0.0.1:{port}");
    let args = ["--memory=128M", "--prefault=never", "--allow-without-keys", &tcp];
    let mut server = Running::start(&mut group.server(directory.path(), &args));
    let address = format!("tcp:127.0.0.1:{port}").parse().unwrap();
    let session = Session::builder().provider(ProviderKind::Tcp).connect(&address).unwrap();
    let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
    let client = Client { session, attached };
    let attr = client.create(b"file").attr;
    let request = Request::Allocate { ino: attr.ino, offset: 0, len: 100 * MIB };
    let Reply::Layout(layout) = client.ask(request) else { panic!("no space") };

    group.set(24 * MIB).unwrap();
    let data = vec![7; MIB as usize];
    let mut writes = layout.extents.iter().flat_map(|extent| {
        (0..extent.len / MIB).map(|number| place(client.attached.arena, extent.arena + number * MIB))
    });
    let begun = Instant::now();
    let error = writes.find_map(|remote| client.session.write(remote, &data).err());
    let error = error.expect("100 MiB were written under a limit of 24 MiB");
    assert!(begun.elapsed() < Duration::from_secs(20), "after {:?}: {error}", begun.elapsed());
    // The queue pair can fail before this side sees the end of the session's connection.
    let died = matches!(
        error,
        RequestError::Disconnected | RequestError::Flushed | RequestError::Completion(WcStatus::RetryExcErr)
    );
    assert!(died, "{error}");
    let status = server.0.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
    // A caller that repeats while the error is retryable learns that the session has ended.
    let read = || client.session.read(place(client.attached.arena, 0), &mut [0; 8]);
    let error = loop {
        let error = read().expect_err("a server that was killed has answered");
        assert!(begun.elapsed() < Duration::from_secs(20), "after {:?}: {error}", begun.elapsed());
        if !error.is_retryable() {
            break error;
        }
    };
    assert_eq!(error, RequestError::Disconnected);
    assert!(!client.session.is_connected());
}
