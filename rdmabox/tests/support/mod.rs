//! A host that exports memory and answers calls, and sessions with it.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use parking_lot::Mutex;
use rdmabox::{
    Access, Address, Export, Host, Memory, Peer, ProviderKind, RemoteAddr, Running, Service, Session,
    SessionOptions,
};

pub const LEN: usize = 4 << 20;

#[derive(Default)]
pub struct Echo {
    pub export: Mutex<Option<Export>>,
    pub calls: AtomicU64,
    pub ended: AtomicU64,
}

impl Service for Echo {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Vec<u8>) -> Result<(), String> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match request {
            b"where" => {
                let export = self.export.lock();
                let remote = peer.remote_addr(export.as_ref().unwrap());
                reply.extend_from_slice(&remote.addr.to_le_bytes());
                reply.extend_from_slice(&remote.rkey.to_le_bytes());
            }
            b"panic" => panic!("on purpose"),
            b"bad" => return Err("malformed".into()),
            other => reply.extend(other.iter().rev()),
        }
        Ok(())
    }

    fn disconnected(&self, _: &Peer) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }
}

pub struct Fixture {
    pub service: Arc<Echo>,
    pub memory: Arc<Memory>,
    pub running: Option<Running>,
    pub address: Address,
    pub options: SessionOptions,
    _dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new(provider: ProviderKind) -> Fixture {
        Fixture::with_memory(provider, LEN)
    }

    pub fn with_memory(provider: ProviderKind, len: usize) -> Fixture {
        let _ = env_logger::builder().is_test(true).try_init();
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new().unwrap();
        let memory = Arc::new(Memory::shared("test", len).unwrap());
        let export = host.export(&memory, Access::REMOTE_ALL).unwrap();
        let service = Arc::new(Echo::default());
        *service.export.lock() = Some(export);
        let listen = addresses(provider, dir.path());
        let running = host.listen(&listen, Arc::<Echo>::clone(&service) as Arc<dyn Service>).unwrap();
        let own = running.addresses().iter().find(|address| address.provider() == provider);
        let address = own.unwrap().clone();
        let options = SessionOptions { provider: Some(provider), ..SessionOptions::default() };
        Fixture { service, memory, running: Some(running), address, options, _dir: dir }
    }

    pub fn connect(&self) -> Arc<Session> {
        Session::connect(&self.address, &self.options).unwrap()
    }
}

pub fn base(session: &Session) -> RemoteAddr {
    let mut reply = Vec::new();
    session.call(b"where", &mut reply).unwrap();
    RemoteAddr {
        addr: u64::from_le_bytes(reply[..8].try_into().unwrap()),
        rkey: u32::from_le_bytes(reply[8..12].try_into().unwrap()),
    }
}

pub fn at(base: RemoteAddr, offset: usize) -> RemoteAddr {
    RemoteAddr { addr: base.addr + offset as u64, rkey: base.rkey }
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

/// Where a host listens so that it can be reached over `provider`: also where it would be for the software providers.
pub fn addresses(provider: ProviderKind, dir: &std::path::Path) -> Vec<Address> {
    let host = || "127.0.0.1".to_owned();
    let mut addresses = vec![Address::Unix(dir.join("sock")), Address::Tcp { host: host(), port: 0 }];
    if provider == ProviderKind::Rdma {
        addresses.push(Address::Rdma { host: host(), port: 0 });
    }
    addresses
}

/// The providers to test: those that RDMABOX_TEST_PROVIDERS names (`shm,tcp,rdma`), which must then be there; without it
/// all that this machine has.
pub fn providers() -> Vec<ProviderKind> {
    if let Ok(names) = std::env::var("RDMABOX_TEST_PROVIDERS") {
        return names.split(',').map(|name| name.trim().parse().unwrap()).collect();
    }
    let mut providers = vec![ProviderKind::Shm, ProviderKind::Tcp];
    match rdmabox::provider::rdma::open(&rdmabox::RdmaOptions::default()) {
        Ok(_) => providers.push(ProviderKind::Rdma),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
    providers
}

pub fn on_each_provider(test: impl Fn(Fixture)) {
    for provider in providers() {
        eprintln!("--- {provider}");
        test(Fixture::new(provider));
    }
}

/// Wakes the thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A tiny executor.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
