//! Against a real host, with a client that has nothing but its queue pairs.

use std::{
    io::{Read, Write},
    ops::Deref,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::*;
use crate::{
    memory::Memory,
    provider::soft::SoftDevice,
    rpc::QUEUE_DEPTH,
    session::{
        Export, Host, Peer, Reply, Running, Service,
        handshake::{Answer, Purpose},
    },
    verbs::{
        Access, Device, MrHandle, QpState, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus,
        WorkCompletion,
    },
};

const LEN: usize = 1 << 16;
/// What the service leaves in its memory when a session is over.
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

struct Lender {
    memory: Arc<Memory>,
    connected: AtomicU64,
    over: AtomicU64,
}

impl Service for Lender {
    fn connected(&self, _: &Peer) -> Result<(), String> {
        self.connected.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), String> {
        Err("nobody calls".into())
    }

    /// Reuses the memory at once.
    fn disconnected(&self, _: &Peer) {
        self.memory.write(0, &vec![MARK as u8; LEN]);
        self.over.fetch_add(1, Ordering::SeqCst);
    }
}

struct Fixture {
    service: Arc<Lender>,
    export: Export,
    running: Option<Running>,
    provider: ProviderKind,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(provider: ProviderKind) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let memory = Arc::new(Memory::shared("lent", LEN).unwrap());
        let host = Host::new().unwrap();
        let export = host.export(&memory, Access::REMOTE_ALL).unwrap();
        let service = Arc::new(Lender { memory, connected: AtomicU64::new(0), over: AtomicU64::new(0) });
        let unix = Address::Unix(dir.path().join("socket"));
        let tcp = Address::Tcp { host: "127.0.0.1".into(), port: 0 };
        let serving: Arc<dyn Service> = Arc::<Lender>::clone(&service);
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

    /// A session with so many data queue pairs.
    fn client(&self, lanes: usize) -> Client {
        let device = SoftDevice::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let address = self.address(self.provider);
        let mut control = Stream::connect(&address, None, Duration::ZERO, soon()).unwrap();
        let purpose = Purpose::Control { queue_pairs: lanes as u32, fetch: false, key: None };
        let (Answer { ok, token, .. }, _) =
            handshake::introduce(&mut control, purpose, None, soon()).unwrap();
        assert!(ok);
        let rejoin = Rejoin { address, token, secret: None, tls: None, pd, timeout: Duration::from_secs(60) };
        let rejoin = Joiner { rejoin, device };
        // Nobody calls: it has no receives.
        let caps = QpCaps { max_send_wr: QUEUE_DEPTH, max_recv_wr: QUEUE_DEPTH, ..QpCaps::default() };
        let cq = rejoin.device.create_cq(2 * QUEUE_DEPTH as usize).unwrap();
        let (send_cq, recv_cq) = (Arc::clone(&cq), cq);
        let calls = rejoin
            .pd
            .create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true })
            .unwrap();
        rejoin.connect(&*calls, 0, soon()).unwrap();
        let lanes = (1..=lanes).map(|index| Lane::new(&rejoin, index).unwrap()).collect();
        assert!(handshake::receive_answer(&mut control, soon()).unwrap().ok);
        Client { lanes, _calls: calls, rejoin, control }
    }
}

/// A queue pair and its completion queue.
type Joined = (Arc<dyn QueuePair>, Arc<dyn CompletionQueue>);

/// With a completion queue of its own for each queue pair.
struct Joiner {
    rejoin: Rejoin,
    device: Arc<SoftDevice>,
}

impl Joiner {
    fn join(&self, index: usize) -> Result<Joined, ConnectError> {
        let cq = self.device.create_cq((caps().max_send_wr + caps().max_recv_wr) as usize + 1).unwrap();
        let qp = self.rejoin.queue_pair(index, Arc::clone(&cq), caps(), soon())?;
        Ok((qp, cq))
    }
}

impl Deref for Joiner {
    type Target = Rejoin;

    fn deref(&self) -> &Rejoin {
        &self.rejoin
    }
}

struct Client {
    /// The first has index 1.
    lanes: Vec<Lane>,
    _calls: Arc<dyn QueuePair>,
    rejoin: Joiner,
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
    fn new(rejoin: &Joiner, index: usize) -> Result<Lane, ConnectError> {
        let (qp, cq) = rejoin.join(index)?;
        let buffer = Arc::new(Memory::private(LEN).unwrap());
        let mr = rejoin.pd.register(&buffer, 0, LEN as u64, Access::LOCAL_WRITE).unwrap();
        Ok(Lane { qp, cq, buffer, mr })
    }

    /// As a runtime does it: the old queue pair is in Err first.
    fn replace(&mut self, rejoin: &Joiner, index: usize) -> Result<(), ConnectError> {
        self.qp.to_error();
        (self.qp, self.cq) = rejoin.join(index)?;
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

/// Tells a thread to stop, also when the test fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_lane_is_rebuilt_while_another_one_carries_on() {
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
                lane.replace(&client.rejoin, 1).unwrap();
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
fn a_lane_that_breaks_ends_nothing_else_and_can_be_rebuilt() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        for round in 1..=10 {
            let wrong = RemoteAddr { rkey: f.at(0).rkey ^ 0x100, ..f.at(0) };
            assert_eq!(client.lanes[0].write(wrong, &[1; 8]), WcStatus::RemAccessErr);
            assert_eq!(client.lanes[0].write(f.at(0), &[1; 8]), WcStatus::WrFlushErr);
            client.lanes[1].works(f.at(8), round);
            client.lanes[0].replace(&client.rejoin, 1).unwrap();
            client.lanes[0].works(f.at(0), round);
            client.lanes[1].works(f.at(8), !round);
        }
        assert_eq!(f.service.over.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_lane_whose_connection_is_reset_ends_nothing_else_and_can_be_rebuilt() {
    let f = Fixture::new(ProviderKind::Tcp);
    let mut client = f.client(2);
    for round in 0..20 {
        let mut stream = join_raw(&client.rejoin, 1);
        stream.read_exact(&mut [0; 24]).unwrap();
        // Its queue pair may be up, or about to be.
        if round % 2 == 0 {
            stream.write_all(&hello()).unwrap();
        }
        let Stream::Tcp(stream) = stream else { unreachable!() };
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        client.lanes[1].works(f.at(8), round);
    }
    client.lanes[0].replace(&client.rejoin, 1).unwrap();
    client.lanes[0].works(f.at(0), 1);
    assert_eq!(f.service.over.load(Ordering::SeqCst), 0);
}

/// A queue pair's greeting, without memory.
fn hello() -> Vec<u8> {
    let mut hello = b"rdmabox\x01".to_vec();
    hello.extend(2u32.to_le_bytes());
    hello.extend(9u32.to_le_bytes());
    hello.extend(0u64.to_le_bytes());
    hello
}

/// A stream that joins and says no more.
fn join_raw(rejoin: &Rejoin, index: u32) -> Stream {
    let mut stream = Stream::connect(&rejoin.address, None, Duration::ZERO, soon()).unwrap();
    handshake::join(&mut stream, (rejoin.token, index), None, soon()).unwrap();
    stream
}

#[test]
fn streams_that_do_not_belong_are_refused_and_nobody_notices() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let client = f.client(2);
        let other = if provider == ProviderKind::Shm { ProviderKind::Tcp } else { ProviderKind::Shm };
        let right = &client.rejoin;
        let with = |address: Address, token: Token| Joiner {
            rejoin: Rejoin {
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
        for (rejoin, index) in cases {
            let error = rejoin.join(index).unwrap_err();
            // The stream is closed before or after the client has said which queue pair it is.
            assert!(matches!(error, ConnectError::Refused { .. } | ConnectError::Io { .. }), "{error}");
            for (lane, value) in client.lanes.iter().zip(1..) {
                lane.works(f.at(0), value);
            }
        }
        assert_eq!(f.service.connected.load(Ordering::SeqCst), 1);
        let Client { control, rejoin, lanes, .. } = client;
        control.shutdown();
        f.until_over(1);
        rejoin.join(1).unwrap_err();
        for lane in &lanes {
            assert_ne!(lane.write(f.at(0), &[2; 8]), WcStatus::Success);
        }
        assert_eq!(f.word(0), MARK);
    });
}

#[test]
fn a_live_queue_pair_is_replaced_and_what_was_posted_on_it_is_flushed() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(1);
        let old = client.lanes.pop().unwrap();
        old.works(f.at(0), 5);
        // The host takes no messages on it, so that this one waits for ever, and the write behind it.
        old.buffer.write(0, &[6; 8]);
        old.post(1, SendOp::Send { imm: None }, 8);
        old.post(2, SendOp::Write { remote: f.at(0), imm: None }, 8);
        let new = Lane::new(&client.rejoin, 1).unwrap();
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
fn a_shared_completion_queue_serves_the_new_one() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        let shared = client.rejoin.device.create_cq(1024).unwrap();
        for (lane, index) in client.lanes.iter_mut().zip(1..) {
            lane.qp.to_error();
            lane.qp = client.rejoin.queue_pair(index, Arc::clone(&shared), caps(), soon()).unwrap();
            lane.cq = Arc::clone(&shared);
        }
        for (lane, value) in client.lanes.iter().zip(1..) {
            lane.works(f.at(0), value);
        }
    });
}

#[test]
fn two_streams_at_a_time_join_a_place_and_the_others_do_not_wait_for_them() {
    on_each_provider(|provider| {
        let f = Fixture::new(provider);
        let mut client = f.client(2);
        client.lanes[0].qp.to_error();
        let mut first = join_raw(&client.rejoin, 1);
        // The host's new queue pair is there, and waits for this one.
        first.read_exact(&mut [0; 24]).unwrap();
        // One of these waits for that, the other one is refused; it says nothing, so that its end is clean.
        let both = [join_raw(&client.rejoin, 1), join_raw(&client.rejoin, 1)];
        let refused = loop {
            if let Some(at) = both.iter().position(Stream::is_over) {
                break at;
            }
            std::thread::yield_now();
        };
        for round in 0..20 {
            // Nor is there room for more.
            Lane::new(&client.rejoin, 1).map(|_| ()).unwrap_err();
            client.lanes[1].replace(&client.rejoin, 2).unwrap();
            client.lanes[1].works(f.at(0), round);
        }
        let [a, b] = both;
        let mut waiting = if refused == 0 { b } else { a };
        drop(first);
        waiting.read_exact(&mut [0; 24]).unwrap();
        drop(waiting);
        client.lanes[0].replace(&client.rejoin, 1).unwrap();
        client.lanes[0].works(f.at(0), 99);
    });
}

#[test]
fn a_session_ends_although_a_stream_is_joining() {
    on_each_provider(|provider| {
        let mut f = Fixture::new(provider);
        for (round, host_stops) in [(1, false), (2, true)] {
            let client = f.client(1);
            client.lanes[0].qp.to_error();
            let mut slow = join_raw(&client.rejoin, 1);
            slow.read_exact(&mut [0; 24]).unwrap();
            std::thread::scope(|scope| {
                // The host asks it to go.
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

/// Whoever rebuilds a lane while the session ends has a queue pair that is good for nothing, or none.
#[test]
fn nothing_is_written_after_the_end_by_a_lane_that_was_being_rebuilt() {
    const ROUNDS: u64 = 60;
    on_each_provider(|provider| {
        let mut f = Fixture::new(provider);
        for round in 1..=ROUNDS {
            let Client { mut lanes, _calls, rejoin, control } = f.client(1);
            let rebuilt = AtomicU64::new(0);
            std::thread::scope(|scope| {
                let rebuilder = scope.spawn(|| {
                    let lane = &mut lanes[0];
                    loop {
                        let over = f.service.over.load(Ordering::SeqCst) == round;
                        let joined = lane.replace(&rejoin, 1);
                        assert!(!(over && joined.is_ok()), "a session that is over was joined");
                        if over {
                            return;
                        }
                        // What it writes is not what the service leaves.
                        for i in 0..4 {
                            let over = f.service.over.load(Ordering::SeqCst) == round;
                            let written = lane.write(f.at(i * 8), &[0xEE; 8]);
                            assert!(!(over && written == WcStatus::Success), "written after the end");
                        }
                        rebuilt.fetch_add(1, Ordering::SeqCst);
                    }
                });
                // A different moment in every round.
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
        // The same when the host is stopped.
        let Client { mut lanes, _calls, rejoin, control } = f.client(1);
        let (stopped, service, to) = (&AtomicBool::new(false), Arc::clone(&f.service), f.at(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let lane = &mut lanes[0];
                while !stopped.load(Ordering::SeqCst) {
                    let _ = lane.replace(&rejoin, 1);
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

const CHILD: &str = "RDMABOX_REJOIN_CHILD";

/// Descriptors of this process, and mappings of shared memory in it.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

/// In a process of its own, where no other test opens anything.
#[test]
fn a_lane_that_is_rebuilt_hundreds_of_times_leaves_nothing_behind() {
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
        client.lanes[0].replace(&client.rejoin, 1).unwrap();
        client.lanes[0].works(f.at(0), 1);
        // The threads that connected the first ones may not be through.
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
            // Once in a while it is not this side that ended it.
            if round % 3 == 0 {
                let wrong = RemoteAddr { rkey: 0, ..f.at(0) };
                assert_eq!(client.lanes[0].write(wrong, &[1; 8]), WcStatus::RemAccessErr);
            }
            client.lanes[0].replace(&client.rejoin, 1).unwrap();
            client.lanes[0].works(f.at(0), round);
            client.rejoin.join(4).unwrap_err();
        }
        assert_eq!(settled(Some(before)), before, "descriptors, mappings");
    });
}
