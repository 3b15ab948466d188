//! Tests of connecting: peers that answer and peers that do not, and the resulting state of the
//! queue pair.

use std::{
    io::Write,
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use rdmabox::{
    tls::TlsStream,
    verbs::{Progress, QpState, Rendezvous, VerbsError, WcStatus},
};

use crate::fixture::{Config, Provider, SEND, Setup, WAIT_LIMIT, pair, signaled, tcp_pair, tls_pair};

conformance! {
    connecting_moves_both_ends_to_rts,
    a_queue_pair_connects_once,
    a_failed_queue_pair_does_not_connect,
    a_peer_that_hangs_up_is_noticed,
    a_peer_that_says_nothing_is_not_waited_for,
    a_peer_that_speaks_something_else_is_refused,
    a_peer_of_another_version_is_refused,
    engines_and_callers_work_together,
    many_connections_come_and_go,
}

/// The other end as plain bytes.
enum Raw {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(TlsStream),
}

impl Raw {
    fn pair(config: Config) -> (Rendezvous, Raw) {
        match config.provider {
            Provider::Shm | Provider::ModelShm => {
                let (a, b) = UnixStream::pair().expect("socketpair");
                (Rendezvous::Unix(a), Raw::Unix(b))
            }
            Provider::Tcp | Provider::ModelTcp | Provider::Rdma => {
                let (a, b) = tcp_pair();
                (Rendezvous::Tcp(a), Raw::Tcp(b))
            }
            Provider::Tls => {
                let (a, b) = tls_pair(tcp_pair());
                (Rendezvous::Tls(a), Raw::Tls(b))
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        // The other end may have hung up already.
        let _ = match self {
            Raw::Unix(stream) => stream.write_all(bytes),
            Raw::Tcp(stream) => stream.write_all(bytes),
            Raw::Tls(stream) => stream.write_all(bytes),
        };
    }
}

fn connecting_moves_both_ends_to_rts(config: Config) {
    let pair = Setup::new(config).apart();
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Init, QpState::Init));
    pair.connect();
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Rts, QpState::Rts));
}

fn a_queue_pair_connects_once(config: Config) {
    let pair = pair(config);
    let (stream, _other) = config.streams();
    let result = pair.a.qp.connect(stream, WAIT_LIMIT);
    let expected = (QpState::Rts, QpState::Init);
    assert!(matches!(result, Err(VerbsError::State { is, needs }) if (is, needs) == expected), "{result:?}");
    // That did no harm.
    pair.b.recv(1, &[]);
    assert_eq!(pair.run(signaled(1, SEND, &[])).status, WcStatus::Success);
}

fn a_failed_queue_pair_does_not_connect(config: Config) {
    let side = Setup::new(config).side();
    side.qp.to_error();
    let (stream, _other) = config.streams();
    let result = side.qp.connect(stream, WAIT_LIMIT);
    assert!(matches!(result, Err(VerbsError::State { is: QpState::Err, .. })), "{result:?}");
}

fn a_peer_that_hangs_up_is_noticed(config: Config) {
    for greeting in [&b""[..], b"x"] {
        let side = Setup::new(config).side();
        side.recv(1, &[]);
        let (stream, mut raw) = Raw::pair(config);
        raw.write(greeting);
        drop(raw);
        side.qp.connect(stream, WAIT_LIMIT).expect_err("no peer is there");
        assert_eq!(side.qp.state(), QpState::Err);
        side.pump();
        let wc = side.take_recv().expect("the receive is flushed");
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::WrFlushErr));
    }
}

fn a_peer_that_says_nothing_is_not_waited_for(config: Config) {
    for greeting in [&b""[..], b"x"] {
        let side = Setup::new(config).side();
        let (stream, mut raw) = Raw::pair(config);
        raw.write(greeting);
        let start = Instant::now();
        side.qp.connect(stream, Duration::from_millis(20)).expect_err("no answer");
        assert!(start.elapsed() < WAIT_LIMIT);
        assert_eq!(side.qp.state(), QpState::Err);
    }
}

fn a_peer_that_speaks_something_else_is_refused(config: Config) {
    for greeting in
        [&[0u8; 4096][..], &[0xff; 4096], b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n\r\n\r\n\r\n"]
    {
        let side = Setup::new(config).side();
        let (stream, mut raw) = Raw::pair(config);
        raw.write(greeting);
        let result = side.qp.connect(stream, WAIT_LIMIT);
        assert!(matches!(result, Err(VerbsError::Protocol(_))), "{result:?}");
        assert_eq!(side.qp.state(), QpState::Err);
    }
}

/// Checks that a peer of another version is refused: it would misread requests that it does not
/// know. The hello has its version behind 8 bytes.
fn a_peer_of_another_version_is_refused(config: Config) {
    if config.provider == Provider::Rdma {
        // The layout of its endpoint is tested beside it.
        return;
    }
    for (version, known) in [(2u16, false), (3, true), (4, false)] {
        let side = Setup::new(config).side();
        let (stream, mut raw) = Raw::pair(config);
        let mut hello = b"rdmabox\x01".to_vec();
        hello.extend(version.to_le_bytes());
        hello.extend([0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        raw.write(&hello);
        let result = side.qp.connect(stream, WAIT_LIMIT);
        match result {
            Err(VerbsError::Protocol(text)) if !known => {
                assert_eq!(text, format!("it has version {version}, this side has 3"));
                assert_eq!(side.qp.state(), QpState::Err);
            }
            result => assert!(known && result.is_ok(), "{version}: {result:?}"),
        }
    }
}

fn engines_and_callers_work_together(config: Config) {
    let other = match config.progress {
        Progress::Engine => Progress::Caller,
        _ => Progress::Engine,
    };
    let setup = Setup::new(config);
    let a = setup.side();
    let b = Setup::new(Config { progress: other, ..config }).side();
    let pair = crate::fixture::Pair { a, b, config };
    pair.connect();
    for id in 0..20 {
        pair.b.recv(id, &[]);
        assert_eq!(pair.run(signaled(id, SEND, &[])).status, WcStatus::Success);
        assert_eq!(pair.received(&pair.b).wr_id, id);
    }
}

fn many_connections_come_and_go(config: Config) {
    let setup = Setup::new(config);
    let pair = setup.pair();
    for id in 0..50 {
        let (a, b) = (
            setup.qp(&pair.a.pd, &pair.a.cq, &pair.a.recv_cq),
            setup.qp(&pair.b.pd, &pair.b.cq, &pair.b.recv_cq),
        );
        crate::fixture::connect(config, &a, &b);
        b.post_recv(&[rdmabox::verbs::RecvWr { wr_id: id, sges: &[] }]).expect("post_recv");
        a.post_send(&[signaled(id, SEND, &[])]).expect("post_send");
        assert_eq!(pair.sent(&pair.a).wr_id, id);
        assert_eq!(pair.received(&pair.b).wr_id, id);
    }
    // The pair that was there all the time is none the worse for it.
    pair.b.recv(1, &[]);
    assert_eq!(pair.run(signaled(1, SEND, &[])).status, WcStatus::Success);
}
