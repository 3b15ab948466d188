//! Tests against a real host, with a client that consists only of queue pairs.

use std::{
    io::{Read, Write},
    ops::Deref,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::*;
use crate::{
    mapping::Memory,
    provider::soft::SoftDevice,
    rpc::{CallError, QUEUE_DEPTH, Reply},
    session::{
        handshake::{Answer, Purpose},
        host::{Export, Host, HostHandle, Peer, Service},
    },
    verbs::{
        Access, Device, MrHandle, QpState, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
        WorkCompletion,
    },
};

const LEN: usize = 1 << 16;
/// Byte pattern that the service writes into its memory after a session.
const MARK: u64 = 0x0101_0101_0101_0101;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn on_each_provider(test: impl Fn(ProviderKind)) {
    let _ = env_logger::builder().is_test(true).try_init();
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        eprintln!("--- {provider}");
        test(provider);
    }
}

struct MemoryServer {
    memory: Arc<Memory>,
    connected: AtomicU64,
    over: AtomicU64,
}

impl Service for MemoryServer {
    fn connected(&self, _: &Peer) -> Result<(), String> {
        self.connected.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
        Err(CallError::EndSession("unexpected call".into()))
    }

    /// Reuses the session's memory immediately.
    fn disconnected(&self, _: &Peer) {
        self.memory.write(0, &vec![MARK as u8; LEN]);
        self.over.fetch_add(1, Ordering::SeqCst);
    }
}

struct Fixture {
    service: Arc<MemoryServer>,
    export: Export,
    running: Option<HostHandle>,
    provider: ProviderKind,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(provider: ProviderKind) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(Memory::shared("lent", LEN).unwrap());
        let host = Host::new().unwrap();
        let export = host.export(&memory, Access::REMOTE_ALL).unwrap();
        let service =
            Arc::new(MemoryServer { memory, connected: AtomicU64::new(0), over: AtomicU64::new(0) });
        let unix = Address::Unix(dir.path().join("socket"));
        let tcp = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        let serving: Arc<dyn Service> = Arc::<MemoryServer>::clone(&service);
        let running = Some(host.listen(&[unix, tcp], serving).unwrap());
        Fixture { service, export, running, provider, _dir: dir }
    }

    fn address(&self, provider: ProviderKind) -> Address {
        let at = usize::from(provider == ProviderKind::Tcp);
        self.running.as_ref().unwrap().addresses()[at].clone()
    }

    fn at(&self, offset: usize) -> RemoteAddr {
        let region = &self.export.0.region;
        RemoteAddr { addr: region.addr() + offset as u64, rkey: region.rkey() }
    }

    fn word(&self, offset: usize) -> u64 {
        self.service.memory.load_u64(offset)
    }

    fn until_over(&self, sessions: u64) {
        while self.service.over.load(Ordering::SeqCst) < sessions {
            std::thread::yield_now();
        }
    }

    /// Opens a session with `lanes` data queue pairs.
    fn client(&self, lanes: usize) -> Client {
        let device = SoftDevice::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let address = self.address(self.provider);
        let mut control = Stream::connect(&address, None, Duration::ZERO, soon()).unwrap();
        let purpose = Purpose::Control { queue_pairs: lanes as u32, fetch: false, key: None };
        let (Answer { ok, token, .. }, _) =
            handshake::introduce(&mut control, purpose, None, soon()).unwrap();
        assert!(ok);
        let connector =
            QpConnector { address, token, secret: None, tls: None, pd, timeout: Duration::from_secs(60) };
        let connector = Joiner { connector, device };
        // The test makes no calls, so this queue pair has no receives.
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let cq = connector.device.create_cq(2 * QUEUE_DEPTH as usize).unwrap();
        let (send_cq, recv_cq) = (Arc::clone(&cq), cq);
        let calls = connector
            .pd
            .create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true })
            .unwrap();
        connector.connect(&*calls, 0, soon()).unwrap();
        let lanes = (1..=lanes).map(|index| Lane::new(&connector, index).unwrap()).collect();
        assert!(handshake::receive_answer(&mut control, soon()).unwrap().ok);
        Client { lanes, _calls: calls, connector, control }
    }
}

/// A queue pair and its completion queue.
type Joined = (Arc<dyn QueuePair>, Arc<dyn CompletionQueue>);

/// Connects queue pairs with one completion queue each.
struct Joiner {
    connector: QpConnector,
    device: Arc<SoftDevice>,
}

impl Joiner {
    fn join(&self, index: usize) -> Result<Joined, ConnectError> {
        let cq = self.device.create_cq((caps().max_send_wr + caps().max_recv_wr) as usize + 1).unwrap();
        let qp = self.connector.queue_pair(index, Arc::clone(&cq), caps(), soon())?;
        Ok((qp, cq))
    }
}

impl Deref for Joiner {
    type Target = QpConnector;

    fn deref(&self) -> &QpConnector {
        &self.connector
    }
}

struct Client {
    /// The first lane has index 1.
    lanes: Vec<Lane>,
    _calls: Arc<dyn QueuePair>,
    connector: Joiner,
    control: Stream,
}

struct Lane {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    buffer: Arc<Memory>,
    mr: MrHandle,
}

fn caps() -> QpCaps {
    QpCaps { max_recv_wr: 1, ..QpCaps::default() }
}

impl Lane {
    fn new(connector: &Joiner, index: usize) -> Result<Lane, ConnectError> {
        let (qp, cq) = connector.join(index)?;
        let buffer = Arc::new(Memory::private(LEN).unwrap());
        let mr = connector.pd.register(&buffer, 0, LEN as u64, Access::LOCAL_WRITE).unwrap();
        Ok(Lane { qp, cq, buffer, mr })
    }

    /// Replaces the queue pair as a runtime does: the old one is in Err first.
    fn replace(&mut self, connector: &Joiner, index: usize) -> Result<(), ConnectError> {
        self.qp.to_error();
        (self.qp, self.cq) = connector.join(index)?;
        Ok(())
    }

    fn post(&self, wr_id: u64, op: SendOp, len: u32) {
        let sges = [Sge { addr: self.mr.addr(), length: len, lkey: self.mr.lkey() }];
        let wr = SendWr { wr_id, op, sges: &sges, inline: None, flags: SendFlags::SIGNALED };
        self.qp.post_send(&[wr]).unwrap();
    }

    fn completion(&self) -> WorkCompletion {
        let mut wc = [WorkCompletion::EMPTY];
        while self.cq.poll(&mut wc).unwrap() == 0 {
            std::thread::yield_now();
        }
        wc[0]
    }

    fn run(&self, op: SendOp, len: usize) -> WcStatus {
        self.post(7, op, len as u32);
        let wc = self.completion();
        assert_eq!(wc.wr_id, 7);
        wc.status
    }

    fn write(&self, remote: RemoteAddr, bytes: &[u8]) -> WcStatus {
        self.buffer.write(0, bytes);
        self.run(SendOp::Write { remote, imm: None }, bytes.len())
    }

    fn read(&self, remote: RemoteAddr, out: &mut [u8]) -> WcStatus {
        let status = self.run(SendOp::Read { remote }, out.len());
        self.buffer.read(0, out);
        status
    }

    /// Writes a word and reads it back.
    fn works(&self, remote: RemoteAddr, value: u64) {
        assert_eq!(self.write(remote, &value.to_ne_bytes()), WcStatus::Success);
        let mut back = [0; 8];
        assert_eq!(self.read(remote, &mut back), WcStatus::Success);
        assert_eq!(u64::from_ne_bytes(back), value);
    }
}

/// Stops a thread when dropped, even if the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_queue_pair_is_replaced_while_another_one_continues() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        let other = client.lanes.pop().unwrap();
        let (stop, used) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    other.works(f.at(8), used.fetch_add(1, Ordering::SeqCst));
                }
            });
            let _stop = StopAtEnd(&stop);
            let lane = &mut client.lanes[0];
            for round in 1..=50 {
                let before = used.load(Ordering::SeqCst);
                lane.replace(&client.connector, 1).unwrap();
                lane.works(f.at(0), round);
                assert_eq!(f.word(0), round);
                while used.load(Ordering::SeqCst) == before {
                    std::thread::yield_now();
                }
            }
        });
        assert_eq!(f.service.connected.load(Ordering::SeqCst), 1);
        assert_eq!(f.service.over.load(Ordering::SeqCst), 0);
        drop(client);
        f.until_over(1);
    });
}

#[test]
fn a_broken_queue_pair_ends_no_other_and_can_be_replaced() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        for round in 1..=10 {
            let wrong = RemoteAddr { rkey: f.at(0).rkey ^ 0x100, ..f.at(0) };
            assert_eq!(client.lanes[0].write(wrong, &[1; 8]), WcStatus::RemAccessErr);
            assert_eq!(client.lanes[0].write(f.at(0), &[1; 8]), WcStatus::WrFlushErr);
            client.lanes[1].works(f.at(8), round);
            client.lanes[0].replace(&client.connector, 1).unwrap();
            client.lanes[0].works(f.at(0), round);
            client.lanes[1].works(f.at(8), !round);
        }
        assert_eq!(f.service.over.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_reset_connection_ends_no_other_queue_pair_and_can_be_replaced() {
    let f = Fixture::new(ProviderKind::Tcp);
    let mut client = f.client(2);
    for round in 0..20 {
        let mut stream = join_raw(&client.connector, 1);
        stream.read_exact(&mut [0; 24]).unwrap();
        // The host's queue pair may be connected, or about to be.
        if round % 2 == 0 {
            stream.write_all(&hello()).unwrap();
        }
        let Stream::Tcp(stream) = stream else { unreachable!() };
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        client.lanes[1].works(f.at(8), round);
    }
    client.lanes[0].replace(&client.connector, 1).unwrap();
    client.lanes[0].works(f.at(0), 1);
    assert_eq!(f.service.over.load(Ordering::SeqCst), 0);
}

/// Returns the greeting of a queue pair without memory.
fn hello() -> Vec<u8> {
    let mut hello = b"rdmabox\x01".to_vec();
    hello.extend(3u32.to_le_bytes());
    hello.extend(9u32.to_le_bytes());
    hello.extend(0u64.to_le_bytes());
    hello
}

/// Joins a stream and sends nothing more.
fn join_raw(connector: &QpConnector, index: u32) -> Stream {
    let mut stream = Stream::connect(&connector.address, None, Duration::ZERO, soon()).unwrap();
    handshake::join(&mut stream, (connector.token, index), None, soon()).unwrap();
    stream
}

#[test]
fn foreign_streams_are_refused_without_an_effect_on_the_session() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let client = f.client(2);
        let other = if provider == ProviderKind::Shm { ProviderKind::Tcp } else { ProviderKind::Shm };
        let right = &client.connector;
        let with = |address: Address, token: Token| Joiner {
            connector: QpConnector {
                address,
                token,
                secret: None,
                tls: None,
                pd: Arc::clone(&right.pd),
                timeout: right.timeout,
            },
            device: Arc::clone(&right.device),
        };
        let unknown = with(right.address.clone(), Token::random().unwrap());
        let crossed = with(f.address(other), right.token);
        let cases =
            [(&unknown, 1), (&crossed, 1), (right, 0), (right, 4), (right, u32::MAX as usize), (&crossed, 0)];
        for (connector, index) in cases {
            use ConnectError::{Device, Io, Refused};
            let error = connector.join(index).unwrap_err();
            // The host may close the stream before or after it reads the preamble.
            assert!(matches!(error, Refused { .. } | Io { .. } | Device { .. }), "{error}");
            for (lane, value) in client.lanes.iter().zip(1..) {
                lane.works(f.at(0), value);
            }
        }
        assert_eq!(f.service.connected.load(Ordering::SeqCst), 1);
        let Client { control, connector, lanes, .. } = client;
        control.shutdown();
        f.until_over(1);
        connector.join(1).unwrap_err();
        for lane in &lanes {
            assert_ne!(lane.write(f.at(0), &[2; 8]), WcStatus::Success);
        }
        assert_eq!(f.word(0), MARK);
    });
}

#[test]
fn a_replaced_live_queue_pair_flushes_its_requests() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(1);
        let old = client.lanes.pop().unwrap();
        old.works(f.at(0), 5);
        // The host posts no receives there, so this SEND waits without limit, and the write waits
        // behind it.
        old.buffer.write(0, &[6; 8]);
        old.post(1, SendOp::Send { imm: None }, 8);
        old.post(2, SendOp::Write { remote: f.at(0), imm: None }, 8);
        let new = Lane::new(&client.connector, 1).unwrap();
        new.works(f.at(8), 7);
        let (first, second) = (old.completion(), old.completion());
        assert_eq!((first.wr_id, second.wr_id), (1, 2));
        assert!(matches!(first.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr), "{first:?}");
        assert_eq!(second.status, WcStatus::WrFlushErr);
        assert_eq!(old.qp.state(), QpState::Err);
        assert_eq!(old.write(f.at(0), &[6; 8]), WcStatus::WrFlushErr);
        assert_eq!((f.word(0), f.word(8)), (5, 7));
    });
}

#[test]
fn a_shared_completion_queue_serves_the_replacement() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        let shared = client.connector.device.create_cq(1024).unwrap();
        for (lane, index) in client.lanes.iter_mut().zip(1..) {
            lane.qp.to_error();
            lane.qp = client.connector.queue_pair(index, Arc::clone(&shared), caps(), soon()).unwrap();
            lane.cq = Arc::clone(&shared);
        }
        for (lane, value) in client.lanes.iter().zip(1..) {
            lane.works(f.at(0), value);
        }
    });
}

#[test]
fn two_streams_at_a_time_join_an_index_and_other_indices_are_not_delayed() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        client.lanes[0].qp.to_error();
        let mut first = join_raw(&client.connector, 1);
        // Reads the greeting of the host's new queue pair, which now waits for the client's.
        first.read_exact(&mut [0; 24]).unwrap();
        // One of these streams waits, and the host refuses the other. Both send nothing, so the
        // host's close is not a reset.
        let both = [join_raw(&client.connector, 1), join_raw(&client.connector, 1)];
        let refused = loop {
            if let Some(at) = both.iter().position(Stream::is_over) {
                break at;
            }
            std::thread::yield_now();
        };
        for round in 0..20 {
            // Further streams are refused, too.
            Lane::new(&client.connector, 1).map(|_| ()).unwrap_err();
            client.lanes[1].replace(&client.connector, 2).unwrap();
            client.lanes[1].works(f.at(0), round);
        }
        let [a, b] = both;
        let mut waiting = if refused == 0 { b } else { a };
        drop(first);
        waiting.read_exact(&mut [0; 24]).unwrap();
        drop(waiting);
        client.lanes[0].replace(&client.connector, 1).unwrap();
        client.lanes[0].works(f.at(0), 99);
    });
}

#[test]
fn a_session_ends_while_a_stream_is_joining() {
    on_each_provider(|provider| {
        let mut f = Fixture::new(provider);
        for (round, host_stops) in [(1, false), (2, true)] {
            let client = f.client(1);
            client.lanes[0].qp.to_error();
            let mut slow = join_raw(&client.connector, 1);
            slow.read_exact(&mut [0; 24]).unwrap();
            std::thread::scope(|scope| {
                // The host asks the client to release the queue pair.
                scope.spawn(move || assert_eq!(slow.read(&mut [0]).unwrap(), 0));
                if host_stops {
                    drop(f.running.take());
                    assert_eq!(f.service.over.load(Ordering::SeqCst), round);
                } else {
                    client.control.shutdown();
                    f.until_over(round);
                }
            });
        }
    });
}

/// A replacement that races with the session's end yields an unusable queue pair or an error.
#[test]
fn a_replacement_that_races_with_the_end_writes_nothing_after_it() {
    const ROUNDS: u64 = 60;
    on_each_provider(|provider| {
        let mut f = Fixture::new(provider);
        for round in 1..=ROUNDS {
            let Client { mut lanes, _calls, connector, control } = f.client(1);
            let rebuilt = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let rebuilder = scope.spawn(|| {
                    let lane = &mut lanes[0];
                    loop {
                        let over = f.service.over.load(Ordering::SeqCst) == round;
                        let joined = lane.replace(&connector, 1);
                        assert!(!(over && joined.is_ok()), "a session that is over was joined");
                        if over {
                            return;
                        }
                        // These writes differ from the service's pattern.
                        for i in 0..4 {
                            let over = f.service.over.load(Ordering::SeqCst) == round;
                            let written = lane.write(f.at(i * 8), &[0xEE; 8]);
                            assert!(!(over && written == WcStatus::Success), "written after the end");
                        }
                        rebuilt.fetch_add(1, Ordering::SeqCst);
                    }
                });
                // Ends the session at a different moment in each round.
                while rebuilt.load(Ordering::SeqCst) < round % 7 && !rebuilder.is_finished() {
                    std::thread::yield_now();
                }
                for _ in 0..round * 50 {
                    std::hint::spin_loop();
                }
                control.shutdown();
                f.until_over(round);
                for i in 0..4 {
                    assert_eq!(f.word(i * 8), MARK, "round {round}");
                }
            });
            for i in 0..4 {
                assert_eq!(f.word(i * 8), MARK, "round {round}");
            }
        }
        assert_eq!(f.service.connected.load(Ordering::SeqCst), ROUNDS);
        // Repeats the race with a stopping host.
        let Client { mut lanes, _calls, connector, control } = f.client(1);
        let (stopped, service, to) = (&AtomicBool::new(false), Arc::clone(&f.service), f.at(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let lane = &mut lanes[0];
                while !stopped.load(Ordering::SeqCst) {
                    let _ = lane.replace(&connector, 1);
                    let over = service.over.load(Ordering::SeqCst) > ROUNDS;
                    let written = lane.write(to, &[0xEE; 8]);
                    assert!(!(over && written == WcStatus::Success), "written after the end");
                }
            });
            drop(f.running.take());
            assert_eq!(f.service.over.load(Ordering::SeqCst), ROUNDS + 1);
            assert_eq!(f.word(0), MARK);
            stopped.store(true, Ordering::SeqCst);
        });
        assert_eq!(f.word(0), MARK);
        drop(control);
    });
}

const CHILD: &str = "RDMABOX_QP_CONNECTOR_CHILD";

/// Returns the number of descriptors and of shared memory mappings of this process.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

/// Runs in a process of its own, because other tests open descriptors.
#[test]
fn hundreds_of_replacements_leak_nothing() {
    if std::env::var_os(CHILD).is_none() {
        let name = std::thread::current().name().unwrap().to_owned();
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert!(child.success());
        return;
    }
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        client.lanes[0].replace(&client.connector, 1).unwrap();
        client.lanes[0].works(f.at(0), 1);
        // The threads that connected the first queue pairs may still be running.
        let give_up = soon();
        let settled = |expected: Option<(usize, usize)>| {
            let mut last = held();
            while Instant::now() < give_up {
                if expected == Some(last) {
                    return last;
                }
                std::thread::sleep(Duration::from_millis(20));
                let now = held();
                if expected.is_none() && now == last {
                    return last;
                }
                last = now;
            }
            last
        };
        let before = settled(None);
        for round in 0..300 {
            // In some rounds the host ends the queue pair first.
            if round % 3 == 0 {
                let wrong = RemoteAddr { rkey: 0, ..f.at(0) };
                assert_eq!(client.lanes[0].write(wrong, &[1; 8]), WcStatus::RemAccessErr);
            }
            client.lanes[0].replace(&client.connector, 1).unwrap();
            client.lanes[0].works(f.at(0), round);
            client.connector.join(4).unwrap_err();
        }
        assert_eq!(settled(Some(before)), before, "descriptors, mappings");
    });
}
