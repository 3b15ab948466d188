//! Mounts over TLS: data survives, and a refused client gets the reason in one line.

#[path = "../../../../rdmabox/tests/support/tls.rs"]
#[allow(dead_code, unreachable_pub, reason = "rdmabox's tests use the rest")]
mod certificates;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use crate::common::{Over, TestServer, directory, eventually, is_mounted, program, proxy::Proxy};
use certificates::{Authority, NAMES, Pair};
use rdmabox::tls::TlsServerFiles;
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// A server with a certificate signed by an authority.
struct Secured {
    server: TestServer,
    authority: Authority,
}

impl Secured {
    fn new(sign: impl FnOnce(&Authority) -> Pair, client_ca: Option<PathBuf>) -> Secured {
        let authority = Authority::new();
        let (certificate, key) = sign(&authority);
        let server = TestServer::with(64 * MIB, |config| {
            config.listen.retain(|address| address.provider() != Over::Rdma);
            let mut files = TlsServerFiles::new(certificate, key);
            files.client_ca = client_ca;
            config.tls = Some(files);
        });
        Secured { server, authority }
    }

    fn usual() -> Secured {
        Secured::new(|authority| authority.sign("server", &NAMES), None)
    }

    fn ca(&self) -> String {
        text(&self.authority.ca())
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns the one line with which a mount is refused.
fn refusal(address: &str, options: &[&str], code: i32) -> String {
    let point = directory();
    let out = program().args(options).arg(address).arg(point.path()).stdin(Stdio::null()).output();
    let out = out.expect("rfs-fuse runs");
    let said = String::from_utf8(out.stderr).expect("UTF-8");
    assert_eq!((out.status.code(), said.lines().count()), (Some(code), 1), "{said}");
    assert!(!is_mounted(point.path()) && said.starts_with("rfs-fuse: "), "{said}");
    said.trim_end().to_owned()
}

#[test]
fn written_data_is_there_for_the_next_mount() {
    let secured = Secured::usual();
    let bytes = crate::common::pattern(5 << 20, 3);
    let mount = secured.server.mount(Over::Tcp, &["--tls-ca", &secured.ca()]);
    assert!(mount.greeting.contains("(TCP with TLS via tcp:127.0.0.1:"), "{}", mount.greeting);
    fs::create_dir(mount.path("dir")).expect("made");
    fs::write(mount.path("dir/file"), &bytes).expect("written");
    assert!(fs::read(mount.path("dir/file")).expect("read") == bytes);
    mount.unmount();
    // Without TLS, a mount would switch to the Unix socket of this machine.
    let point = directory();
    let options = ["--tls-ca", &secured.ca(), "--tls-name", "localhost", "--cache", "none"];
    let mount = crate::common::Mount::start(&secured.server.address(Over::Tcp), point.path(), &options);
    assert!(mount.greeting.contains("(TCP with TLS via "), "{}", mount.greeting);
    assert!(fs::read(mount.path("dir/file")).expect("read") == bytes);
    mount.unmount();
    let mount = secured.server.mount(Over::Shm, &[]);
    assert!(fs::read(mount.path("dir/file")).expect("read") == bytes);
    mount.unmount();
}

#[test]
fn an_untrusted_server_and_a_missing_tls_get_a_reason() {
    let secured = Secured::usual();
    let (address, ca) = (secured.server.address(Over::Tcp), secured.ca());
    let other = Authority::new();
    let said = refusal(&address, &["--tls-ca", &text(&other.ca())], 1);
    let unknown = format!("server certificate is not signed by a CA in --tls-ca {}", text(&other.ca()));
    assert!(said.ends_with(&unknown), "{said}");
    let said = refusal(&address, &["--tls-ca", &ca, "--tls-name", "files.example"], 1);
    assert!(said.contains("certificate not valid for name"), "{said}");
    let said = refusal(&address, &["--provider", "tcp"], 1);
    assert!(said.contains(": this server accepts clients with TLS only"), "{said}");
    let expired = Secured::new(|authority| authority.sign_expired("server"), None);
    let said = refusal(&expired.server.address(Over::Tcp), &["--tls-ca", &expired.ca()], 1);
    assert!(said.contains("certificate expired"), "{said}");
    let plain = TestServer::new(8 * MIB);
    let said = refusal(&plain.address(Over::Tcp), &["--tls-ca", &ca], 1);
    assert!(
        said.ends_with(": the server does not use TLS; remove --tls-ca, or start the server with --tls-cert"),
        "{said}"
    );
    // Combinations that cannot be encrypted are refused before connecting.
    for (address, why) in [
        (plain.address(Over::Shm), "memory that is mapped cannot be encrypted"),
        ("rdma:127.0.0.1:1".into(), "data over an RDMA device cannot be encrypted"),
    ] {
        let said = refusal(&address, &["--tls-ca", &ca], 2);
        assert_eq!(said, format!("rfs-fuse: --tls-ca is for servers at tcp:host:port: {why}"));
    }
    let said = refusal(&address, &["--tls-ca", "/nowhere/ca.pem"], 1);
    assert!(said.starts_with("rfs-fuse: cannot use TLS: /nowhere/ca.pem: "), "{said}");
}

#[test]
fn a_server_may_ask_for_the_clients_certificate() {
    let clients = Authority::new();
    let secured = Secured::new(|authority| authority.sign("server", &NAMES), Some(clients.ca()));
    let (address, ca) = (secured.server.address(Over::Tcp), secured.ca());
    let said = refusal(&address, &["--tls-ca", &ca], 1);
    assert!(
        said.ends_with("TLS: the server requires a client certificate: pass --tls-cert and --tls-key"),
        "{said}"
    );
    let (certificate, key) = clients.sign("laptop", &["laptop"]);
    let list = format!("tls_ca={ca},tls_cert={},tls_key={}", text(&certificate), text(&key));
    let mount = secured.server.mount(Over::Tcp, &["-o", &list]);
    fs::write(mount.path("file"), b"x").expect("written");
    mount.unmount();
}

/// Catches a mount that sends its user to SIGHUP, which would end it.
#[test]
fn an_expired_certificate_of_a_mount_is_a_warning_with_its_next_step() {
    let clients = Authority::new();
    // Without --tls-client-ca the server asks for no certificate, so it refuses none.
    let secured = Secured::usual();
    for (pair, state) in [
        (clients.sign_expired("old"), "the certificate expired"),
        (clients.sign_for_days("laptop", 20), "the certificate expires in 20 d"),
    ] {
        let (certificate, key) = pair;
        let list = format!("tls_ca={},tls_cert={},tls_key={}", secured.ca(), text(&certificate), text(&key));
        let mut mount = secured.server.mount(Over::Tcp, &["-o", &list]);
        fs::write(mount.path("file"), b"x").expect("written");
        mount.signal(Signal::TERM);
        let (status, said) = mount.wait();
        assert!(status.success(), "{said}");
        let line = said.lines().find(|line| line.contains("--tls-cert")).expect("a warning");
        assert!(line.contains(state) && !line.contains("SIGHUP"), "{line}");
        assert!(line.ends_with("renew it: the mount reads the file again when it next connects"), "{line}");
    }
}

#[test]
fn certificates_are_renewed_without_a_new_mount() {
    let secured = Secured::usual();
    let proxy = Proxy::to(secured.server.address(Over::Tcp).trim_start_matches("tcp:").to_owned());
    let point = directory();
    let ca = secured.ca();
    let options = ["--provider", "tcp", "--tls-ca", &ca, "--timeout", "60"];
    let mut mount = crate::common::Mount::start(proxy.address(), point.path(), &options);
    fs::write(mount.path("file"), b"before").expect("written");
    // From now on another authority signs the server's certificate.
    let new = Authority::new();
    let (certificate, key) = new.sign("server", &NAMES);
    for (from, to) in [(certificate, "server.pem"), (key, "server.key"), (new.ca(), "ca.pem")] {
        fs::copy(from, secured.authority.dir.path().join(to)).expect("replaced");
    }
    assert!(secured.server.inner.reload_certificates().expect("read"));
    proxy.cut();
    fs::write(mount.path("file"), b"after").expect("written");
    // Unreadable files leave the previous certificates in use.
    fs::write(&ca, b"no certificate").expect("written");
    proxy.cut();
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"after");
    fs::write(mount.path("other"), b"x").expect("written");
    mount.signal(Signal::TERM);
    let (status, said) = mount.wait();
    assert!(status.success(), "{said}");
    let warnings = said.lines().filter(|line| line.contains("using the previous certificates: "));
    assert_eq!(warnings.count(), 1, "{said}");
}

#[test]
fn a_killed_mount_detaches_over_tls() {
    let secured = Secured::usual();
    let mut mount = secured.server.mount(Over::Tcp, &["--tls-ca", &secured.ca()]);
    let calls = || secured.server.inner.stats().calls;
    let detached =
        || calls().iter().filter(|(name, _)| *name == "detach").map(|(_, count)| count).sum::<u64>();
    let before = detached();
    mount.signal(Signal::KILL);
    mount.wait();
    assert!(eventually(|| detached() > before));
    assert!(eventually(|| !is_mounted(&mount.point)));
}
