//! Tests of TLS sessions over TCP: the same requests work, bad certificates are refused with a
//! clear error, and strangers delay no session.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Fixture, LEN, at, base, limits,
    tls::{Authority, NAMES, private},
};
use rdmabox::{
    Access, Address, ConnectError, Domain, Fencing, Grant, Host, HostError, HostHandle, Key, Memory,
    MemoryServer, ProviderKind, Secret, Session, SessionOptions,
    tls::{TlsClient, TlsClientFiles, TlsError, TlsServer, TlsServerFiles, TlsStream},
};

/// Longer than anything takes that works.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + WAIT_LIMIT
}

/// A host that lends a page, and an authority that has signed its certificate.
struct Secured {
    authority: Authority,
    server: Arc<TlsServer>,
    running: HostHandle,
}

impl Secured {
    fn new(
        certificate: impl FnOnce(&Authority) -> (std::path::PathBuf, std::path::PathBuf),
        tell: impl FnOnce(Host, &Authority) -> Host,
    ) -> Secured {
        Secured::with(|authority| authority.server(certificate(authority)), tell)
    }

    fn with(
        files: impl FnOnce(&Authority) -> TlsServerFiles,
        tell: impl FnOnce(Host, &Authority) -> Host,
    ) -> Secured {
        let _ = env_logger::builder().is_test(true).try_init();
        let authority = Authority::new();
        let server = Arc::new(TlsServer::load(files(&authority)).unwrap());
        let host = tell(Host::new().unwrap().tls(Arc::clone(&server)), &authority);
        let running = lend(host, &["127.0.0.1:0"]).unwrap();
        Secured { authority, server, running }
    }

    fn plain() -> Secured {
        Secured::new(|authority| authority.sign("server", &NAMES), |host, _| host)
    }

    fn address(&self) -> Address {
        self.running.addresses()[0].clone()
    }

    fn connect(&self, tls: &TlsClientFiles) -> Result<Arc<Session>, ConnectError> {
        connect(&self.address(), Some(tls))
    }

    fn tcp(&self) -> TcpStream {
        tcp(&self.address())
    }

    /// Checks that the host serves a client with a certificate of its authority.
    #[track_caller]
    fn serves(&self) {
        let session = self.connect(&self.authority.client()).unwrap();
        MemoryServer::locate(&session).unwrap();
    }
}

fn lend(host: Host, addresses: &[&str]) -> Result<HostHandle, HostError> {
    let memory = Arc::new(Memory::shared("test", 4096).unwrap());
    let export = host.export(&memory, Access::REMOTE_ALL).unwrap();
    let addresses: Vec<Address> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    host.listen(&addresses, Arc::new(MemoryServer::new(export)))
}

fn options(tls: Option<&TlsClientFiles>) -> SessionOptions {
    let tls = tls.map(|files| TlsClient::load(files).unwrap());
    Session::builder().tls(tls).connect_timeout(WAIT_LIMIT).operation_timeout(WAIT_LIMIT).into_options()
}

fn connect(address: &Address, tls: Option<&TlsClientFiles>) -> Result<Arc<Session>, ConnectError> {
    Session::connect(address, &options(tls))
}

fn tcp(address: &Address) -> TcpStream {
    match address {
        Address::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).unwrap(),
        other => panic!("{other}"),
    }
}

/// Returns why there is no session.
#[track_caller]
fn refusal(outcome: Result<Arc<Session>, ConnectError>) -> String {
    match outcome {
        Err(ConnectError::Refused { reason, .. } | ConnectError::Authentication { reason, .. }) => reason,
        Err(ConnectError::InvalidOption { expected, .. }) => expected,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_with_tls_does_what_one_without_does() {
    let fixture = Fixture::with_tls();
    let session = fixture.connect();
    let description = session.description();
    assert!(description.starts_with("TCP with TLS via tcp:127.0.0.1:"), "{description}");
    let place = base(&session);
    let bytes: Vec<u8> = (0..LEN).map(|i| ((i * 7) >> 3) as u8).collect();
    session.write(place, &bytes).unwrap();
    let mut back = vec![0; LEN];
    session.read(place, &mut back).unwrap();
    assert!(back == bytes);
    fixture.memory.read(0, &mut back);
    assert!(back == bytes);
    assert_eq!(
        session.fetch_add(at(place, 8), 1).unwrap(),
        u64::from_ne_bytes(bytes[8..16].try_into().unwrap())
    );
    thread::scope(|scope| {
        for number in 0..4u8 {
            let session = &session;
            scope.spawn(move || {
                let mut reply = Vec::new();
                for round in 0..200u8 {
                    let place = at(place, 4096 * (1 + usize::from(number)));
                    session.write(place, &[number, round]).unwrap();
                    let mut two = [0; 2];
                    session.read(place, &mut two).unwrap();
                    assert_eq!(two, [number, round]);
                    session.call(&[number, round], &mut reply).unwrap();
                    assert_eq!(reply, [round, number]);
                }
            });
        }
    });
}

#[test]
fn sent_bytes_cannot_be_read_on_the_way() {
    let secured = Secured::plain();
    let secret = b"only the two ends are to know of this";
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let address = relayed(&secured.address(), {
        let seen = Arc::clone(&seen);
        move |bytes| seen.lock().extend_from_slice(bytes)
    });
    let session = connect(&address, Some(&secured.authority.client())).unwrap();
    let place = MemoryServer::locate(&session).unwrap().base();
    session.write(place, secret).unwrap();
    let mut back = [0; 37];
    session.read(place, &mut back).unwrap();
    assert_eq!(&back, secret);
    drop(session);
    let seen = seen.lock();
    assert!(
        seen.len() > 4096 && !seen.windows(8).any(|window| window == b"rdmalend" || window == &secret[..8])
    );
}

/// Relays connections to `to`, and passes the bytes to `look`.
fn relayed(to: &Address, look: impl Fn(&[u8]) + Send + Sync + 'static) -> Address {
    let (to, look) = (to.clone(), Arc::new(look));
    standing_in(move |stream| {
        let other = tcp(&to);
        for (mut from, mut to) in [
            (stream.try_clone().unwrap(), other.try_clone().unwrap()),
            (other.try_clone().unwrap(), stream.try_clone().unwrap()),
        ] {
            let look = Arc::clone(&look);
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    look(&bytes[..count]);
                    if to.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    })
}

/// Returns the address of an impostor that handles each stream with `with`.
fn standing_in(with: impl Fn(TcpStream) + Send + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the process of the test.
    thread::spawn(move || listener.incoming().flatten().for_each(with));
    Address::Tcp { host: "127.0.0.1".into(), port }
}

#[test]
fn a_server_has_to_be_believed() {
    let secured = Secured::plain();
    let other = Authority::new();
    let unknown =
        format!("server certificate is not signed by a CA in --tls-ca {}", other.client().ca.display());
    assert_eq!(refusal(secured.connect(&other.client())), unknown);
    let named = |name: &str| secured.authority.client().with_name(name);
    let said = refusal(secured.connect(&named("files.example")));
    assert!(said.starts_with("TLS: invalid peer certificate: certificate not valid for name"), "{said}");
    secured.connect(&named("localhost")).unwrap();
    let expired = Secured::new(|authority| authority.sign_expired("server"), |host, _| host);
    let said = refusal(expired.connect(&expired.authority.client()));
    assert!(said.starts_with("TLS: invalid peer certificate: certificate expired"), "{said}");
    // Without another name it is the address that counts.
    let elsewhere = Secured::new(|authority| authority.sign("server", &["files.example"]), |host, _| host);
    assert!(elsewhere.connect(&elsewhere.authority.client()).is_err());
    let named = elsewhere.authority.client().with_name("files.example");
    elsewhere.connect(&named).unwrap();
    secured.serves();
}

#[test]
fn a_side_without_tls_is_refused_with_a_clear_error() {
    let secured = Secured::plain();
    let said = refusal(connect(&secured.address(), None));
    assert!(said.starts_with("this server accepts clients with TLS only"), "{said}");
    secured.serves();
    let plain = lend(Host::new().unwrap(), &["127.0.0.1:0"]).unwrap();
    let said = refusal(connect(&plain.addresses()[0], Some(&secured.authority.client())));
    assert_eq!(said, "the server does not use TLS; remove --tls-ca, or start the server with --tls-cert");
    connect(&plain.addresses()[0], None).unwrap();
    // A peer that only hangs up.
    let address = standing_in(drop);
    assert!(connect(&address, Some(&secured.authority.client())).is_err());
}

#[test]
fn a_client_with_tls_takes_no_other_way() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (server, _) = crate::support::tls::pair(&authority);
    let unix = format!("unix:{}", dir.path().join("sock").display());
    let running = lend(Host::new().unwrap().tls(server), &[&unix, "127.0.0.1:0"]).unwrap();
    let client = authority.client();
    // A client without would be told of the Unix socket, and go there.
    let session = connect(&running.addresses()[1], Some(&client)).unwrap();
    assert_eq!(session.provider(), ProviderKind::Tcp);
    connect(&running.addresses()[0], None).unwrap();
    for address in [unix, "rdma:127.0.0.1:1".into()] {
        let said = refusal(connect(&address.parse().unwrap(), Some(&client)));
        assert!(said.starts_with("TLS requires a TCP address: "), "{said}");
    }
    let (server, _) = crate::support::tls::pair(&authority);
    let refused = lend(Host::new().unwrap().tls(server), &["127.0.0.1:0", "rdma:127.0.0.1:0"]);
    assert!(
        matches!(refused, Err(HostError::Listen { source, .. }) if source.kind() == io::ErrorKind::Unsupported)
    );
}

#[test]
fn a_server_may_ask_for_certificates() {
    let clients = Authority::new();
    let ca = clients.ca();
    let secured = Secured::with(
        |authority| {
            let own = authority.server(authority.sign("server", &NAMES));
            own.with_client_ca(ca)
        },
        |host, _| host,
    );
    let with = |(certificate, key)| secured.authority.client().with_own(certificate, key);
    let said = refusal(secured.connect(&secured.authority.client()));
    assert_eq!(said, "TLS: the server requires a client certificate: pass --tls-cert and --tls-key");
    let session = secured.connect(&with(clients.sign("client", &["client"]))).unwrap();
    MemoryServer::locate(&session).unwrap();
    // Of another authority, and of old.
    for own in [secured.authority.sign("client", &["client"]), clients.sign_expired("old")] {
        let said = refusal(secured.connect(&with(own)));
        assert!(said.starts_with("TLS: the peer refused: "), "{said}");
    }
}

#[test]
fn certificates_are_read_again() {
    let secured = Secured::plain();
    let files = secured.authority.client();
    let before = secured.connect(&files).unwrap();
    secured.authority.sign("server", &["files.example"]);
    secured.connect(&files).unwrap();
    secured.server.reload().unwrap();
    assert!(secured.connect(&files).is_err(), "it has another name now");
    let named = files.clone().with_name("files.example");
    secured.connect(&named).unwrap();
    // Invalid files change nothing.
    let path = |end: &str| secured.authority.dir.path().join(format!("server.{end}"));
    let good = fs::read_to_string(path("key")).unwrap();
    let other = fs::read_to_string(secured.authority.sign("other", &NAMES).1).unwrap();
    for wrong in ["", "no PEM", &other] {
        private(&path("key"), wrong);
        assert!(secured.server.reload().is_err(), "{wrong}");
        secured.connect(&named).unwrap();
    }
    private(&path("key"), &good);
    secured.server.reload().unwrap();
    MemoryServer::locate(&before).unwrap();
}

#[test]
fn files_that_make_no_sense_are_named() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("server", &NAMES);
    let load = |certificate: &str, key: &str| {
        let at = |name: &str| authority.dir.path().join(name);
        TlsServer::load(TlsServerFiles::new(at(certificate), at(key)))
    };
    load("server.pem", "server.key").unwrap();
    assert!(matches!(load("none", "server.key"), Err(TlsError::Io { .. })));
    let said = load("server.key", "server.key").unwrap_err().to_string();
    assert!(said.ends_with("server.key: it has no certificate"), "{said}");
    let said = load("server.pem", "server.pem").unwrap_err().to_string();
    assert!(said.contains("server.pem"), "{said}");
    let text = fs::read_to_string(&key).unwrap();
    fs::write(&certificate, text.replace("BEGIN", "BEG1N")).unwrap();
    assert!(matches!(load("server.pem", "server.key"), Err(TlsError::Pem { .. })));
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    authority.sign("other", &NAMES);
    let said = load("other.pem", "server.key").unwrap_err().to_string();
    assert!(said.ends_with("other users can use this file, its mode is 640: chmod 600"), "{said}");
    let named = authority.client().with_name("a b");
    assert!(matches!(TlsClient::load(&named), Err(TlsError::Name(name)) if name == "a b"));
}

/// Returns everything until the other end hangs up.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
    rest
}

/// Returns the first words of a client: those that it says before it hears anything.
fn client_hello(client: &TlsClientFiles) -> Vec<u8> {
    let client = TlsClient::load(client).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut far = listener.accept().unwrap().0;
    thread::scope(|scope| {
        scope.spawn(|| client.connect(near, "localhost", soon()).unwrap_err());
        let mut bytes = vec![0; 5];
        far.read_exact(&mut bytes).unwrap();
        bytes.resize(5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]])), 0);
        far.read_exact(&mut bytes[5..]).unwrap();
        drop(far);
        bytes
    })
}

#[test]
fn garbage_in_the_place_of_a_handshake_ends_one_connection() {
    let limits = limits(|limits| limits.introduction_timeout = Duration::from_millis(200));
    let secured = Secured::new(|authority| authority.sign("server", &NAMES), |host, _| host.limits(limits));
    let hello = client_hello(&secured.authority.client());
    let mut random = 1u64;
    let mut garbage: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(),
        vec![0; 70_000],
        vec![22; 70_000],
        // A maximum-length handshake record that announces a 16 MiB message.
        [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 200_000]].concat(),
        // An alert, and data, before anything else.
        vec![21, 3, 3, 0, 2, 2, 0],
        [&[23, 3, 3, 0x40, 0][..], &[7; 16_384]].concat(),
        // Twice the same, and something else behind it.
        [&hello[..], &hello].concat(),
        [&hello[..], b"rdmabxS\x01\x05\0\0\0\x03\0\xff\xff"].concat(),
    ];
    // One bit of the first words is another one.
    for _ in 0..64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut changed = hello.clone();
        let at = (random >> 33) as usize % (8 * hello.len());
        changed[at / 8] ^= 1 << (at % 8);
        garbage.push(changed);
    }
    // Half a hello, and then nothing for longer than there is.
    garbage.push(hello[..hello.len() / 2].to_vec());
    garbage.push(hello[..1].to_vec());
    garbage.push(Vec::new());
    for bytes in garbage {
        let mut stream = secured.tcp();
        // It may have hung up before all is said.
        let _ = stream.write_all(&bytes);
        rest(stream);
    }
    secured.serves();
}

#[test]
fn endless_handshakes_delay_no_session() {
    let limits = limits(|limits| {
        limits.introduction_timeout = Duration::from_secs(600);
        limits.pending_connections = 16;
    });
    let secured = Secured::new(|authority| authority.sign("server", &NAMES), |host, _| host.limits(limits));
    let hello = client_hello(&secured.authority.client());
    let slow = |count: usize| -> Vec<TcpStream> {
        let one = |at: usize| {
            let mut stream = secured.tcp();
            stream.write_all(&hello[..at % hello.len()]).unwrap();
            stream
        };
        (0..count).map(|number| one(number * 7)).collect()
    };
    let mut held = slow(60);
    for _ in 0..3 {
        secured.serves();
        held.extend(slow(20));
    }
    // The oldest have given way.
    assert_eq!(held[0].read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_lease_is_renewed_through_it() {
    let lease = Duration::from_secs(3);
    let memory = Arc::new(Memory::shared("test", LEN).unwrap());
    let (server, client) = crate::support::tls::pair(&Authority::new());
    let fencing = Fencing::new(lease, false);
    let mut fixture = Fixture::of_host(ProviderKind::Tcp, memory, |host| host.tls(server).fencing(fencing));
    fixture.options.tls = Some(client);
    let session = fixture.connect();
    thread::sleep(lease + lease / 3);
    let mut reply = Vec::new();
    session.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
}

/// Relays the contents of one TLS connection's records in another connection.
fn pass_on(from: TlsStream, to: TlsStream) {
    for (from, to) in [(from.try_clone(), to.try_clone()), (Ok(to), Ok(from))] {
        let (mut from, mut to): (TlsStream, TlsStream) = (from.unwrap(), to.unwrap());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match from.read(&mut bytes) {
                    Ok(count @ 1..) if to.write_all(&bytes[..count]).is_ok() => {}
                    Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                    _ => break,
                }
            }
            let _ = to.tcp().shutdown(Shutdown::Both);
            let _ = from.tcp().shutdown(Shutdown::Both);
        });
    }
}

/// A relay has a certificate that clients trust, as the owner of an authority could issue.
#[test]
fn a_proof_is_not_passed_on_from_one_connection_to_another() {
    let key = Key { id: "k".parse().unwrap(), secret: Secret::new(&[7; 32]).unwrap() };
    let keys = HashMap::from([(key.id, Grant::new(key.secret.clone(), Domain::default()))]);
    let secured =
        Secured::new(|authority| authority.sign("server", &NAMES), |host, _| host.keys(Arc::new(keys)));
    let between = |secured: &Secured| {
        let server =
            TlsServer::load(secured.authority.server(secured.authority.sign("between", &NAMES))).unwrap();
        let client = TlsClient::load(&secured.authority.client()).unwrap();
        let to = secured.address();
        standing_in(move |stream| {
            let accepted = server.accept_stream(stream, soon()).unwrap();
            let connected = client.connect(tcp(&to), "localhost", soon()).unwrap();
            for stream in [&accepted, &connected] {
                stream.tcp().set_read_timeout(None).unwrap();
            }
            pass_on(accepted, connected);
        })
    };
    let with_key =
        Session::builder().options(options(Some(&secured.authority.client()))).key(key).into_options();
    Session::connect(&secured.address(), &with_key).unwrap();
    let said = refusal(Session::connect(&between(&secured), &with_key));
    assert!(said.starts_with("the key k is not in the server's key file"), "{said}");
    // Without proofs the relay is not detected.
    let open = Secured::plain();
    let session = connect(&between(&open), Some(&open.authority.client())).unwrap();
    MemoryServer::locate(&session).unwrap();
}
