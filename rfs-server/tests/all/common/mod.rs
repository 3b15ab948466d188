//! A server and sessions, for the integration tests.
#![allow(unreachable_pub, reason = "no other crate uses it")]

pub mod program;

use std::sync::Arc;

use rdmabox::{Address, ProviderKind, Session};
use rfs_proto::{Attached, Opened, ROOT_INO, Reply, Request, VERSION, decode_reply_with, encode_request};
use rfs_server::{Config, Server};

pub struct Client {
    pub session: Arc<Session>,
    pub attached: Attached,
}

/// Returns whether RDMABOX_TEST_PROVIDERS names RDMA. Then there has to be a device.
pub fn tests_rdma() -> bool {
    std::env::var("RDMABOX_TEST_PROVIDERS")
        .is_ok_and(|names| names.split(',').any(|name| name.trim() == "rdma"))
}

pub fn start(directory: &tempfile::TempDir) -> Server {
    start_with(directory, |_| {})
}

/// Starts a server with a changed configuration.
pub fn start_with(directory: &tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Server {
    let host = || "127.0.0.1".to_owned();
    let mut listen =
        vec![Address::Unix(directory.path().join("rfs.sock")), Address::Tcp { host: host(), port: 0 }];
    if tests_rdma() {
        listen.push(Address::Rdma { host: host(), port: 0 });
    }
    let mut config =
        Config { listen, allow_without_keys: true, allow_mixed_atomics: true, ..Config::new(16 << 20) };
    change(&mut config);
    Server::start(config).unwrap()
}

pub fn ask(session: &Session, request: Request<'_>) -> Reply {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    encode_request(&request, &mut bytes);
    session.call(&bytes, &mut reply).unwrap();
    decode_reply_with(&reply).unwrap().0
}

/// Connects a session without attaching it.
pub fn session(server: &Server, provider: ProviderKind) -> Arc<Session> {
    let address = server.addresses().iter().find(|address| address.provider() == provider).unwrap();
    Session::builder().provider(provider).connect(address).unwrap()
}

pub fn attach(session: &Session, export: &str, keeps: bool) -> Reply {
    ask(
        session,
        Request::Attach { version: VERSION, client: "test", export, keeps, alone: false, mount: None },
    )
}

/// Attaches exclusively: no other session may be attached to the export.
pub fn attach_alone(session: &Session, export: &str) -> Reply {
    ask(
        session,
        Request::Attach { version: VERSION, client: "test", export, keeps: true, alone: true, mount: None },
    )
}

/// Connects a session and attaches it to an export.
pub fn connect_to(server: &Server, provider: ProviderKind, export: &str, keeps: bool) -> Client {
    let session = session(server, provider);
    let Reply::Attached(attached) = attach(&session, export, keeps) else { panic!("not attached") };
    Client { session, attached }
}

/// Connects a session and attaches it to the first export.
pub fn connect(server: &Server, provider: ProviderKind, keeps: bool) -> Client {
    connect_to(server, provider, "", keeps)
}

/// Returns a file name for the provider under test.
pub fn name(provider: ProviderKind) -> Vec<u8> {
    provider.to_string().into_bytes()
}

impl Client {
    pub fn ask(&self, request: Request<'_>) -> Reply {
        ask(&self.session, request)
    }

    pub fn create(&self, name: &[u8]) -> Opened {
        let request = Request::Create {
            parent: ROOT_INO,
            name,
            perm: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            exclusive: false,
        };
        match self.ask(request) {
            Reply::Opened(opened) => opened,
            other => panic!("{other:?}"),
        }
    }
}
