//! Tests of sessions with keys: which keys get a session, which memory they reach, and that
//! unauthenticated peers delay no others.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use crate::support::{Echo, REFUSED, host, limits, providers};
use hmac::{Hmac, KeyInit, Mac};
use rdmabox::{
    Access, Address, CallError, ConnectError, Domain, Export, Grant, HostHandle, Key, KeyId, Limits, Memory,
    Peer, ProviderKind, RemoteAddr, Reply, RequestError, Secret, Service, Session, WcStatus,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sha2::Sha256;

const LEN: usize = 1 << 16;

fn key(name: &str, secret: u8) -> Key {
    Key { id: name.parse().unwrap(), secret: Secret::new(&[secret; 32]).unwrap() }
}

/// A service that answers with the address of the asking key's memory, or of the named key's.
struct Places {
    exports: HashMap<Option<KeyId>, Export>,
}

impl Service for Places {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        // Any client may ask for another key's address, as if it had guessed it.
        let whose = match request {
            b"" => peer.key().copied(),
            name => Some(str::from_utf8(name).unwrap().parse().unwrap()),
        };
        reply.extend_from_slice(&peer.remote_addr(&self.exports[&whose]).to_le_bytes());
        Ok(())
    }
}

/// A host with a memory for each of two keys, one of which may only read, and one memory for
/// clients without a key.
struct Fixture {
    running: HostHandle,
    memory: HashMap<String, Arc<Memory>>,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(limits: Limits) -> Fixture {
        let _ = env_logger::builder().is_test(true).try_init();
        let dir = tempfile::tempdir().unwrap();
        let host = host().limits(limits);
        let (mut exports, mut keys, mut memory) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (name, secret, access) in [
            ("writer", 1, Access::REMOTE_ALL),
            ("reader", 2, Access::REMOTE_READ),
            ("", 0, Access::REMOTE_ALL),
        ] {
            let lent = Arc::new(Memory::shared("test", LEN).unwrap());
            let id = (!name.is_empty()).then(|| key(name, secret));
            let domain = if id.is_some() { host.domain().unwrap() } else { Domain::default() };
            let export = host.export_in(domain, &lent, access).unwrap();
            exports.insert(id.as_ref().map(|key| key.id), export);
            keys.extend(id.map(|Key { id, secret }| (id, Grant::new(secret, domain))));
            memory.insert(name.to_owned(), lent);
        }
        let mut listen = crate::support::addresses(ProviderKind::Tcp, dir.path());
        if providers().contains(&ProviderKind::Rdma) {
            listen = crate::support::addresses(ProviderKind::Rdma, dir.path());
        }
        let running = host.keys(Arc::new(keys)).listen(&listen, Arc::new(Places { exports })).unwrap();
        Fixture { running, memory, dir }
    }

    fn address(&self, provider: ProviderKind) -> Address {
        let own = self.running.addresses().iter().find(|address| address.provider() == provider);
        own.unwrap().clone()
    }

    fn connect(&self, provider: ProviderKind, key: Option<Key>) -> Result<Arc<Session>, ConnectError> {
        let mut options = Session::builder().provider(provider).key(key).into_options();
        if provider == ProviderKind::Rdma {
            // Where it is tested, processors are emulated and slow.
            options.connect_timeout = Duration::from_secs(60);
            options.operation_timeout = Duration::from_secs(60);
        }
        Session::connect(&self.address(provider), &options)
    }

    fn tcp(&self) -> TcpStream {
        match self.address(ProviderKind::Tcp) {
            Address::Tcp { host, port } => TcpStream::connect((host.as_str(), port)).unwrap(),
            other => panic!("{other}"),
        }
    }
}

fn place(session: &Session, whose: &str) -> RemoteAddr {
    let mut reply = Vec::new();
    session.call(whose.as_bytes(), &mut reply).unwrap();
    RemoteAddr::from_le_bytes(reply[..].try_into().unwrap())
}

/// Returns why there is no session.
fn refusal(outcome: Result<Arc<Session>, ConnectError>) -> String {
    match outcome {
        Err(ConnectError::Refused { reason, .. } | ConnectError::Authentication { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn a_key_opens_its_own_domain_as_far_as_that_goes() {
    for provider in providers() {
        eprintln!("--- {provider}");
        let f = Fixture::new(Limits::default());
        let writer = f.connect(provider, Some(key("writer", 1))).unwrap();
        let reader = f.connect(provider, Some(key("reader", 2))).unwrap();
        let own = place(&writer, "");
        writer.write(own, b"mine").unwrap();
        assert_eq!(writer.fetch_add(own.at(8), 5), Ok(0));
        let mut back = [0; 4];
        writer.read(own, &mut back).unwrap();
        assert_eq!(&back, b"mine");
        f.memory["reader"].write(0, b"text");
        let place_of_reader = place(&reader, "");
        reader.read(place_of_reader, &mut back).unwrap();
        assert_eq!(&back, b"text");
        // Requests on inaccessible memory are refused, alone or in a list. Other requests of the
        // list are flushed.
        let is_refused = |outcome: Result<(), RequestError>| {
            let refused = RequestError::Completion(WcStatus::RemAccessErr);
            assert!(outcome == Err(refused) || outcome == Err(RequestError::Flushed), "{outcome:?}");
        };
        for _ in 0..2 {
            is_refused(reader.write(place_of_reader, b"no"));
            is_refused(reader.write_vectored(&[(place_of_reader, b"no"), (own, b"no")]));
            is_refused(reader.compare_swap(place_of_reader, 0, 1).map(drop));
            is_refused(reader.fetch_add(place_of_reader, 1).map(drop));
            until(|| reader.read(place_of_reader, &mut back).is_ok());
        }
        // Memory of another key, at a known address.
        let foreign = place(&writer, "reader");
        for _ in 0..2 {
            is_refused(writer.read(foreign, &mut back));
            is_refused(writer.write(foreign, b"no"));
            is_refused(reader.read(own, &mut back));
            is_refused(reader.write(own, b"no"));
        }
        // And on they go: broken queue pairs are joined again, with a proof each.
        until(|| writer.write(own, b"more").is_ok());
        until(|| reader.read(place_of_reader, &mut back).is_ok());
        let mut there = [0; 4];
        f.memory["reader"].read(0, &mut there);
        assert_eq!(&there, b"text");
    }
}

/// Bits of a key's tag, and of the place of its region.
const TAG: u32 = 19;
const SLOT: u32 = 12;

/// Returns `own` with one property made wrong, chosen by `number`, for a request of `len` bytes.
fn wrong(own: RemoteAddr, foreign: RemoteAddr, number: u32, len: usize) -> RemoteAddr {
    // Words stay aligned, so that the chosen property is the only wrong one.
    let step = if len == 8 { 8 } else { 1 };
    let (more, inside) = (number / 8, u64::from(number) / step * step);
    let outside = step * u64::from(1 + more);
    let keyed = |flipped: u32| RemoteAddr { rkey: own.rkey ^ flipped, ..own.at(inside) };
    match number % 8 {
        0 => keyed(1 + more.wrapping_mul(0x9e37) % ((1 << TAG) - 1)),
        1 => keyed((1 + more % ((1 << SLOT) - 1)) << TAG),
        2 => keyed(1 << (more % 32)),
        3 => RemoteAddr { rkey: own.rkey.wrapping_add(1 + more), ..own.at(inside) },
        4 => own.at(outside.wrapping_neg()),
        5 => own.at((LEN - len) as u64 + outside),
        6 => RemoteAddr { rkey: own.rkey, ..foreign.at(inside) },
        _ => RemoteAddr { rkey: foreign.rkey, ..own.at(inside) },
    }
}

#[test]
fn thousands_of_wrong_keys_addresses_and_lengths_change_nothing_and_tell_nothing() {
    const NUMBER: u32 = 8 * 512;
    let f = Fixture::new(Limits::default());
    let pattern: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    f.memory.values().for_each(|memory| memory.write(0, &pattern));
    let session = f.connect(ProviderKind::Tcp, Some(key("writer", 1))).unwrap();
    let (own, foreign) = (place(&session, ""), place(&session, "reader"));
    for number in 0..NUMBER {
        // Each kind of mistake with each kind of request, and more than one page at times.
        let (request, len) = (number / 8 % 4, [8, 1, 4096, 5000][number as usize / 32 % 4]);
        let mut back = vec![0xa5; len];
        let mut ask = || match request {
            0 => session.write(wrong(own, foreign, number, len), &vec![0x5a; len]),
            1 => session.read(wrong(own, foreign, number, len), &mut back),
            2 => session.compare_swap(wrong(own, foreign, number, 8), 0, 1).map(drop),
            _ => session.fetch_add(wrong(own, foreign, number, 8), 1).map(drop),
        };
        // Until the host itself has said no: a request beside one that was refused is flushed.
        until(|| match ask() {
            Err(RequestError::Flushed) => false,
            other => {
                assert!(
                    matches!(other, Err(RequestError::Completion(WcStatus::RemAccessErr))),
                    "{number}: {other:?}"
                );
                true
            }
        });
        assert!(back.iter().all(|byte| *byte == 0xa5), "{number} tells something");
    }
    for (name, memory) in &f.memory {
        let mut there = vec![0; LEN];
        memory.read(0, &mut there);
        assert!(there == pattern, "the memory of {name:?} has changed");
    }
    let mut back = [0; 8];
    until(|| session.read(own.at(4096), &mut back).is_ok());
    assert_eq!(back, pattern[4096..4104]);
}

#[test]
fn a_client_without_a_valid_key_gets_no_session() {
    let f = Fixture::new(Limits::default());
    let tcp = |key| f.connect(ProviderKind::Tcp, key);
    let wrong = refusal(tcp(Some(key("writer", 2))));
    let not_taken = |name: &str| {
        format!(
            "the key {name} is not in the server's key file or has another secret: after an edit send the server SIGHUP"
        )
    };
    assert_eq!(wrong, not_taken("writer"));
    assert_eq!(refusal(tcp(Some(key("nobody", 1)))), not_taken("nobody"));
    assert_eq!(refusal(tcp(None)), "this server requires a key: pass --key FILE");
    // Over the Unix socket the user of the host needs none, but a wrong one is wrong there, too.
    let shm = |key| f.connect(ProviderKind::Shm, key);
    assert_eq!(refusal(shm(Some(key("writer", 2)))), wrong);
    let session = shm(None).unwrap();
    session.write(place(&session, ""), b"mine").unwrap();
    assert_eq!(shm(Some(key("writer", 1))).unwrap().provider(), ProviderKind::Shm);
}

#[test]
fn a_client_with_a_key_takes_no_host_without() {
    let host = crate::support::Fixture::new(ProviderKind::Tcp);
    let builder = Session::builder().options(host.options.clone());
    let refused = refusal(builder.key(key("writer", 1)).connect(&host.address));
    assert_eq!(refused, "this server has no keys: leave --key out");
}

#[test]
fn a_tcp_address_of_this_host_leads_to_its_memory_with_the_same_key() {
    let f = Fixture::new(Limits::default());
    let session = Session::builder().key(key("reader", 2)).connect(&f.address(ProviderKind::Tcp)).unwrap();
    assert_eq!(session.provider(), ProviderKind::Shm);
    assert!(f.dir.path().join("sock").exists());
    let own = place(&session, "");
    assert_eq!(session.write(own, b"no"), Err(REFUSED));
    let (memory, _) = session.map(own, 8).unwrap();
    assert!(!memory.is_writable());
}

#[test]
fn sessions_are_counted_by_key() {
    let f = Fixture::new(limits(|limits| limits.sessions_per_key = 2));
    let connect = |name, secret| f.connect(ProviderKind::Tcp, Some(key(name, secret)));
    let first = connect("writer", 1).unwrap();
    let _second = connect("writer", 1).unwrap();
    let refused = refusal(connect("writer", 1));
    assert_eq!(refused, "the server takes no more than 2 sessions with the key writer");
    let _other = connect("reader", 2).unwrap();
    drop(first);
    until(|| connect("writer", 1).is_ok());
}

#[test]
fn sessions_are_counted() {
    let f = Fixture::new(limits(|limits| limits.sessions = 1));
    let connect = || f.connect(ProviderKind::Tcp, Some(key("writer", 1)));
    let first = connect().unwrap();
    assert_eq!(refusal(connect()), "the server takes no more than 1 sessions over tcp");
    drop(first);
    until(|| connect().is_ok());
}

/// Lets this process have both ends of many connections.
fn many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the hard limit");
}

#[test]
fn a_thousand_silent_connections_delay_no_session() {
    many_descriptors();
    let f = Fixture::new(limits(|limits| limits.introduction_timeout = Duration::from_secs(600)));
    let mut silent: Vec<TcpStream> = (0..1000).map(|_| f.tcp()).collect();
    for _ in 0..10 {
        let session = f.connect(ProviderKind::Tcp, Some(key("writer", 1))).unwrap();
        session.write(place(&session, ""), b"mine").unwrap();
        silent.extend((0..50).map(|_| f.tcp()));
    }
    // The oldest have gone.
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
}

/// Returns a client's first message: the fields of its preamble after magic and version.
fn preamble(kind: u32, token: &[u8], proves: u32, name: &[u8]) -> Vec<u8> {
    let mut bytes = b"rdmabxS\x01".to_vec();
    bytes.extend(5u32.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(token);
    // A queue pair, of software, with replies.
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(proves.to_le_bytes());
    bytes.extend(name);
    bytes.resize(112, 0);
    bytes
}

/// Returns everything until the host hangs up.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut rest);
    rest
}

#[test]
fn a_silent_connection_is_closed_in_time_and_reads_no_more_than_a_preamble() {
    let f = Fixture::new(limits(|limits| limits.introduction_timeout = Duration::from_millis(50)));
    assert_eq!(rest(f.tcp()), b"");
    let mut halfway = f.tcp();
    halfway.write_all(&preamble(1, &[0; 16], 1, b"writer")[..111]).unwrap();
    assert_eq!(rest(halfway), b"");
    // Challenged, and silent from then on.
    let mut challenged = f.tcp();
    challenged.write_all(&preamble(1, &[0; 16], 1, b"writer")).unwrap();
    assert_eq!(rest(challenged).len(), 48);
    // An announcement of more than there may be.
    let mut greedy = f.tcp();
    greedy.write_all(&preamble(1, &[0; 16], 1, b"writer")).unwrap();
    greedy.write_all(b"rdmabxS\x01\x05\0\0\0\x03\0\xff\xff").unwrap();
    assert_eq!(rest(greedy).len(), 48);
}

/// Returns the HMAC-SHA256 of a label and a message.
fn mac(secret: &[u8], label: &str, said: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(label.as_bytes());
    mac.update(said);
    mac.finalize().into_bytes().into()
}

/// Returns the next message of the host: its head and its body.
fn message(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = vec![0; 16];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(u16::from_le_bytes([head[14], head[15]]))];
    stream.read_exact(&mut body).unwrap();
    [head, body].concat()
}

fn proof(bytes: [u8; 32]) -> Vec<u8> {
    [&b"rdmabxS\x01\x05\0\0\0\x03\0\x20\0"[..], &bytes].concat()
}

/// Says these words and proves to know the secret; all that was said, and the stream.
fn prove(f: &Fixture, preamble: Vec<u8>, secret: &[u8]) -> (Vec<u8>, TcpStream) {
    let mut stream = f.tcp();
    stream.write_all(&preamble).unwrap();
    let challenge = message(&mut stream);
    assert_eq!((challenge.len(), &challenge[12..16]), (48, &[2, 0, 32, 0][..]));
    let mut said = [preamble, challenge].concat();
    let proof = proof(mac(secret, "rdmabox 1 client knows\0", &said));
    stream.write_all(&proof).unwrap();
    said.extend(proof);
    (said, stream)
}

#[test]
fn a_host_with_senseless_limits_does_not_start_and_queue_pairs_are_limited() {
    let none = limits(|limits| limits.sessions = 0);
    let error = host().limits(none).listen(&[], Arc::<Echo>::default()).unwrap_err();
    assert_eq!(error.to_string(), "the limit sessions is out of its range: 1 to 10,000");

    let limits = limits(|limits| {
        limits.queue_pairs = 2;
        limits.call_threads = Some(1);
    });
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let running = host().limits(limits).listen(&[address], Arc::<Echo>::default()).unwrap();
    let connect = |queue_pairs| Session::builder().queue_pairs(queue_pairs).connect(&running.addresses()[0]);
    let refused = connect(3).unwrap_err().to_string();
    assert!(refused.ends_with("3 queue pairs: choose 1 to 2"), "{refused}");
    connect(2).unwrap().call(b"x", &mut Vec::new()).unwrap();
}

#[test]
fn the_handshake_is_what_the_design_says_byte_by_byte() {
    let f = Fixture::new(Limits::default());
    let mut first = preamble(1, &[0; 16], 1, b"writer");
    first[80..].copy_from_slice(&[9; 32]);
    let (mut said, mut control) = prove(&f, first, &[1; 32]);
    let secret = mac(&[1; 32], "rdmabox 1 session\0", &said);
    let welcome = message(&mut control);
    assert_eq!(welcome[12..14], [1, 0]);
    said.extend(&welcome);
    assert_eq!(message(&mut control), proof(mac(&[1; 32], "rdmabox 1 host knows\0", &said)));
    // Both queue pairs, with the session's secret; each side then greets.
    let token = &welcome[16..32];
    let joined = [0u8, 1].map(|index| {
        let mut join = preamble(2, token, 2, b"");
        join[32] = index;
        let (said, mut stream) = prove(&f, join, &secret);
        assert_eq!(message(&mut stream), proof(mac(&secret, "rdmabox 1 host knows\0", &said)));
        let hello = [&b"rdmabox\x01"[..], &3u32.to_le_bytes(), &9u32.to_le_bytes(), &[0; 8]].concat();
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        stream
    });
    assert_eq!(message(&mut control)[12..14], [1, 0], "the session is there");
    // A replay of an earlier proof.
    let mut again = f.tcp();
    again.write_all(&said[..112]).unwrap();
    assert_ne!(message(&mut again), said[112..160]);
    again.write_all(&said[160..208]).unwrap();
    let refused = message(&mut again);
    assert_eq!(refused[12..14], [4, 0]);
    assert!(refused[72..].starts_with(b"the key writer is not in the server's key file"));
    drop(joined);
}

#[test]
fn knowing_the_name_of_a_session_does_not_permit_joining_it() {
    let f = Fixture::new(Limits::default());
    let (client, tap) = tapped(&f);
    let token = tap[1][16..32].to_vec();
    // Without a proof, and with one that is none.
    let mut bold = f.tcp();
    bold.write_all(&preamble(2, &token, 0, b"")).unwrap();
    assert_eq!(rest(bold), b"");
    let mut liar = f.tcp();
    liar.write_all(&preamble(2, &token, 2, b"")).unwrap();
    liar.write_all(b"rdmabxS\x01\x05\0\0\0\x03\0\x20\0").unwrap();
    liar.write_all(&[7; 32]).unwrap();
    assert_eq!(rest(liar).len(), 48);
    client.write(place(&client, ""), b"mine").unwrap();
}

/// Connects through a relay that records the host's control messages up to its proof.
fn tapped(f: &Fixture) -> (Arc<Session>, Vec<Vec<u8>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts: Vec<TcpStream> = (0..6).map(|_| f.tcp()).collect();
    let tap = std::thread::spawn(move || {
        let mut said = Vec::new();
        for (number, host) in hosts.into_iter().enumerate() {
            let (client, _) = listener.accept().unwrap();
            let (mut from_client, mut to_client) = (client.try_clone().unwrap(), client);
            let (mut from_host, mut to_host) = (host.try_clone().unwrap(), host);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_client, &mut to_host);
                let _ = to_host.shutdown(std::net::Shutdown::Both);
            });
            for _ in 0..if number == 0 { 3 } else { 0 } {
                let whole = message(&mut from_host);
                to_client.write_all(&whole).unwrap();
                said.push(whole);
            }
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_host, &mut to_client);
                let _ = to_client.shutdown(std::net::Shutdown::Both);
            });
        }
        said
    });
    let options = Session::builder().provider(ProviderKind::Tcp).key(key("writer", 1)).into_options();
    let address = Address::Tcp { host: "127.0.0.1".into(), port };
    let session = Session::connect(&address, &options).unwrap();
    (session, tap.join().unwrap())
}
