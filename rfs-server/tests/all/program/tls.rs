//! The program with certificates: configurations that it refuses, and SIGHUP, which makes it read
//! them again.

#[path = "../../../../rdmabox/tests/support/tls.rs"]
#[allow(dead_code, unreachable_pub, reason = "rdmabox's tests use the rest")]
mod support;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use rdmabox::{
    Session,
    tls::{TlsClient, TlsClientFiles},
};
use support::{Authority, NAMES, private};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn program(authority: &Authority, rest: &[&str]) -> Command {
    let (certificate, key) =
        (authority.dir.path().join("server.pem"), authority.dir.path().join("server.key"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    command.env_remove("RUST_LOG").stdin(Stdio::null()).arg("--memory=4M").args(rest);
    command.args(["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    command
}

/// Checks that the program ends at once, with one line that contains these words.
#[track_caller]
fn fails(mut command: Command, words: &str) {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(words), "{said}");
}

#[test]
fn invalid_tls_options_are_refused_at_the_start() {
    let authority = Authority::new();
    let socket = format!("unix:{}", authority.dir.path().join("sock").display());
    let tcp = ["--listen", "tcp:127.0.0.1:0", "--allow-without-keys"];
    fails(program(&authority, &tcp), "cannot use TLS: ");
    authority.sign("server", &NAMES);
    fails(
        program(&authority, &["--listen", &socket]),
        "--tls-cert is for addresses of TCP, and there is none",
    );
    let both = [&tcp[..], &["--listen", "rdma:127.0.0.1:1"]].concat();
    fails(program(&authority, &both), "rdma:127.0.0.1:1: with --tls-cert there can be no address for RDMA");
    let remote = ["--listen", "tcp:0.0.0.0:0"];
    fails(program(&authority, &remote), "any program that connects could read and write every file");
}

struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    address: String,
}

impl Running {
    fn start(authority: &Authority) -> Running {
        let mut command = program(authority, &["--listen", "tcp:127.0.0.1:0", "--allow-without-keys"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap().strip_prefix("listening on ").unwrap().to_owned();
        assert!(lines.next().unwrap().unwrap().starts_with("ready:"));
        Running { child, log, address }
    }

    /// Sends SIGHUP. Returns the log line about the certificates.
    fn hang_up(&mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "HUP", &pid]).status().unwrap().success());
        self.next_line(&["the certificates stay", "reloaded the certificates"])
    }

    /// Returns the next line of the log with one of these words.
    fn next_line(&mut self, words: &[&str]) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "it has ended");
            if words.iter().any(|word| line.contains(word)) {
                return line;
            }
        }
    }

    fn takes(&self, files: &TlsClientFiles) -> bool {
        let tls = Some(TlsClient::load(files).unwrap());
        Session::builder().tls(tls).connect(&self.address.parse().unwrap()).is_ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sighup_reloads_the_certificates() {
    let authority = Authority::new();
    let (_, key) = authority.sign("server", &NAMES);
    let mut server = Running::start(&authority);
    let named = |name: &str| authority.client().with_name(name);
    assert!(server.takes(&named("localhost")));
    let good = fs::read_to_string(&key).unwrap();
    private(&key, "broken");
    let said = server.hang_up();
    assert!(said.contains("ERROR") && said.contains("server.key: it has no private key"), "{said}");
    assert!(server.takes(&named("localhost")));
    private(&key, &good);
    authority.sign("server", &["files.example"]);
    assert!(server.hang_up().contains("reloaded the certificates"));
    assert!(server.takes(&named("files.example")) && !server.takes(&named("localhost")));
}

/// Catches a certificate that ends without a word before it has ended.
#[test]
fn a_certificate_that_expires_soon_is_a_warning() {
    let authority = Authority::new();
    authority.sign_for_days("server", 20);
    let mut server = Running::start(&authority);
    let line = server.next_line(&["certificate"]);
    assert!(line.contains("--tls-cert: the certificate expires in 20 d"), "{line}");
    assert!(line.trim_end().ends_with(": renew it, then send SIGHUP to rfs-server"), "{line}");
    // A renewed one is no reason for a warning.
    authority.sign_for_days("server", 40);
    assert!(server.hang_up().contains("reloaded the certificates"));
    assert!(server.takes(&authority.client()));
}

/// Catches a certificate that ends without a word, at the start and after a renewal.
#[test]
fn an_expired_certificate_is_a_warning() {
    let authority = Authority::new();
    authority.sign_expired("server");
    let mut server = Running::start(&authority);
    let warning = "--tls-cert: the certificate expired";
    assert!(server.next_line(&["certificate"]).contains(warning));
    // The same certificate once more.
    assert!(server.hang_up().contains("reloaded the certificates"));
    assert!(server.next_line(&["certificate"]).contains(warning));
}
