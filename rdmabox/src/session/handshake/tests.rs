use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::{message::MAX_TEXT, *};
use crate::{
    auth::{Key, Secret, Transcript},
    session::stream::Stream,
    verbs::{AtomicScope, RemoteAddr},
};

fn pair() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (Stream::Unix(a), Stream::Unix(b))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns the wire form of a preamble.
fn said(purpose: Purpose) -> Vec<u8> {
    let (a, _b) = pair();
    Preamble::new(&a, purpose).unwrap().bytes().to_vec()
}

/// Returns the host's view of these bytes, followed by the end of the stream.
fn heard(bytes: &[u8]) -> io::Result<Preamble> {
    let (mut a, mut b) = pair();
    a.write_all(bytes).unwrap();
    drop(a);
    receive_preamble(&mut b, soon())
}

const CONTROL: Purpose = Purpose::Control { queue_pairs: 1, fetch: false, key: None };

fn key(name: &str, secret: u8) -> Key {
    Key { id: name.parse().unwrap(), secret: Secret::new(&[secret; 32]).unwrap() }
}

#[test]
fn preambles_and_answers_round_trip() {
    let id = Some("k".parse().unwrap());
    for purpose in [
        Purpose::Probe,
        Purpose::Control { queue_pairs: 4, fetch: false, key: None },
        Purpose::Control { queue_pairs: 16, fetch: true, key: id },
        Purpose::Join { token: Token([7; 16]), index: 3, proves: false },
        Purpose::Join { token: Token([7; 16]), index: 3, proves: true },
    ] {
        assert_eq!(heard(&said(purpose)).unwrap().purpose, purpose);
    }
    let (mut a, mut b) = pair();
    for answer in [
        Answer {
            ok: true,
            denied: false,
            token: Token([1; 16]),
            host: [2; 16],
            lease: Some(Duration::from_millis(20_001)),
            fetch: Some(RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c }),
            atomics: AtomicScope::Device,
            text: "/run/x".into(),
        },
        Answer { ok: false, text: "no".into(), ..Answer::default() },
        Answer { denied: true, text: "no key".into(), ..Answer::default() },
    ] {
        send_answer(&mut a, &answer).unwrap();
        assert_eq!(receive_answer(&mut b, soon()).unwrap(), answer);
    }
}

#[test]
fn tokens_differ_by_any_bit_and_are_not_printed() {
    let token = Token::random().unwrap();
    assert_eq!(token, token);
    for bit in 0..128 {
        let mut other = token;
        other.0[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(token, other, "bit {bit}");
    }
    assert_ne!(token, Token::random().unwrap());
    let join = Purpose::Join { token, index: 1, proves: true };
    assert_eq!(format!("{join:?}"), "Join { token: Token, index: 1, proves: true }");
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let (mut a, mut b) = pair();
    let answer = Answer { text: "é".repeat(MAX_TEXT), ..Answer::default() };
    send_answer(&mut a, &answer).unwrap();
    assert_eq!(receive_answer(&mut b, soon()).unwrap().text, "é".repeat(MAX_TEXT / 2));
}

#[test]
fn other_protocols_and_truncated_preambles_are_refused() {
    let good = said(CONTROL);
    assert_eq!(good.len(), 112);
    for len in 0..good.len() {
        assert!(heard(&good[..len]).is_err(), "{len} bytes");
    }
    // Magic, version, kind, calls, proof; and a proof that does not fit the kind or lacks a key.
    for (at, value) in [(0, b'X'), (8, 9), (12, 77), (40, 2), (43, 1), (44, 3), (44, 2), (44, 1)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        // A client of another version gets an answer.
        let kind = if at == 8 { io::ErrorKind::Unsupported } else { io::ErrorKind::InvalidData };
        assert_eq!(heard(&bytes).unwrap_err().kind(), kind, "{at}");
    }
    // The first bytes of another version suffice to recognize it.
    let old = [&good[..8], &4u32.to_le_bytes(), &[0; 4]].concat();
    let error = heard(&old).unwrap_err().to_string();
    assert!(error.contains("client has protocol version 4, this host 5: upgrade the client"), "{error}");
}

#[test]
fn answers_of_another_kind_are_refused() {
    let good = {
        let (mut a, mut b) = pair();
        send_answer(&mut a, &Answer { ok: true, ..Answer::default() }).unwrap();
        drop(a);
        let mut bytes = Vec::new();
        b.read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(good.len(), 72);
    for len in 0..good.len() {
        let (mut a, mut b) = pair();
        a.write_all(&good[..len]).unwrap();
        drop(a);
        assert!(receive_answer(&mut b, soon()).is_err(), "{len} bytes");
    }
    // Magic, version, kind, length, calls, scope of atomics.
    for (at, value) in [(0, b'X'), (8, 2), (12, 2), (12, 5), (14, 55), (15, 5), (52, 2), (55, 1), (68, 3)] {
        let (mut a, mut b) = pair();
        let mut bytes = good.clone();
        bytes[at] = value;
        a.write_all(&bytes).unwrap();
        drop(a);
        let kind = receive_answer(&mut b, soon()).unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof), "{at}: {kind}");
    }
}

#[test]
fn a_client_at_an_address_of_another_kind_gets_the_reason() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (host, _) = listener.accept().unwrap();
    let (mut tcp, mut rdma) = (Stream::Tcp(client), Stream::Rdma(host));
    for (from_tcp, told) in [(true, "rdma:host:port"), (false, "tcp:host:port")] {
        let (from, to) = if from_tcp { (&mut tcp, &mut rdma) } else { (&mut rdma, &mut tcp) };
        let preamble = Preamble::new(from, Purpose::Probe).unwrap();
        from.write_all(preamble.bytes()).unwrap();
        let error = receive_preamble(to, soon()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().ends_with(told), "{error}");
    }
}

#[test]
fn an_expired_deadline_ends_the_wait() {
    let (mut a, mut b) = pair();
    a.write_all(&MAGIC).unwrap();
    let error = receive_preamble(&mut b, Instant::now()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn the_host_id_is_known_and_stable() {
    assert_ne!(host_id(), HostId::default());
    assert_eq!(host_id(), host_id());
}

/// Runs the host's part of making a session, up to the welcome.
fn welcome(mut stream: Stream, secret: Option<&Secret>) -> io::Result<Option<Secret>> {
    let preamble = receive_preamble(&mut stream, soon())?;
    let Some(mut transcript) = challenge(&mut stream, &preamble, secret, soon())? else { return Ok(None) };
    let secret = transcript.session_secret();
    let answer = Answer { ok: true, token: Token([3; 16]), ..Answer::default() };
    send_welcome(&mut stream, &answer, Some(&mut transcript))?;
    Ok(Some(secret))
}

/// Outcome at the client, and at the host: `None` if the client does not have the key.
type AtClient = (Answer, Option<Secret>);
type AtHost = Option<Secret>;

/// Runs a handshake through an attacker in the middle. For each message, `change` gets its
/// number, starting with the preamble, and all messages so far. It returns the bytes to forward.
/// Returns the outcomes of client and host.
fn through(
    ours: &Key,
    theirs: Option<&Secret>,
    change: impl Fn(usize, &[Vec<u8>]) -> Vec<u8>,
) -> (io::Result<AtClient>, io::Result<AtHost>) {
    let ((mut client, near), (far, host)) = (pair(), pair());
    let (mut near, mut far) = (near, far);
    std::thread::scope(|scope| {
        let host = scope.spawn(|| welcome(host, theirs));
        let client = scope.spawn(move || {
            let purpose = Purpose::Control { queue_pairs: 2, fetch: false, key: Some(ours.id) };
            introduce(&mut client, purpose, Some(ours), soon())
        });
        let mut seen = Vec::new();
        // Preamble, challenge, proof, answer, proof.
        for (number, (len, up)) in
            [(112, true), (48, false), (48, true), (72, false), (48, false)].into_iter().enumerate()
        {
            let (from, to) = if up { (&mut near, &mut far) } else { (&mut far, &mut near) };
            let mut bytes = vec![0; len];
            if from.read_exact_by(&mut bytes, soon()).is_err() {
                break;
            }
            seen.push(bytes);
            let (said, passed) = (&seen[number], change(number, &seen));
            // The receiver may have closed the stream.
            let _ = to.write_all(&passed);
            if passed.len() < said.len() || (number > 0 && passed[..16] != said[..16]) {
                // The receiver may wait for more bytes, so end its stream.
                to.shutdown_write();
            }
        }
        drop((near, far));
        (client.join().unwrap(), host.join().unwrap())
    })
}

fn unchanged(_: usize, seen: &[Vec<u8>]) -> Vec<u8> {
    seen.last().unwrap().clone()
}

#[test]
fn two_sides_with_the_same_key_derive_the_same_session_secret() {
    let key = key("k", 1);
    let (client, host) = through(&key, Some(&key.secret), unchanged);
    let (answer, client) = client.unwrap();
    let (client, host) = (client.unwrap(), host.unwrap().unwrap());
    assert!(answer.ok && client == host);
    let (_, another) = through(&key, Some(&key.secret), unchanged);
    assert_ne!(another.unwrap().unwrap(), host, "another one each time");
}

#[test]
fn neither_side_accepts_a_peer_without_the_key() {
    let (ours, theirs) = (key("k", 1), key("k", 2));
    for secret in [Some(&theirs.secret), None] {
        let (client, host) = through(&ours, secret, unchanged);
        assert!(client.is_err() && host.unwrap().is_none());
    }
    // Impostors of the host that welcome every client.
    let (mut client, mut host) = pair();
    let purpose = Purpose::Control { queue_pairs: 2, fetch: false, key: Some(ours.id) };
    let impostors: [fn(&mut Stream, &Preamble); 3] = [
        |host, _| send_answer(host, &Answer { ok: true, ..Answer::default() }).unwrap(),
        |host, preamble| {
            let own = Secret::random().unwrap();
            assert!(challenge(host, preamble, Some(&own), soon()).unwrap().is_none());
            let mut transcript = Transcript::new(own, preamble.bytes());
            send_welcome(host, &Answer { ok: true, ..Answer::default() }, Some(&mut transcript)).unwrap();
        },
        |host, _| host.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap(),
    ];
    for impostor in impostors {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| introduce(&mut client, purpose, Some(&ours), soon()));
            let preamble = receive_preamble(&mut host, soon()).unwrap();
            impostor(&mut host, &preamble);
            assert_eq!(client.join().unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
        });
        (client, host) = pair();
    }
}

#[test]
fn an_unknown_key_is_answered_like_a_wrong_secret() {
    let ours = key("k", 1);
    let lengths = |secret: Option<&Secret>| {
        let lengths = std::sync::Mutex::new(Vec::new());
        let _ = through(&ours, secret, |_, seen| {
            lengths.lock().unwrap().push(seen.last().unwrap().len());
            unchanged(0, seen)
        });
        lengths.into_inner().unwrap()
    };
    assert_eq!(lengths(None), lengths(Some(&key("k", 2).secret)));
    assert_eq!(lengths(None), [112, 48, 48]);
}

#[test]
fn replayed_and_reflected_messages_prove_nothing() {
    let key = key("k", 1);
    let before = std::sync::Mutex::new(Vec::new());
    let (client, host) = through(&key, Some(&key.secret), |_, seen| {
        before.lock().unwrap().clone_from(&seen.to_vec());
        unchanged(0, seen)
    });
    assert!(client.is_ok() && host.unwrap().is_some());
    let before = before.into_inner().unwrap();
    // Replays single messages of a previous session, and everything that its client sent.
    for replayed in [&[0][..], &[1], &[2], &[3], &[4], &[0, 2], &[1, 3, 4]] {
        let (client, host) = through(&key, Some(&key.secret), |number, seen| {
            if replayed.contains(&number) { before[number].clone() } else { unchanged(number, seen) }
        });
        let both = client.is_ok_and(|(answer, _)| answer.ok) && host.is_ok_and(|secret| secret.is_some());
        assert!(!both || replayed == [3], "{replayed:?}");
    }
    // Reflects the client's own proof.
    let (client, _) = through(&key, Some(&key.secret), |number, seen| match number {
        4 => seen[2].clone(),
        number => unchanged(number, seen),
    });
    assert_eq!(client.unwrap_err().kind(), io::ErrorKind::InvalidData);
    // Reflects the client's own nonce.
    let (client, host) = through(&key, Some(&key.secret), |number, seen| match number {
        1 => [&seen[1][..16], &seen[0][80..]].concat(),
        number => unchanged(number, seen),
    });
    assert!(client.is_err() && host.unwrap().is_none());
}

/// Runs the host's part of a joining stream.
fn let_join(mut stream: Stream, secret: &Secret) -> io::Result<bool> {
    let preamble = receive_preamble(&mut stream, soon())?;
    match challenge(&mut stream, &preamble, Some(secret), soon())? {
        Some(transcript) => prove(&mut stream, &transcript).map(|()| true),
        None => Ok(false),
    }
}

#[test]
fn streams_join_with_the_session_secret() {
    let secret = |byte| Secret::new(&[byte; 32]).unwrap();
    for (ours, welcome) in [(1, true), (2, false)] {
        let (mut client, host) = pair();
        std::thread::scope(|scope| {
            let host = scope.spawn(move || let_join(host, &secret(1)));
            let joined = join(&mut client, (Token([1; 16]), 3), Some(&secret(ours)), soon());
            assert_eq!((joined.is_ok(), host.join().unwrap().unwrap()), (welcome, welcome));
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A message is changed, truncated or duplicated on the way. Neither side then accepts the
    /// other. The host may only accept after it has seen the client's unchanged proof.
    #[test]
    fn any_change_of_a_message_is_detected(
        number in 0usize..5,
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
        how in 0..3,
    ) {
        let key = key("k", 1);
        let (arrives, is_followed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (client, host) = through(&key, Some(&key.secret), |this, seen| {
            let mut bytes = unchanged(this, seen);
            if this == number {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] ^= 1 << bit,
                    1 => bytes.truncate(at),
                    _ => bytes = [&bytes[..at], &bytes].concat(),
                }
                // By chance its last byte is the same as its first one, and it arrives twice.
                let sent = unchanged(this, seen);
                arrives.store(bytes.starts_with(&sent), Ordering::Relaxed);
                is_followed.store(bytes.len() > sent.len(), Ordering::Relaxed);
            }
            bytes
        });
        let (arrives, is_followed) = (arrives.into_inner(), is_followed.into_inner());
        // Bytes behind a message harm the next one to the same side, if there is one.
        let client_gets_all = arrives && (!is_followed || [2, 4].contains(&number));
        let client_is_content = client.is_ok_and(|(answer, _)| answer.ok);
        prop_assert_eq!(client_is_content, client_gets_all);
        if number < 3 {
            let host_gets_all = arrives && (!is_followed || number > 0);
            prop_assert_eq!(host.is_ok_and(|secret| secret.is_some()), host_gets_all);
        }
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..300), good in 0usize..20) {
        let preamble = [&said(CONTROL)[..good], &bytes].concat();
        let _ = heard(&preamble);
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
        let (mut a, mut b) = pair();
        a.write_all(&head).unwrap();
        drop(a);
        let _ = message::Message::receive(&mut b, soon());
    }
}
