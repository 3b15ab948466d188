//! The file of `--config`: tables of mount points, precedence, `--check-config`, and SIGHUP.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{Mount, Over, TestServer, directory, eventually, is_mounted, program};

const MIB: u64 = 1 << 20;

/// Two mount points, and the path of a file of options beside them.
struct Files {
    directory: TempDir,
    address: String,
}

impl Files {
    fn new(server: &TestServer) -> Files {
        let files = Files { directory: directory(), address: server.address(Over::Shm) };
        for point in ["a", "b"] {
            fs::create_dir(files.path(point)).expect("made");
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the file. ADDRESS, A and B stand for the server and the mount points.
    fn write(&self, text: &str) {
        let shown = |name: &str| format!("[{:?}]", self.path(name));
        let text = text.replace("[A]", &shown("a")).replace("[B]", &shown("b"));
        let address = format!("address = {:?}", self.address);
        fs::write(self.path("mounts.toml"), text.replace("ADDRESS", &address)).expect("written");
    }

    fn command(&self, rest: &[&Path]) -> Command {
        let mut command = program();
        command.arg("--config").arg(self.path("mounts.toml")).args(rest);
        command
    }

    fn check(&self, rest: &[&Path]) -> Output {
        self.command(rest).arg("--check-config").output().expect("rfs-fuse runs")
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_mount_has_the_options_of_its_table() {
    let server = TestServer::new(16 * MIB);
    let files = Files::new(&server);
    files.write("timeout = 60\n[A]\nADDRESS\nread-only = true\n[B]\nADDRESS\n");
    let (a, b) = (files.path("a"), files.path("b"));
    let one = Mount::spawn(&mut files.command(&[&a]), &a);
    let error = fs::write(a.join("x"), b"").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let two = Mount::spawn(&mut files.command(&[&b]), &b);
    fs::write(b.join("x"), b"data").expect("written");
    // Without a mount point, the file has to have one table.
    let several = files.command(&[]).output().expect("rfs-fuse runs");
    assert_eq!(several.status.code(), Some(2));
    assert!(stderr(&several).contains("there are several mount points"), "{}", stderr(&several));
    one.unmount();
    two.unmount();
    // The command line wins: in the background, and with another mount of the same table.
    files.write("[A]\nADDRESS\ndaemon = true\nlog-format = \"json\"\n");
    let status = files.command(&[]).args(["--quiet"]).status().expect("rfs-fuse runs");
    assert!(status.success() && is_mounted(&a));
    assert!(Command::new("fusermount3").arg("-u").arg(&a).status().expect("runs").success());
}

#[test]
fn check_config_names_line_and_key_and_mounts_nothing() {
    let server = TestServer::new(16 * MIB);
    let files = Files::new(&server);
    let a = files.path("a");
    files.write("[A]\nADDRESS\nthreads = 3\n");
    let output = files.check(&[&a]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for words in ["mounts.toml:2", "threads = 3 ", "mounts.toml:3", "cache = \"auto\"", "# default"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    for (text, says) in [
        ("[A]\nADDRESS\nthraeds = 3\n", "mounts.toml:3: thraeds: no such option: did you mean threads?"),
        ("[A]\nADDRESS\nthreads = 0\n", "mounts.toml:3: threads: "),
        ("[A]\naddress-of = \"h:1\"\n", "mounts.toml:2: address-of: no such option: did you mean address?"),
        ("[A]\nADDRESS\nkey = \"/none/key\"\n", "/none/key"),
        ("[A]\nthreads = 3\n", "an address and a mount point are needed"),
        ("[A]\nADDRESS\ntls-name = \"x\"\n", "--tls-ca"),
    ] {
        files.write(text);
        let output = files.check(&[&a]);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{text}: {}", stderr(&output));
    }
    assert!(!is_mounted(&a));
}

/// Catches a SIGHUP that unmounts, or that is silent about options that need a new mount.
#[test]
fn sighup_reads_the_file_again() {
    let server = TestServer::new(16 * MIB);
    let files = Files::new(&server);
    let (a, log) = (files.path("a"), files.path("log"));
    let start = format!("log-file = {log:?}\n[A]\nADDRESS\n");
    files.write(&start);
    let mount = Mount::spawn(&mut files.command(&[]), &a);
    let says = |words: &str| {
        mount.signal(Signal::HUP);
        let said = || fs::read_to_string(&log).unwrap_or_default();
        assert!(eventually(|| said().contains(words)), "{words}: {}", said());
    };
    says("no option has changed");
    files.write(&format!("{start}threads = 4\n"));
    says("SIGHUP: threads: 2 -> 4: needs a new mount");
    files.write(&format!("{start}thraeds = 4\n"));
    says("the options stay as they were: ");
    files.write(&format!("{start}log-format = \"json\"\n"));
    says("log-format: \\\"text\\\" -> \\\"json\\\": applied\"");
    fs::write(a.join("x"), b"data").expect("the mount works");
    mount.unmount();
}

/// Catches an example with an option that does not exist any more, or with another type.
#[test]
fn the_example_is_valid_with_and_without_its_comments() {
    let example = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/mounts.toml"));
    let example = example.expect("the example");
    let server = TestServer::new(16 * MIB);
    let files = Files::new(&server);
    let is_option = |line: &str| line.starts_with('#') && line.contains(" = ") && !line.starts_with("# ");
    let with_all: String = example
        .lines()
        .map(|line| if is_option(line) { format!("{}\n", &line[1..]) } else { format!("{line}\n") })
        .collect();
    for text in [example, with_all] {
        let point = |name: &str| format!("{:?}", files.path(name).to_str().expect("UTF-8"));
        files.write(&text.replace("\"/mnt/remote\"", &point("a")).replace("\"/mnt/scratch\"", &point("b")));
        let scratch = files.check(&[&files.path("b")]);
        assert_eq!(scratch.status.code(), Some(0), "{}", stderr(&scratch));
        // Only the key is missing.
        let remote = files.check(&[&files.path("a")]);
        assert!(stderr(&remote).contains("/etc/rfs/remote.key"), "{}", stderr(&remote));
    }
}
