//! A host that exports memory and answers calls, and sessions with it.

#![allow(dead_code, missing_docs, unreachable_pub)] // Each test crate uses a part of it.

pub mod process;
pub mod tls;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rdmabox::{
    Access, Address, CallError, Export, Failed, Fencing, Host, HostHandle, Limits, Memory, Peer,
    PreMrThreshold, ProviderKind, RemoteAddr, Reply, RequestError, Service, Session, SessionOptions,
    WcStatus, admission::WindowScope, stats::StatsSnapshot,
};

pub const LEN: usize = 4 << 20;

#[derive(Default)]
pub struct Echo {
    pub export: Mutex<Option<Export>>,
    pub calls: AtomicU64,
    pub ended: AtomicU64,
    /// Of those, the ones that have not let go.
    pub clinging: AtomicU64,
    /// Runs in [`Service::disconnected`].
    pub at_the_end: Mutex<Option<Box<dyn FnMut() + Send>>>,
}

impl Service for Echo {
    fn call(&self, peer: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match request {
            b"where" => {
                let export = self.export.lock();
                let remote = peer.remote_addr(export.as_ref().unwrap());
                reply.extend_from_slice(&remote.to_le_bytes());
            }
            b"panic" => panic!("on purpose"),
            b"bad" => return Err(CallError::EndSession("malformed".into())),
            b"refuse" => return Err("not this one".into()),
            b"slow" => {
                std::thread::sleep(Duration::from_millis(5));
                reply.extend_from_slice(b"done");
            }
            other => reply.extend(other.iter().rev()),
        }
        Ok(())
    }

    fn disconnected(&self, peer: &Peer) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.clinging.fetch_add(peer.clings().into(), Ordering::SeqCst);
        if let Some(then) = &mut *self.at_the_end.lock() {
            then();
        }
    }
}

pub struct Fixture {
    pub service: Arc<Echo>,
    pub memory: Arc<Memory>,
    pub running: Option<HostHandle>,
    pub address: Address,
    pub options: SessionOptions,
    _dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new(provider: ProviderKind) -> Fixture {
        Fixture::with_memory(provider, LEN)
    }

    pub fn with_memory(provider: ProviderKind, len: usize) -> Fixture {
        Fixture::of(provider, Arc::new(Memory::shared("test", len).unwrap()))
    }

    /// Returns a host that exports this memory, as others may.
    pub fn of(provider: ProviderKind, memory: Arc<Memory>) -> Fixture {
        Fixture::fencing(provider, memory, Fencing::default())
    }

    /// Returns a host that ends the sessions of clients that are silent.
    pub fn fencing(provider: ProviderKind, memory: Arc<Memory>, fencing: Fencing) -> Fixture {
        Fixture::of_host(provider, memory, |host| host.fencing(fencing))
    }

    /// Returns a host that speaks TLS, with a client that does.
    pub fn with_tls() -> Fixture {
        let (server, client) = tls::pair(&tls::Authority::new());
        let memory = Arc::new(Memory::shared("test", LEN).unwrap());
        let mut fixture = Fixture::of_host(ProviderKind::Tcp, memory, |host| host.tls(server));
        fixture.options.tls = Some(client);
        fixture
    }

    /// Returns a host that is told more.
    pub fn of_host(provider: ProviderKind, memory: Arc<Memory>, tell: impl FnOnce(Host) -> Host) -> Fixture {
        let _ = env_logger::builder().is_test(true).try_init();
        let dir = tempfile::tempdir().unwrap();
        let host = tell(host());
        let export = host.export(&memory, Access::REMOTE_ALL).unwrap();
        let service = Arc::new(Echo::default());
        *service.export.lock() = Some(export);
        let listen = addresses(provider, dir.path());
        let running = host.listen(&listen, Arc::<Echo>::clone(&service) as Arc<dyn Service>).unwrap();
        let own = running.addresses().iter().find(|address| address.provider() == provider);
        let address = own.unwrap().clone();
        let mut options = Session::builder().provider(provider).into_options();
        // Tests count copies and registrations, and an RDMA device would measure a threshold of its
        // own.
        options.pre_mr_threshold = PreMrThreshold::Bytes(4096);
        // Other tests of this process may use the same RDMA device.
        options.window_scope = WindowScope::Session;
        if provider == ProviderKind::Rdma {
            // Where it is tested, processors are emulated and slow.
            options.connect_timeout = Duration::from_secs(60);
            options.operation_timeout = Duration::from_secs(60);
        }
        Fixture { service, memory, running: Some(running), address, options, _dir: dir }
    }

    /// Ends the host; nothing of it is left.
    pub fn end(&mut self) {
        self.running = None;
        *self.service.export.lock() = None;
    }

    pub fn connect(&self) -> Arc<Session> {
        Session::connect(&self.address, &self.options).unwrap()
    }
}

/// Returns a host that may serve RDMA devices beside the software providers.
pub fn host() -> Host {
    Host::new().unwrap().allow_mixed_atomics(true)
}

pub fn base(session: &Session) -> RemoteAddr {
    let mut reply = Vec::new();
    session.call(b"where", &mut reply).unwrap();
    RemoteAddr::from_le_bytes(reply[..].try_into().unwrap())
}

pub fn at(base: RemoteAddr, offset: usize) -> RemoteAddr {
    base.at(offset as u64)
}

/// Returns an address 4 bytes before the end of the exported memory: a longer access leaves it.
pub fn outside(base: RemoteAddr) -> RemoteAddr {
    at(base, LEN - 4)
}

/// The error of an eight-byte request that the peer refuses.
pub const REFUSED: RequestError = RequestError::Completion(WcStatus::RemAccessErr);

/// Runs `start` during a write of `len` zeros to `place`. Returns the counters from before that
/// write. With one queue pair and a window of `len` bytes, every request that `start` starts
/// waits until `start` has returned.
pub fn while_full<T: Send + 'static>(
    session: &Arc<Session>,
    place: RemoteAddr,
    len: usize,
    start: impl FnOnce(&Session) -> T + Send + 'static,
) -> (StatsSnapshot, T) {
    let (send, receive) = mpsc::channel();
    let own = Arc::clone(session);
    // In a callback nothing is polled: the write fills the window until the callback has ended.
    session.write_then(place, vec![0; 8], move |outcome| {
        outcome.unwrap();
        let before = own.stats();
        // Other requests that the callback starts leave at its end.
        let full = own.together(|| own.start_write(place, vec![0; len]));
        // A thread that combines already posts it: the one that has renewed a queue pair, for
        // example.
        while own.in_flight().0 < len as u64 {
            thread::yield_now();
        }
        send.send((before, full, start(&own))).unwrap();
    });
    let (before, full, started) = receive.recv().unwrap();
    full.wait().unwrap();
    (before, started)
}

/// Runs `load` while a processor of the host changes the word at `offset` between two values, and
/// passes them to it.
pub fn beside_a_changing_word(memory: &Memory, offset: usize, load: impl FnOnce(&[u64; 2])) {
    const VALUES: [u64; 2] = [0x0101_0101_0101_0101, 0xfefe_fefe_fefe_fefe];
    let word = memory.atomic_u64(offset);
    word.store(VALUES[0], Ordering::SeqCst);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                VALUES.iter().for_each(|value| word.store(*value, Ordering::SeqCst));
            }
        });
        load(&VALUES);
        over.store(true, Ordering::Relaxed);
    });
}

/// Takes the outcome of a started request apart: the result, and the buffer, which always comes
/// back.
pub fn split<B>(outcome: Result<B, Failed<B>>) -> (Result<(), RequestError>, B) {
    match outcome {
        Ok(buffer) => (Ok(()), buffer),
        Err(failed) => (Err(failed.error), failed.buffer.expect("the buffer comes back")),
    }
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

/// Returns the listening addresses for `provider`. RDMA hosts also listen for the software
/// providers.
pub fn addresses(provider: ProviderKind, dir: &std::path::Path) -> Vec<Address> {
    let host = || "127.0.0.1".to_owned();
    let mut addresses = vec![Address::Unix(dir.join("sock")), Address::Tcp { host: host(), port: 0 }];
    if provider == ProviderKind::Rdma {
        addresses.push(Address::Rdma { host: host(), port: 0 });
    }
    addresses
}

/// Returns the providers to test: those in RDMABOX_TEST_PROVIDERS (`shm,tcp,rdma`), which must
/// exist, or all providers of this machine.
pub fn providers() -> Vec<ProviderKind> {
    if let Ok(names) = std::env::var("RDMABOX_TEST_PROVIDERS") {
        return names.split(',').map(|name| name.trim().parse().unwrap()).collect();
    }
    let mut providers = vec![ProviderKind::Shm, ProviderKind::Tcp];
    match rdmabox::provider::rdma::open(&rdmabox::RdmaOptions::default()) {
        Ok(_) => providers.push(ProviderKind::Rdma),
        Err(reason) => eprintln!("not run over rdma: {reason}"),
    }
    providers
}

/// Runs a test over each provider. Runs it twice over shared memory: with requests executed by
/// the caller, and with posted requests.
pub fn on_each_provider(test: impl Fn(Fixture)) {
    if providers().contains(&ProviderKind::Shm) {
        eprintln!("--- shm, on the spot");
        test(Fixture::new(ProviderKind::Shm));
    }
    on_each_that_posts(test);
}

/// Runs a test of posted requests over each provider.
pub fn on_each_that_posts(test: impl Fn(Fixture)) {
    for provider in providers() {
        eprintln!("--- {provider}");
        let mut fixture = Fixture::new(provider);
        fixture.options.direct = false;
        test(fixture);
    }
}

/// Returns the default limits of a host, with a change.
pub fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}
