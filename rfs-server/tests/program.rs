//! The program itself: what it prints, and how it ends.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
};

use rdmabox::{Address, Session, SessionOptions};
use rfs_proto::{Reply, Request, VERSION, decode_reply, encode_request};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// Ends with this status and, unless clap explains usage, with exactly one line on stderr; it contains all of `words`.
fn fails(args: &[&str], status: i32, words: &[&str]) {
    let output = output(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty());
    if status == 1 {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
}

/// The program; killed if a test fails.
struct Running {
    child: Option<Child>,
    lines: Vec<String>,
}

impl Running {
    /// Starts the program and reads its output up to the line that says it is ready.
    fn start(args: &[&str]) -> Running {
        let child = program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut running = Running { child: Some(child), lines: Vec::new() };
        let out = running.child.as_mut().and_then(|child| child.stdout.take()).unwrap();
        for line in BufReader::new(out).lines() {
            running.lines.push(line.unwrap());
            if running.lines.last().is_some_and(|line| line.starts_with("ready:")) {
                return running;
            }
        }
        panic!("ended before it was ready: {:?}", running.lines);
    }

    /// Sends a signal; the exit status and what it said on stderr.
    fn signal(mut self, name: &str) -> (Option<i32>, String) {
        let child = self.child.take().unwrap();
        assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn works(address: &Address) {
    let options = SessionOptions { provider: Some(address.provider()), ..SessionOptions::default() };
    let session = Session::connect(address, &options).unwrap();
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    encode_request(
        &Request::Attach { version: VERSION, client: "test", export: "", keeps: false, alone: false },
        &mut request,
    );
    session.call(&request, &mut reply).unwrap();
    assert!(matches!(decode_reply(&reply), Ok(Reply::Attached(_))));
}

fn serves_and_stops(signal: &str) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rfs.sock");
    let unix = format!("unix:{}", socket.display());
    let server =
        Running::start(&["--memory=4M", "--inodes=100", "--listen", &unix, "--listen", "tcp:127.0.0.1:0"]);
    let [first, second, ready] = server.lines.as_slice() else { panic!("{:?}", server.lines) };
    assert_eq!(first, &format!("listening on {unix}"));
    assert_eq!(ready, "ready: lending 4 MiB (100 inodes)");
    let tcp = second.strip_prefix("listening on ").unwrap();
    assert!(tcp.starts_with("tcp:127.0.0.1:") && !tcp.ends_with(":0"), "{tcp}");
    works(&unix.parse().unwrap());
    works(&tcp.parse().unwrap());
    let (status, log) = server.signal(signal);
    assert_eq!(status, Some(0), "{log}");
    // Who came and went, and nothing to worry about.
    assert!(log.lines().all(|line| line.contains(" INFO ") && line.contains("session")), "{log}");
    assert!(!socket.exists());
}

#[test]
fn sigterm() {
    serves_and_stops("TERM");
}

#[test]
fn ctrl_c() {
    serves_and_stops("INT");
}

#[test]
fn a_busy_address() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server = Running::start(&["--memory=4M", "--listen", &unix, "--listen", "tcp:127.0.0.1:0"]);
    let tcp = server.lines[1].strip_prefix("listening on ").unwrap().to_owned();
    fails(&["--memory=4M", "--listen", &unix], 1, &["rfs-server: cannot listen on", &unix]);
    fails(&["--memory=4M", "--listen", &tcp], 1, &["rfs-server: cannot listen on", &tcp]);
    // All or nothing: of a pair with a busy address, the other one is not left behind.
    let other = directory.path().join("other.sock");
    let other_unix = format!("unix:{}", other.display());
    fails(&["--memory=4M", "--listen", &other_unix, "--listen", &tcp], 1, &[&tcp]);
    assert!(!other.exists());
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

#[test]
fn the_socket_of_a_killed_server_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rfs.sock");
    let unix = format!("unix:{}", socket.display());
    drop(Running::start(&["--memory=4M", "--listen", &unix]));
    assert!(socket.exists());
    let server = Running::start(&["--memory=4M", "--listen", &unix]);
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

#[test]
fn several_exports() {
    let directory = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", directory.path().join("rfs.sock").display());
    let server =
        Running::start(&["--export=home=4M,inodes=100", "--export=tmp=2M,inodes=50", "--listen", &unix]);
    let [_, home, tmp, ready] = server.lines.as_slice() else { panic!("{:?}", server.lines) };
    assert_eq!([home, tmp], ["exporting home: 4 MiB (100 inodes)", "exporting tmp: 2 MiB (50 inodes)"]);
    assert_eq!(ready, "ready: lending 6 MiB (150 inodes)");
    works(&unix.parse().unwrap());
    assert_eq!(server.signal("TERM").0, Some(0));
}

#[test]
fn what_cannot_be() {
    let remote = ["--memory=4M", "--listen=tcp:0.0.0.0:0"];
    fails(&remote, 1, &["tcp:0.0.0.0:0", "other machines", "--allow-remote-without-secret"]);
    fails(&["--memory=1000000T", "--listen=tcp:127.0.0.1:0"], 1, &["cannot lend 976.6 PiB"]);
    fails(&["--memory=1K", "--listen=tcp:127.0.0.1:0"], 1, &["the least is 1 MiB"]);
    fails(&["--memory=4M", "--listen=unix:/no/such/directory/rfs.sock"], 1, &["/no/such/directory"]);
    let twice = ["--memory=4M", "--listen=tcp:127.0.0.1:7999", "--listen=tcp:127.0.0.1:7999"];
    fails(&twice, 1, &["given twice"]);
    fails(&["--export=a=1M", "--export=a=2M"], 1, &["\"a\"", "given twice"]);
    fails(&["--memory=4M", "--lease=5", "--recall-timeout=5"], 1, &["--recall-timeout 5s", "--lease 5s"]);
}

#[test]
fn what_makes_no_sense() {
    fails(&[], 2, &["--memory"]);
    fails(&["--memory=lots"], 2, &["lots", "4g"]);
    fails(&["--memory=4M", "--nonsense"], 2, &["--nonsense"]);
    fails(&["--memory=4M", "--inodes=0"], 2, &["--inodes"]);
    fails(&["--export=a=4M,inodes=0"], 2, &["inodes=0"]);
    fails(&["--export=a"], 2, &["NAME=SIZE"]);
    fails(&["--export=a=4M", "--memory=4M"], 2, &["--memory"]);
    fails(&["--memory=4M", "--listen=nowhere"], 2, &["nowhere", "tcp:host:port"]);
}

#[test]
fn help_and_version() {
    let help = output(&["--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success());
    for word in ["Examples:", "rfs-server --memory 4G", "--allow-remote-without-secret", "Exit status:"] {
        assert!(text.contains(word), "{word:?} is not in the help");
    }
    let version = output(&["--version"]);
    assert_eq!(version.stdout, format!("rfs-server {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
}
