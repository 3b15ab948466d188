//! Tests that errors of connecting name the fault, by kind and with their source.

use std::{
    error::Error,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use rdmabox::{
    Address, CallError, ConnectError, Host, Key, Peer, ProviderKind, Reply, Secret, Service, Session,
    SessionOptions,
};

use crate::support::{Fixture, limits};

/// First bytes of a message of the handshake: the version follows.
const MAGIC: &[u8] = b"rdmabxS\x01";
const VERSION: u32 = 5;

fn connect(address: &Address) -> ConnectError {
    Session::connect(address, &SessionOptions::default()).unwrap_err()
}

/// Returns the address of a peer that reads the first message of a client, and answers with
/// `bytes`.
fn answering(bytes: Vec<u8>) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the process of the test.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(&bytes);
            // Until the client has closed: unread bytes must not reset the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    Address::Tcp { host: "127.0.0.1".into(), port }
}

#[test]
fn a_missing_server_is_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let error = connect(&Address::Unix(dir.path().join("none")));
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().ends_with("no server there: no such socket"), "{error}");
    assert!(error.source().is_some());
    // The port was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = connect(&Address::Tcp { host: "127.0.0.1".into(), port });
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().ends_with("no server there: connection refused"), "{error}");
}

#[test]
fn an_unknown_name_is_named() {
    let error = connect(&Address::Tcp { host: "no\0name".into(), port: 1 });
    assert!(matches!(&error, ConnectError::UnresolvedName { name, .. } if name == "no\0name"), "{error:?}");
    assert!(error.source().is_some());
}

#[test]
fn a_host_of_another_version_is_told_from_a_stranger() {
    let head = |version: u32| [MAGIC, &version.to_le_bytes(), &[0; 4]].concat();
    let error = connect(&answering(head(VERSION - 1)));
    assert!(
        matches!(error, ConnectError::Version { host, client: VERSION, .. } if host == VERSION - 1),
        "{error:?}"
    );
    let error = connect(&answering(b"HTTP/1.1 400 Bad Request".to_vec()));
    assert!(matches!(error, ConnectError::Protocol { .. }), "{error:?}");
    assert!(error.to_string().ends_with("no rdmabox host there") && error.source().is_some(), "{error}");
}

#[test]
fn a_client_of_another_version_learns_the_host_s() {
    let f = Fixture::new(ProviderKind::Tcp);
    let Address::Tcp { host, port } = &f.address else { panic!("{}", f.address) };
    let mut stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    stream.write_all(&[MAGIC, &(VERSION - 1).to_le_bytes(), &[0; 4]].concat()).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..], [MAGIC, &VERSION.to_le_bytes()].concat());
}

#[test]
fn a_wrong_key_is_a_matter_of_authentication() {
    let f = Fixture::new(ProviderKind::Tcp);
    let key = Key { id: "laptop".parse().unwrap(), secret: Secret::new(&[7; 32]).unwrap() };
    let error = Session::builder().options(f.options.clone()).key(key).connect(&f.address).unwrap_err();
    assert!(matches!(error, ConnectError::Authentication { source: None, .. }), "{error:?}");
    assert!(error.to_string().ends_with("this server has no keys: leave --key out"), "{error}");
}

/// Accepts every client.
struct Open;

impl Service for Open {
    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
        Ok(())
    }
}

struct Closed;

impl Service for Closed {
    fn connected(&self, _: &Peer) -> Result<(), String> {
        Err("closed today".into())
    }

    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
        Ok(())
    }
}

#[test]
fn a_refusal_of_the_host_has_its_reason() {
    let listen = ["127.0.0.1:0".parse().unwrap()];
    let host = Host::new().unwrap().listen(&listen, Arc::new(Closed)).unwrap();
    let error = connect(&host.addresses()[0]);
    assert!(matches!(&error, ConnectError::Refused { reason, .. } if reason == "closed today"), "{error:?}");
    let limits = limits(|limits| limits.sessions = 1);
    let host = Host::new().unwrap().limits(limits).listen(&listen, Arc::new(Open)).unwrap();
    let _only = Session::builder().connect(&host.addresses()[0]).unwrap();
    let error = connect(&host.addresses()[0]);
    assert!(matches!(&error, ConnectError::Refused { .. }), "{error:?}");
}

#[test]
fn a_silent_peer_is_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
    let timeout = Duration::from_millis(50);
    let error = Session::builder().connect_timeout(timeout).connect(&address).unwrap_err();
    assert!(
        matches!(error, ConnectError::Timeout { timeout: expired, .. } if expired == timeout),
        "{error:?}"
    );
}
