//! Tests of a peer in a separate process that dies without notice.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::{
        fd::{AsFd, FromRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use rdmabox::{
    tls::{TlsClient, TlsServer, TlsServerFiles},
    verbs::{Access, Progress, QpState, RemoteAddr, Rendezvous, WcStatus},
};
use socket2::Socket;

use crate::fixture::{
    Buf, Config, Provider, SEND, Setup, Side, WAIT_LIMIT, pattern, read, signaled, tcp_pair, unsignaled,
    until, write,
};
use crate::tls::{Authority, NAMES};

conformance! {
    another_process_serves_its_memory,
    a_killed_peer_fails_what_is_outstanding,
    a_killed_peer_fails_an_idle_queue_pair,
    a_peer_killed_in_the_middle_of_large_requests,
}

const CHILD: &str = "RDMABOX_CONFORMANCE_CHILD";
/// Where its certificate and its private key are, but for the ends of their names.
const CERTIFICATE: &str = "RDMABOX_CONFORMANCE_CERTIFICATE";
const LEN: usize = 8 << 20;

/// The child's part; a test only in order to be found in this binary.
#[test]
#[ignore = "runs as the peer process of the other tests"]
fn child() {
    let Ok(role) = std::env::var(CHILD) else { return };
    let config = match role.as_str() {
        "shm_engine" => Config::SHM_ENGINE,
        "shm_caller" => Config::SHM_CALLER,
        "tcp_engine" => Config::TCP_ENGINE,
        "tls_engine" => Config::TLS_ENGINE,
        "tls_caller" => Config::TLS_CALLER,
        "model_shm" => Config::MODEL_SHM,
        "model_tcp" => Config::MODEL_TCP,
        "rdma" => Config::RDMA,
        _ => Config::TCP_CALLER,
    };
    // SAFETY: the parent passed a socket as standard input, and no other code of this process uses
    // it.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    let stream = match config.provider {
        Provider::Shm | Provider::ModelShm => Rendezvous::Unix(UnixStream::from(socket)),
        Provider::Tcp | Provider::ModelTcp | Provider::Rdma => Rendezvous::Tcp(TcpStream::from(socket)),
        Provider::Tls => {
            let at = |end: &str| PathBuf::from(std::env::var(CERTIFICATE).expect("set") + end);
            let files = TlsServerFiles::new(at(".pem"), at(".key"));
            let server = TlsServer::load(files).expect("certificates");
            let accepted = server.accept_stream(TcpStream::from(socket), Instant::now() + WAIT_LIMIT);
            Rendezvous::Tls(accepted.expect("accepted"))
        }
    };
    let side = Setup::new(config).side();
    let memory = side.buf(LEN, Access::REMOTE_ALL);
    memory.set(0, &pattern(77, LEN));
    side.recv(1, &[]);
    side.qp.connect(stream, WAIT_LIMIT).expect("connect");
    // The harness has printed to standard output without ending its line.
    println!("\nready {} {}", memory.mr.addr(), memory.mr.rkey());
    std::io::stdout().flush().expect("flush");
    loop {
        side.pump();
        if config.progress == Progress::Engine {
            std::thread::park();
        }
    }
}

/// A peer process, killed at the end if not before.
struct Peer {
    process: Child,
    addr: u64,
    rkey: u32,
}

impl Peer {
    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.addr + offset as u64, rkey: self.rkey }
    }

    fn kill(&mut self) {
        // SIGKILL.
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn peer(config: Config) -> (Side, Peer) {
    let (mine, theirs): (Socket, OwnedFd) = match config.provider {
        Provider::Shm | Provider::ModelShm => {
            let (a, b) = UnixStream::pair().expect("socketpair");
            (a.into(), b.into())
        }
        Provider::Tcp | Provider::Tls | Provider::ModelTcp | Provider::Rdma => {
            let (a, b) = tcp_pair();
            (a.into(), b.into())
        }
    };
    let authority = (config.provider == Provider::Tls).then(Authority::new);
    let certificate = authority.as_ref().map(|authority| authority.sign("peer", &NAMES));
    let role = match config {
        Config::SHM_ENGINE => "shm_engine",
        Config::SHM_CALLER => "shm_caller",
        Config::TCP_ENGINE => "tcp_engine",
        Config::TLS_ENGINE => "tls_engine",
        Config::TLS_CALLER => "tls_caller",
        Config::MODEL_SHM => "model_shm",
        Config::MODEL_TCP => "model_tcp",
        Config::RDMA => "rdma",
        _ => "tcp_caller",
    };
    let mut process = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--ignored", "--exact", "--nocapture", "--test-threads=1", "queue_pairs::process::child"])
        .env(CHILD, role)
        .env(CERTIFICATE, certificate.map_or_else(PathBuf::new, |(path, _)| path.with_extension("")))
        .stdin(Stdio::from(theirs.as_fd().try_clone_to_owned().expect("dup")))
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    drop(theirs);
    let side = Setup::new(config).queues(32, 32).side();
    let mine = match (config.provider, authority) {
        (Provider::Tls, Some(authority)) => {
            let client = TlsClient::load(&authority.client()).expect("certificates");
            let connected = client.connect(mine.into(), "localhost", Instant::now() + WAIT_LIMIT);
            Rendezvous::Tls(connected.expect("connected"))
        }
        (Provider::Shm | Provider::ModelShm, _) => Rendezvous::Unix(mine.into()),
        _ => Rendezvous::Tcp(mine.into()),
    };
    side.qp.connect(mine, WAIT_LIMIT).expect("connect");
    let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
    let (addr, rkey) = loop {
        let line = lines.next().expect("the peer says when it is ready").expect("read");
        if let Some((addr, rkey)) = line.strip_prefix("ready ").and_then(|rest| rest.split_once(' ')) {
            break (addr.parse().expect("address"), rkey.parse().expect("key"));
        }
    };
    (side, Peer { process, addr, rkey })
}

fn sent(side: &Side) -> (u64, WcStatus) {
    let wc = until("a completion", || {
        side.pump();
        side.take_send()
    });
    (wc.wr_id, wc.status)
}

fn assert_failed(side: &Side, local: &Buf, peer: &Peer) {
    until("this end to fail", || {
        side.pump();
        (side.qp.state() == QpState::Err).then_some(())
    });
    let wc = until("the flushed receive", || {
        side.pump();
        side.take_recv()
    });
    assert_eq!((wc.wr_id, wc.status), (100, WcStatus::WrFlushErr));
    side.post(&[unsignaled(200, write(peer.remote(0)), &[local.sge(0, 8)])]);
    assert_eq!(sent(side), (200, WcStatus::WrFlushErr));
    assert_eq!(side.pending(), []);
}

fn another_process_serves_its_memory(config: Config) {
    let (side, peer) = peer(config);
    let local = side.local(LEN);
    side.post(&[signaled(1, read(peer.remote(0)), &[local.all()])]);
    assert_eq!(sent(&side), (1, WcStatus::Success));
    assert!(local.contents() == pattern(77, LEN));
    local.set(0, &pattern(78, LEN));
    side.post(&[signaled(2, write(peer.remote(0)), &[local.all()])]);
    assert_eq!(sent(&side), (2, WcStatus::Success));
    let back = side.local(LEN);
    side.post(&[signaled(3, read(peer.remote(0)), &[back.all()]), signaled(4, SEND, &[])]);
    assert_eq!((sent(&side), sent(&side)), ((3, WcStatus::Success), (4, WcStatus::Success)));
    assert!(back.contents() == local.contents());
}

fn a_killed_peer_fails_what_is_outstanding(config: Config) {
    let (side, mut peer) = peer(config);
    let local = side.local(64);
    side.recv(100, &[local.all()]);
    // The peer has one receive; the others wait.
    for id in 0..5 {
        side.post(&[signaled(id, SEND, &[])]);
    }
    assert_eq!(sent(&side), (0, WcStatus::Success));
    peer.kill();
    for id in 1..5 {
        let (wr_id, status) = sent(&side);
        assert_eq!(wr_id, id);
        let first = id == 1 && status == WcStatus::RetryExcErr;
        assert!(first || status == WcStatus::WrFlushErr, "{status:?}");
    }
    assert_failed(&side, &local, &peer);
}

fn a_killed_peer_fails_an_idle_queue_pair(config: Config) {
    let (side, mut peer) = peer(config);
    let local = side.local(64);
    side.recv(100, &[local.all()]);
    peer.kill();
    assert_failed(&side, &local, &peer);
}

fn a_peer_killed_in_the_middle_of_large_requests(config: Config) {
    for _ in 0..3 {
        let (side, mut peer) = peer(config);
        let local = side.local(LEN);
        side.recv(100, &[local.sge(0, 64)]);
        for id in 0..8 {
            let op = if id % 2 == 0 { write(peer.remote(0)) } else { read(peer.remote(0)) };
            side.post(&[signaled(id, op, &[local.all()])]);
        }
        side.pump();
        peer.kill();
        let statuses: Vec<WcStatus> = (0..8)
            .map(|id| {
                let (wr_id, status) = sent(&side);
                assert_eq!(wr_id, id);
                status
            })
            .collect();
        // Some may be done; after the first that is not, none is.
        let done = statuses.iter().take_while(|&&status| status == WcStatus::Success).count();
        for (index, &status) in statuses.iter().enumerate().skip(done) {
            let first = index == done && status == WcStatus::RetryExcErr;
            assert!(first || status == WcStatus::WrFlushErr, "{statuses:?}");
        }
        assert_failed(&side, &local, &peer);
    }
}
