//! Two queue pairs on two devices of one process, which stand for two hosts, and shared helpers.
//!
//! A side may progress only when it is polled, so every wait polls both sides. Polled completions
//! are kept until a test asks for them. A wait ends with a panic after [`WAIT_LIMIT`]; no result
//! depends on the clock.

use std::{
    collections::VecDeque,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::{
    memory::Memory,
    provider::{
        model::{CardParameters, ModelDevice, ModelledCard, Timing},
        rdma::{self, RdmaOptions},
        soft::SoftDevice,
    },
    tls::{TlsClient, TlsServer, TlsStream},
    verbs::{
        Access, CompletionQueue, Device, MrHandle, PostError, Progress, ProtectionDomain, QpCaps, QpInit,
        QueuePair, RecvWr, RemoteAddr, Rendezvous, SendFlags, SendOp, SendWr, Sge, VerbsError,
        WorkCompletion,
    },
};

use crate::tls;

/// Longer than anything takes that works.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Bytes around a guarded buffer.
pub(crate) const GUARD: usize = 4096;
const GUARD_BYTE: u8 = 0xa5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provider {
    Shm,
    Tcp,
    /// TCP with TLS.
    Tls,
    /// A modelled card over mapped memory.
    ModelShm,
    /// A modelled card over TCP.
    ModelTcp,
    /// An RDMA device of this machine.
    Rdma,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) provider: Provider,
    pub(crate) progress: Progress,
}

impl Config {
    pub(crate) const SHM_ENGINE: Config = Config { provider: Provider::Shm, progress: Progress::Engine };
    pub(crate) const SHM_CALLER: Config = Config { provider: Provider::Shm, progress: Progress::Caller };
    pub(crate) const TCP_ENGINE: Config = Config { provider: Provider::Tcp, progress: Progress::Engine };
    pub(crate) const TCP_CALLER: Config = Config { provider: Provider::Tcp, progress: Progress::Caller };
    pub(crate) const TLS_ENGINE: Config = Config { provider: Provider::Tls, progress: Progress::Engine };
    pub(crate) const TLS_CALLER: Config = Config { provider: Provider::Tls, progress: Progress::Caller };
    pub(crate) const MODEL_SHM: Config = Config { provider: Provider::ModelShm, progress: Progress::Engine };
    pub(crate) const MODEL_TCP: Config = Config { provider: Provider::ModelTcp, progress: Progress::Engine };
    pub(crate) const RDMA: Config = Config { provider: Provider::Rdma, progress: Progress::Engine };

    /// Returns the configuration for RDMA.
    ///
    /// # Panics
    /// If this machine has no RDMA device.
    pub(crate) fn rdma() -> Config {
        if let Err(reason) = rdma::open(&RdmaOptions::default()) {
            panic!("this test needs an RDMA device: {reason}");
        }
        Config::RDMA
    }

    /// Returns two connected streams for a rendezvous.
    pub(crate) fn streams(self) -> (Rendezvous, Rendezvous) {
        match self.provider {
            Provider::Shm | Provider::ModelShm => {
                let (a, b) = UnixStream::pair().expect("socketpair");
                (Rendezvous::Unix(a), Rendezvous::Unix(b))
            }
            Provider::Tcp | Provider::ModelTcp | Provider::Rdma => {
                let (a, b) = tcp_pair();
                (Rendezvous::Tcp(a), Rendezvous::Tcp(b))
            }
            Provider::Tls => {
                let (a, b) = tls_pair(tcp_pair());
                (Rendezvous::Tls(a), Rendezvous::Tls(b))
            }
        }
    }

    /// Returns true if everything goes over TCP.
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self.provider, Provider::Tcp | Provider::Tls | Provider::ModelTcp)
    }

    /// Returns true if one-sided requests complete without polling on the peer's side.
    pub(crate) fn peer_may_sleep(self) -> bool {
        !self.is_tcp() || self.progress == Progress::Engine
    }
}

pub(crate) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let a = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

/// Performs a TLS handshake over a pair of streams.
pub(crate) fn tls_pair((a, b): (TcpStream, TcpStream)) -> (TlsStream, TlsStream) {
    // Making certificates takes longer than most tests.
    static SIDES: LazyLock<(Arc<TlsServer>, TlsClient)> = LazyLock::new(|| tls::pair(&tls::Authority::new()));
    let (server, client) = &*SIDES;
    let deadline = Instant::now() + WAIT_LIMIT;
    thread::scope(|scope| {
        let b = scope.spawn(|| server.accept_stream(b, deadline).expect("accepted"));
        let a = client.connect(a, "localhost", deadline).expect("connected");
        (a, b.join().expect("no panic"))
    })
}

/// How to make a pair.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) caps: QpCaps,
    pub(crate) cq_depth: usize,
    pub(crate) recv_cq_depth: usize,
    /// One completion queue for both directions.
    pub(crate) one_cq: bool,
    /// The peer's memory is wanted.
    pub(crate) maps: bool,
}

impl Setup {
    pub(crate) fn new(config: Config) -> Setup {
        Setup {
            config,
            caps: QpCaps::default(),
            cq_depth: 1024,
            recv_cq_depth: 1024,
            one_cq: false,
            maps: true,
        }
    }

    pub(crate) fn caps(self, caps: QpCaps) -> Setup {
        Setup { caps, ..self }
    }

    /// Changes the sizes of the queue pair.
    pub(crate) fn change_caps(mut self, change: impl FnOnce(&mut QpCaps)) -> Setup {
        change(&mut self.caps);
        self
    }

    /// Sets the length of the queues to `sends` and `recvs` requests.
    pub(crate) fn queues(self, sends: u32, recvs: u32) -> Setup {
        self.change_caps(|caps| (caps.max_send_wr, caps.max_recv_wr) = (sends, recvs))
    }

    pub(crate) fn one_cq(self) -> Setup {
        Setup { one_cq: true, ..self }
    }

    pub(crate) fn maps_nothing(self) -> Setup {
        Setup { maps: false, ..self }
    }

    pub(crate) fn recv_cq_depth(self, depth: usize) -> Setup {
        Setup { recv_cq_depth: depth, ..self }
    }

    /// Returns a side with a device of its own, not connected.
    pub(crate) fn side(&self) -> Side {
        let device: Arc<dyn Device> = match self.config.provider {
            Provider::Shm | Provider::Tcp | Provider::Tls => SoftDevice::new().expect("device"),
            Provider::ModelShm | Provider::ModelTcp => {
                // A completion is later than the switch of a thread.
                let card = ModelledCard::new(CardParameters::cx3(), Timing::Dilated(50));
                Arc::new(ModelDevice::new(SoftDevice::new().expect("device"), card))
            }
            Provider::Rdma => rdma::open(&RdmaOptions::default()).expect("device"),
        };
        let pd = device.alloc_pd().expect("protection domain");
        let cq = device.create_cq(self.cq_depth).expect("completion queue");
        let recv_cq = match self.one_cq {
            true => cq.clone(),
            false => device.create_cq(self.recv_cq_depth).expect("completion queue"),
        };
        let qp = self.qp(&pd, &cq, &recv_cq);
        Side {
            device,
            pd,
            cq,
            recv_cq,
            qp,
            one_cq: self.one_cq,
            sends: Mutex::default(),
            recvs: Mutex::default(),
        }
    }

    pub(crate) fn qp(
        &self,
        pd: &Arc<dyn ProtectionDomain>,
        send_cq: &Arc<dyn CompletionQueue>,
        recv_cq: &Arc<dyn CompletionQueue>,
    ) -> Arc<dyn QueuePair> {
        let mut init = QpInit::new(send_cq.clone(), recv_cq.clone());
        (init.caps, init.progress, init.maps) = (self.caps, self.config.progress, self.maps);
        pd.create_qp(init).expect("queue pair")
    }

    /// Returns two sides, not connected.
    pub(crate) fn apart(&self) -> Pair {
        Pair { a: self.side(), b: self.side(), config: self.config }
    }

    /// Returns two connected sides.
    pub(crate) fn pair(&self) -> Pair {
        let pair = self.apart();
        pair.connect();
        pair
    }
}

/// Returns a connected pair with everything at its default.
pub(crate) fn pair(config: Config) -> Pair {
    Setup::new(config).pair()
}

/// Connects two queue pairs to each other.
pub(crate) fn connect(config: Config, a: &Arc<dyn QueuePair>, b: &Arc<dyn QueuePair>) {
    let (to_b, to_a) = config.streams();
    thread::scope(|scope| {
        let other = scope.spawn(|| b.connect(to_a, WAIT_LIMIT));
        a.connect(to_b, WAIT_LIMIT).expect("connect");
        other.join().expect("no panic").expect("connect");
    });
}

/// One host.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) recv_cq: Arc<dyn CompletionQueue>,
    pub(crate) qp: Arc<dyn QueuePair>,
    one_cq: bool,
    /// Polled and not asked for yet. With one completion queue everything is in `sends`.
    sends: Mutex<VecDeque<WorkCompletion>>,
    recvs: Mutex<VecDeque<WorkCompletion>>,
}

fn drain(cq: &Arc<dyn CompletionQueue>, into: &Mutex<VecDeque<WorkCompletion>>) {
    let mut into = into.lock();
    let mut out = [WorkCompletion::EMPTY; 32];
    loop {
        let found = cq.poll(&mut out).expect("poll");
        if found == 0 {
            return;
        }
        into.extend(&out[..found]);
    }
}

impl Side {
    /// Polls all present completions.
    pub(crate) fn pump(&self) {
        drain(&self.cq, &self.sends);
        if !self.one_cq {
            drain(&self.recv_cq, &self.recvs);
        }
    }

    pub(crate) fn take_send(&self) -> Option<WorkCompletion> {
        self.sends.lock().pop_front()
    }

    pub(crate) fn take_recv(&self) -> Option<WorkCompletion> {
        self.recvs.lock().pop_front()
    }

    /// Returns everything polled so far and not asked for yet.
    pub(crate) fn pending(&self) -> Vec<WorkCompletion> {
        self.sends.lock().iter().chain(self.recvs.lock().iter()).copied().collect()
    }

    /// Returns a zeroed buffer of shareable memory.
    pub(crate) fn buf(&self, len: usize, access: Access) -> Buf {
        let memory = Arc::new(Memory::shared("conformance", len).expect("memory"));
        let mr = self.pd.register(&memory, 0, len as u64, access).expect("register");
        Buf { memory, mr, start: 0, len }
    }

    /// Returns a zeroed buffer that this side's requests may use, in private memory.
    pub(crate) fn local(&self, len: usize) -> Buf {
        let memory = Arc::new(Memory::private(len).expect("memory"));
        let mr = self.pd.register(&memory, 0, len as u64, Access::LOCAL_WRITE).expect("register");
        Buf { memory, mr, start: 0, len }
    }

    /// Returns a local buffer with contents.
    pub(crate) fn filled(&self, data: &[u8]) -> Buf {
        let buf = self.local(data.len());
        buf.set(0, data);
        buf
    }

    /// Returns a zeroed buffer inside a memory whose other bytes are known.
    pub(crate) fn guarded(&self, len: usize, access: Access) -> Buf {
        let memory = Arc::new(Memory::shared("conformance", len + 2 * GUARD).expect("memory"));
        memory.write(0, &[GUARD_BYTE; GUARD]);
        memory.write(GUARD + len, &[GUARD_BYTE; GUARD]);
        let mr = self.pd.register(&memory, GUARD as u64, len as u64, access).expect("register");
        Buf { memory, mr, start: GUARD, len }
    }

    /// Posts sends that must be taken.
    pub(crate) fn post(&self, list: &[SendWr<'_>]) {
        self.qp.post_send(list).expect("post_send");
    }

    /// Posts one receive that must be taken.
    pub(crate) fn recv(&self, wr_id: u64, sges: &[Sge]) {
        self.qp.post_recv(&[RecvWr { wr_id, sges }]).expect("post_recv");
    }
}

/// Registered memory of a test.
#[derive(Debug)]
pub(crate) struct Buf {
    pub(crate) memory: Arc<Memory>,
    pub(crate) mr: MrHandle,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Buf {
    /// Returns the same bytes, deregistered and then registered anew.
    pub(crate) fn replaced(self, register: impl FnOnce() -> Result<MrHandle, VerbsError>) -> Buf {
        let Buf { memory, mr, start, len } = self;
        drop(mr);
        Buf { memory, mr: register().expect("register"), start, len }
    }

    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// Returns one element for the whole buffer.
    pub(crate) fn all(&self) -> Sge {
        self.sge(0, self.len)
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }

    pub(crate) fn set(&self, offset: usize, data: &[u8]) {
        self.memory.write(self.start + offset, data);
    }

    pub(crate) fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(self.start + offset, &mut out);
        out
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        self.get(0, self.len)
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        self.memory.load_u64(self.start + offset)
    }

    /// Panics if a byte around a guarded buffer changed.
    pub(crate) fn assert_guards(&self) {
        assert_eq!(self.start, GUARD, "a guarded buffer");
        let mut around = vec![0; GUARD];
        for at in [0, GUARD + self.len] {
            self.memory.read(at, &mut around);
            assert!(around.iter().all(|&byte| byte == GUARD_BYTE), "bytes outside the region changed");
        }
    }

    /// Panics if a byte of a zeroed guarded buffer, or around it, changed.
    pub(crate) fn assert_untouched(&self) {
        self.assert_guards();
        assert!(self.contents().iter().all(|&byte| byte == 0), "refused requests must not touch memory");
    }
}

/// Two hosts.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) config: Config,
}

impl Pair {
    pub(crate) fn connect(&self) {
        connect(self.config, &self.a.qp, &self.b.qp);
    }

    pub(crate) fn pump(&self) {
        self.a.pump();
        self.b.pump();
    }

    /// Polls both sides until there is an answer.
    pub(crate) fn until<T>(&self, what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
        until(what, || {
            self.pump();
            ready()
        })
    }

    /// Returns the next completion of a send work request of `side`.
    pub(crate) fn sent(&self, side: &Side) -> WorkCompletion {
        self.until("the completion of a send work request", || side.take_send())
    }

    /// Returns the next completion of a receive of `side`.
    pub(crate) fn received(&self, side: &Side) -> WorkCompletion {
        self.until("the completion of a receive", || side.take_recv())
    }

    /// Posts one request on `a` and waits for its completion.
    pub(crate) fn run(&self, wr: SendWr<'_>) -> WorkCompletion {
        self.a.post(&[wr]);
        let wc = self.sent(&self.a);
        assert_eq!((wc.wr_id, wc.qp_num), (wr.wr_id, self.a.qp.qp_num()));
        wc
    }

    /// Polls both sides often, and panics if anything completes.
    pub(crate) fn assert_quiet(&self) {
        for _ in 0..500 {
            self.pump();
            thread::yield_now();
        }
        assert_eq!(self.a.pending(), []);
        assert_eq!(self.b.pending(), []);
    }
}

/// Tries until there is an answer.
pub(crate) fn until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < WAIT_LIMIT, "waited in vain for {what}");
        thread::yield_now();
    }
}

/// Returns a signaled request.
pub(crate) fn signaled<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr::new(wr_id, op, sges)
}

/// Returns an unsignaled request.
pub(crate) fn unsignaled<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr::new(wr_id, op, sges).with_flags(SendFlags::empty())
}

pub(crate) fn write(remote: RemoteAddr) -> SendOp {
    SendOp::Write { remote, imm: None }
}

pub(crate) fn read(remote: RemoteAddr) -> SendOp {
    SendOp::Read { remote }
}

pub(crate) const SEND: SendOp = SendOp::Send { imm: None };

/// Returns bytes that differ everywhere and from one seed to the next.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A small generator (splitmix64): the same numbers in every run.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// Returns the reason why a post must be refused.
#[track_caller]
pub(crate) fn refused(result: Result<(), PostError>) -> PostError {
    result.expect_err("the post is refused")
}
