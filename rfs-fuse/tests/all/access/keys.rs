//! Mounts with keys: errors without a key, and the limits of a read-only key.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::common::{Over, TestServer, directory, is_mounted, program, providers};
use rdmabox::Address;
use rfs_server::ExportConfig;
use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const NAMES: [(&str, &str, &str); 3] =
    [("writer", "home", "rw"), ("reader", "home", "ro"), ("other", "scratch", "rw")];

/// Writes a file that only its owner can access.
fn private(path: &Path, text: &str) -> PathBuf {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
    path.to_owned()
}

struct Fixture {
    server: TestServer,
    keys: TempDir,
}

impl Fixture {
    /// Starts a server with the exports "home" and "scratch", a key for each of [`NAMES`], and an
    /// unregistered key.
    fn new() -> Fixture {
        let keys = directory();
        let secret = |at: usize| format!("{:02x}", at + 1).repeat(32);
        let mut lines = String::new();
        for (at, (name, export, rights)) in NAMES.into_iter().enumerate() {
            lines += &format!("{name} {} {export} {rights}\n", secret(at));
            private(&keys.path().join(name), &format!("{name} {}\n", secret(at)));
        }
        private(&keys.path().join("wrong"), &format!("writer {}\n", secret(7)));
        let path = private(&keys.path().join("all"), &lines);
        let server = TestServer::with(0, |config| {
            let root = config.root;
            let export = |name: &str| ExportConfig {
                name: name.into(),
                memory: 8 * MIB,
                max: None,
                inodes: Some(100),
                root,
                eviction: Default::default(),
            };
            config.exports = vec![export("home"), export("scratch")];
            config.keys = Some(path);
        });
        Fixture { server, keys }
    }

    fn key(&self, name: &str) -> String {
        self.keys.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn mount(&self, over: Over, key: &str) -> crate::common::Mount {
        self.server.mount(over, &["--key", &self.key(key)])
    }

    /// Returns the one line with which a mount is refused.
    fn refusal(&self, over: Over, options: &[&str]) -> String {
        let point = directory();
        let mut command = program();
        command.args(["--provider", if over == Over::Shm { "shm" } else { "tcp" }]).args(options);
        let out = command.arg(self.server.address(over)).arg(point.path()).stdin(Stdio::null()).output();
        let out = out.expect("rfs-fuse runs");
        let said = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!((out.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(!is_mounted(point.path()) && said.starts_with("rfs-fuse: "));
        said.trim_end().to_owned()
    }
}

#[track_caller]
fn is_read_only<T>(outcome: std::io::Result<T>) {
    assert_eq!(outcome.err().and_then(|e| e.raw_os_error()), Some(Errno::ROFS.raw_os_error()));
}

#[test]
fn keys_for_writing_write_and_keys_for_reading_only_read() {
    let f = Fixture::new();
    for over in providers() {
        let (writer, reader) = (f.mount(over, "writer"), f.mount(over, "reader"));
        let other = f.mount(over, "other");
        let bytes = crate::common::pattern(300_000, 1);
        fs::write(writer.path("file"), &bytes).expect("written");
        assert!(fs::read(reader.path("file")).expect("read") == bytes);
        assert!(!other.path("file").exists());
        // The kernel knows that the mount is read-only.
        let change = |point: &Path| {
            let at = |name: &str| point.join(name);
            is_read_only(fs::write(at("file"), b"x"));
            is_read_only(fs::write(at("new"), b"x"));
            is_read_only(fs::create_dir(at("dir")));
            is_read_only(symlink("x", at("link")));
            is_read_only(fs::rename(at("file"), at("other")));
            is_read_only(fs::remove_file(at("file")));
            is_read_only(fs::set_permissions(at("file"), fs::Permissions::from_mode(0o600)));
        };
        change(&reader.point);
        let table = fs::read_to_string("/proc/self/mountinfo").expect("mount table");
        let line = table.lines().find(|line| line.split(' ').nth(4) == reader.point.to_str());
        assert!(
            line.is_some_and(|line| line.split(' ').nth(5).is_some_and(|flags| flags.starts_with("ro,")))
        );
        // Remounts read-write in the kernel only: then the server refuses.
        let remount = ["-n", "-i", "-o", "remount,rw"];
        if Command::new("mount")
            .args(remount)
            .arg(&reader.point)
            .status()
            .is_ok_and(|status| status.success())
        {
            change(&reader.point);
        }
        assert!(fs::read(reader.path("file")).expect("read") == bytes);
        fs::write(writer.path("file"), b"short").expect("written");
        assert_eq!(fs::read(reader.path("file")).expect("read"), b"short");
        fs::remove_file(writer.path("file")).expect("removed");
        [writer, reader, other].into_iter().for_each(crate::common::Mount::unmount);
    }
}

#[test]
fn a_mount_without_a_valid_key_gets_the_reason() {
    let f = Fixture::new();
    let tcp = |options: &[&str]| f.refusal(Over::Tcp, options);
    assert!(tcp(&[]).ends_with(": this server requires a key: pass --key FILE"));
    for over in [Over::Tcp, Over::Shm] {
        let said = f.refusal(over, &["--key", &f.key("wrong")]);
        assert!(
            said.contains(": the key writer is not in the server's key file or has another secret"),
            "{said}"
        );
        let said = f.refusal(over, &["--key", &f.key("writer"), "--export", "scratch"]);
        assert!(said.ends_with(": the key does not open the export \"scratch\""), "{said}");
    }
    fs::set_permissions(f.key("writer"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let said = tcp(&["--key", &f.key("writer")]);
    assert!(said.ends_with("writer: other users can use this file, its mode is 644: chmod 600"), "{said}");
    assert!(tcp(&["--key", &f.key("none")]).contains("none: No such file"));
    // A server without keys.
    let open = TestServer::new(8 * MIB);
    let f = Fixture { server: open, keys: f.keys };
    let said = f.refusal(Over::Tcp, &["--key", &f.key("reader")]);
    assert!(said.ends_with(": this server has no keys: leave --key out"), "{said}");
}

/// Raises the descriptor limit, because this process has both ends of many connections.
fn many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the hard limit");
}

#[test]
fn a_thousand_silent_connections_do_not_prevent_a_mount() {
    many_descriptors();
    let f = Fixture::new();
    let Ok(Address::Tcp { host, port }) = f.server.address(Over::Tcp).parse() else { panic!("no address") };
    let _silent: Vec<TcpStream> =
        (0..1000).map(|_| TcpStream::connect((host.as_str(), port)).expect("connected")).collect();
    let mount = f.mount(Over::Tcp, "writer");
    fs::write(mount.path("file"), b"x").expect("written");
    mount.unmount();
}
