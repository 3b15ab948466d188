//! Tests of a misbehaving peer: after a correct handshake the bytes of the connection are
//! changed, invented or cut off.
//!
//! Over TCP a relay stands between the two ends. For any change, neither end panics and no byte
//! outside registered memory changes. Finally both ends have failed and flushed their requests.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rdmabox::verbs::{Access, QpState, Rendezvous, WcStatus};

use crate::fixture::{
    Config, Pair, Provider, Random, SEND, Setup, WAIT_LIMIT, pattern, read, signaled, tcp_pair, tls_pair,
    until, write,
};

/// Connects a pair through a relay and gives the relay's two ends: to `a` and to `b`.
fn relayed(config: Config) -> (Pair, TcpStream, TcpStream) {
    let pair = Setup::new(config).apart();
    let (a, to_a) = tcp_pair();
    let (b, to_b) = tcp_pair();
    for stream in [&to_a, &to_b] {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
    }
    let connected = AtomicBool::new(false);
    thread::scope(|scope| {
        let relay = scope.spawn(|| {
            while !connected.load(Ordering::Acquire) {
                forward(&to_a, &to_b, |_| {});
                forward(&to_b, &to_a, |_| {});
            }
        });
        let (a, b) = match config.provider {
            Provider::Tls => {
                let (a, b) = tls_pair((a, b));
                (Rendezvous::Tls(a), Rendezvous::Tls(b))
            }
            _ => (Rendezvous::Tcp(a), Rendezvous::Tcp(b)),
        };
        let other = scope.spawn(|| pair.b.qp.connect(b, WAIT_LIMIT));
        let mine = pair.a.qp.connect(a, WAIT_LIMIT);
        let theirs = other.join().expect("no panic");
        connected.store(true, Ordering::Release);
        relay.join().expect("no panic in the relay");
        mine.expect("connect");
        theirs.expect("connect");
    });
    (pair, to_a, to_b)
}

/// Forwards the available bytes after `change`. Returns false at the end of the stream.
fn forward(mut from: &TcpStream, mut to: &TcpStream, change: impl FnOnce(&mut [u8])) -> bool {
    let mut bytes = vec![0; 64 << 10];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(count) => {
            change(&mut bytes[..count]);
            to.write_all(&bytes[..count]).is_ok()
        }
        Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
    }
}

fn random_bytes_end_the_connection(config: Config) {
    for seed in 0..200 {
        let (pair, to_a, mut to_b) = relayed(config);
        let memory = pair.b.guarded(4096, Access::REMOTE_ALL);
        pair.b.recv(1, &[memory.all()]);
        let mut random = Random::new(seed);
        let mut bytes = pattern(seed, 1 + random.below(300));
        // Codes that mean something are rare in random bytes.
        if seed % 2 == 0 {
            bytes[0] = random.below(36) as u8;
            for byte in bytes.iter_mut().skip(1).take(40) {
                if random.below(4) != 0 {
                    *byte = 0;
                }
            }
        }
        to_b.write_all(&bytes).expect("write");
        to_b.shutdown(Shutdown::Both).expect("shutdown");
        drop((to_a, to_b));
        pair.until("the end that was lied to to fail", || (pair.b.qp.state() == QpState::Err).then_some(()));
        // Once, and flushed unless the bytes happened to be a message.
        assert_eq!(pair.received(&pair.b).wr_id, 1);
        memory.assert_guards();
    }
}

fn damaged_bytes_never_reach_beyond_the_region(config: Config) {
    for seed in 0..60 {
        let (pair, to_a, to_b) = relayed(config);
        let memory = pair.b.guarded(16_384, Access::REMOTE_ALL);
        let local = pair.a.guarded(16_384, Access::LOCAL_WRITE);
        let unrelated = pair.b.guarded(4096, Access::LOCAL_WRITE);
        pair.b.recv(1, &[memory.sge(0, 64)]);
        let mut random = Random::new(seed);
        let damage = 1 + random.below(3);
        let mut honest = random.below(4);
        for round in 0..8 {
            let at = random.below(8192);
            let sges = [local.sge(at, random.below(8192))];
            let op = if random.below(2) == 0 { write(memory.remote(at)) } else { read(memory.remote(at)) };
            pair.a.post(&[signaled(round, op, &sges)]);
            for _ in 0..3 {
                pair.pump();
                for (from, to) in [(&to_a, &to_b), (&to_b, &to_a)] {
                    forward(from, to, |bytes| match honest.checked_sub(1) {
                        Some(left) => honest = left,
                        None => {
                            for _ in 0..damage {
                                let at = random.below(bytes.len().min(64));
                                bytes[at] ^= 1 << random.below(8);
                            }
                        }
                    });
                }
            }
        }
        to_a.shutdown(Shutdown::Both).ok();
        to_b.shutdown(Shutdown::Both).ok();
        drop((to_a, to_b));
        pair.until("both ends to fail", || {
            (pair.a.qp.state() == QpState::Err && pair.b.qp.state() == QpState::Err).then_some(())
        });
        memory.assert_guards();
        local.assert_guards();
        unrelated.assert_untouched();
    }
}

fn a_stream_cut_anywhere_fails_both_ends(config: Config) {
    for cut in (0..200).step_by(7) {
        let (pair, to_a, to_b) = relayed(config);
        let memory = pair.b.guarded(4096, Access::REMOTE_ALL);
        let local = pair.a.filled(&pattern(1, 100));
        pair.b.recv(1, &[memory.all()]);
        pair.b.recv(2, &[memory.all()]);
        pair.a.post(&[
            signaled(1, write(memory.remote(0)), &[local.all()]),
            signaled(2, SEND, &[local.sge(0, 10)]),
        ]);
        // The first `cut` bytes arrive.
        let mut bytes = vec![0; cut];
        let mut have = 0;
        until("the bytes of the requests", || {
            pair.pump();
            match (&to_a).read(&mut bytes[have..]) {
                Ok(count) => have += count,
                Err(e) => assert!(matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
            }
            (have == cut).then_some(())
        });
        (&to_b).write_all(&bytes).expect("write");
        drop((to_a, to_b));
        for id in 1..3 {
            let wc = pair.sent(&pair.a);
            assert_eq!(wc.wr_id, id);
            assert!(matches!(wc.status, WcStatus::RetryExcErr | WcStatus::WrFlushErr), "{wc:?}");
        }
        let wcs = [pair.received(&pair.b), pair.received(&pair.b)];
        assert_eq!(wcs.map(|wc| wc.wr_id), [1, 2]);
        assert_eq!(wcs[1].status, WcStatus::WrFlushErr);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
        pair.assert_quiet();
        memory.assert_guards();
    }
}

macro_rules! over_tcp {
    ($($name:ident),+ $(,)?) => {
        mod tcp_engine {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TCP_ENGINE) })+
        }
        mod tcp_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Config::TCP_CALLER) })+
        }
    };
}

over_tcp! {
    random_bytes_end_the_connection,
    damaged_bytes_never_reach_beyond_the_region,
    a_stream_cut_anywhere_fails_both_ends,
}
