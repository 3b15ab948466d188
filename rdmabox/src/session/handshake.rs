//! The first bytes on a stream between a client and a host, before any memory is reachable.
//!
//! A client that is given a TCP address first asks, on a stream of its own, whether that is its own host. It then opens
//! a control stream, is told a token, and opens one stream per queue pair that it joins with that
//! token; each of those then belongs to its queue pair. When all are connected the host says so on the control
//! stream, which stays open: its end is the end of the session. With the token the client learns the length of its lease,
//! if it has one: it sends a byte on the control stream three times in that time. If it has asked for calls by fetching it learns,
//! too, where its memory for them is, or that there is none.
//!
//! Until that end the token stays good: a stream that joins a data queue pair again brings a new one, which takes the
//! place of the one before. The host sends nothing on it, not even the greeting of the new queue pair, before its side of
//! the old one is in Err, and, where the client has memory mapped, before the client has closed the old stream: from then
//! on nothing that was posted on the old one takes effect. A stream that the host does not let join is closed without a
//! word, and nothing else of the session notices: one with an unknown token, for a place that the session does not
//! have or for that of the calls, on a socket of another kind than the control stream's, the third at a time for one
//! place, and one whose predecessor the client does not close within three seconds after the host has stopped sending on
//! it.

use std::{
    fmt,
    io::{self, Write},
    time::{Duration, Instant},
};

use subtle::ConstantTimeEq;
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    byteorder::little_endian::{U16, U32, U64},
};

use super::{ProviderKind, stream::Stream};
use crate::verbs::RemoteAddr;

const MAGIC: [u8; 8] = *b"rdmabxS\x01";
const VERSION: u32 = 3;
/// Longest text in an answer.
const MAX_TEXT: usize = 1024;
/// Identifies a host until it boots again.
pub(crate) type HostId = [u8; 16];
/// Names a session to the streams that join it. Random: it cannot be guessed, nor found out by trying (comparing takes
/// as long whatever differs), and it is never printed.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(crate) struct Token([u8; 16]);

impl Token {
    pub(crate) fn random() -> io::Result<Token> {
        let mut token = Token::default();
        getrandom::fill(&mut token.0).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(token)
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Only to hear which host this is, and where its Unix socket is.
    Probe,
    /// A new session with so many data queue pairs, whose calls are made by fetching if the host can.
    Control { queue_pairs: u32, fetch: bool },
    /// Queue pair `index` of the session of `token`, to be made or in the place of the one before. Index 0 carries
    /// messages and is joined once.
    Join { token: Token, index: u32 },
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawPreamble {
    magic: [u8; 8],
    version: U32,
    kind: U32,
    token: Token,
    number: U32,
    /// What the client takes the stream for: [`RDMA`] or [`SOFTWARE`].
    kind_of_address: U32,
    /// How calls are to be answered: [`REPLY`] or [`FETCH`].
    calls: U32,
}

const CONTROL: u32 = 1;
const JOIN: u32 = 2;
const PROBE: u32 = 3;

const SOFTWARE: u32 = 0;
const RDMA: u32 = 1;

const REPLY: u32 = 0;
const FETCH: u32 = 1;

fn kind_of_address(stream: &Stream) -> u32 {
    if stream.provider() == ProviderKind::Rdma { RDMA } else { SOFTWARE }
}

pub(crate) fn send_preamble(stream: &mut Stream, purpose: Purpose) -> io::Result<()> {
    let (kind, token, number, calls) = match purpose {
        Purpose::Probe => (PROBE, Token::default(), 0, REPLY),
        Purpose::Control { queue_pairs, fetch: false } => (CONTROL, Token::default(), queue_pairs, REPLY),
        Purpose::Control { queue_pairs, fetch: true } => (CONTROL, Token::default(), queue_pairs, FETCH),
        Purpose::Join { token, index } => (JOIN, token, index, REPLY),
    };
    let raw = RawPreamble {
        magic: MAGIC,
        version: VERSION.into(),
        kind: kind.into(),
        token,
        number: number.into(),
        kind_of_address: kind_of_address(stream).into(),
        calls: calls.into(),
    };
    stream.write_all(raw.as_bytes())
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// # Errors
/// [`io::ErrorKind::Unsupported`] if the client has come to an address for something else; it is worth telling why.
pub(crate) fn receive_preamble(stream: &mut Stream, deadline: Instant) -> io::Result<Purpose> {
    let mut raw = RawPreamble::new_zeroed();
    stream.read_exact_by(raw.as_mut_bytes(), deadline)?;
    if raw.magic != MAGIC {
        return Err(invalid("not an rdmabox client"));
    }
    if raw.version.get() != VERSION {
        return Err(invalid(format!("client has protocol version {}, this is {VERSION}", raw.version.get())));
    }
    let theirs = raw.kind_of_address.get();
    if theirs != kind_of_address(stream) {
        let text = match theirs {
            RDMA => "this is an address for TCP, and none for RDMA: give tcp:host:port",
            _ => "this is an address for RDMA: give rdma:host:port",
        };
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let number = raw.number.get();
    let fetch = match raw.calls.get() {
        REPLY => false,
        FETCH => true,
        other => return Err(invalid(format!("unknown way of answering calls {other}"))),
    };
    match raw.kind.get() {
        CONTROL => Ok(Purpose::Control { queue_pairs: number, fetch }),
        JOIN => Ok(Purpose::Join { token: raw.token, index: number }),
        PROBE => Ok(Purpose::Probe),
        other => Err(invalid(format!("unknown kind of stream {other}"))),
    }
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawAnswer {
    magic: [u8; 8],
    version: U32,
    ok: U16,
    text_len: U16,
    token: Token,
    host: HostId,
    /// 0: none.
    lease_ms: U32,
    /// [`REPLY`] or [`FETCH`]; then the rest is where.
    calls: U32,
    fetch_key: U32,
    fetch_addr: U64,
}

/// The host's answer on a control stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// False: the session is refused, and `text` says why.
    pub ok: bool,
    pub token: Token,
    pub host: HostId,
    /// In the first answer: the client has to be heard of within this time.
    pub lease: Option<Duration>,
    /// In the first answer: the client's memory for calls by fetching, if it has asked for that and there is some.
    pub fetch: Option<RemoteAddr>,
    /// In the first answer the host's Unix socket, if it has one, for clients of the same host.
    pub text: String,
}

pub(crate) fn send_answer(stream: &mut Stream, answer: &Answer) -> io::Result<()> {
    let mut end = answer.text.len().min(MAX_TEXT);
    while !answer.text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &answer.text[..end];
    let fetch = answer.fetch.unwrap_or(RemoteAddr { addr: 0, rkey: 0 });
    let raw = RawAnswer {
        magic: MAGIC,
        version: VERSION.into(),
        ok: u16::from(answer.ok).into(),
        text_len: (text.len() as u16).into(),
        token: answer.token,
        host: answer.host,
        lease_ms: answer.lease.map_or(0, |lease| lease.as_millis().clamp(1, u32::MAX.into()) as u32).into(),
        calls: (if answer.fetch.is_some() { FETCH } else { REPLY }).into(),
        fetch_key: fetch.rkey.into(),
        fetch_addr: fetch.addr.into(),
    };
    let mut bytes = raw.as_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    stream.write_all(&bytes)
}

pub(crate) fn receive_answer(stream: &mut Stream, deadline: Instant) -> io::Result<Answer> {
    let mut raw = RawAnswer::new_zeroed();
    stream.read_exact_by(raw.as_mut_bytes(), deadline)?;
    if raw.magic != MAGIC {
        return Err(invalid("no rdmabox host there"));
    }
    if raw.version.get() != VERSION {
        return Err(invalid(format!("host has protocol version {}, this is {VERSION}", raw.version.get())));
    }
    let len = usize::from(raw.text_len.get());
    if len > MAX_TEXT {
        return Err(invalid("answer too long"));
    }
    let mut text = vec![0; len];
    stream.read_exact_by(&mut text, deadline)?;
    let text = String::from_utf8(text).map_err(|_| invalid("answer is no text"))?;
    let lease = match raw.lease_ms.get() {
        0 => None,
        ms => Some(Duration::from_millis(ms.into())),
    };
    let fetch = match raw.calls.get() {
        REPLY => None,
        FETCH => Some(RemoteAddr { addr: raw.fetch_addr.get(), rkey: raw.fetch_key.get() }),
        other => return Err(invalid(format!("unknown way of answering calls {other}"))),
    };
    Ok(Answer { ok: raw.ok.get() == 1, token: raw.token, host: raw.host, lease, fetch, text })
}

/// This host's identity; zero where the system tells none, which matches nobody.
pub(crate) fn host_id() -> HostId {
    let mut id = HostId::default();
    if let Ok(text) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        let digits: Vec<u8> =
            text.bytes().filter_map(|b| char::from(b).to_digit(16).map(|d| d as u8)).collect();
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream};

    use super::*;

    fn pair() -> (Stream, Stream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Stream::Unix(a), Stream::Unix(b))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn preambles_and_answers_round_trip() {
        let (mut a, mut b) = pair();
        for purpose in [
            Purpose::Probe,
            Purpose::Control { queue_pairs: 4, fetch: false },
            Purpose::Control { queue_pairs: 16, fetch: true },
            Purpose::Join { token: Token([7; 16]), index: 3 },
        ] {
            send_preamble(&mut a, purpose).unwrap();
            assert_eq!(receive_preamble(&mut b, soon()).unwrap(), purpose);
        }
        for answer in [
            Answer {
                ok: true,
                token: Token([1; 16]),
                host: [2; 16],
                lease: Some(Duration::from_millis(20_001)),
                fetch: Some(RemoteAddr { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c }),
                text: "/run/x".into(),
            },
            Answer { ok: false, text: "no".into(), ..Answer::default() },
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
        assert_eq!(format!("{:?}", Purpose::Join { token, index: 1 }), "Join { token: Token, index: 1 }");
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
        let good = {
            let (mut a, mut b) = pair();
            send_preamble(&mut a, Purpose::Control { queue_pairs: 1, fetch: false }).unwrap();
            drop(a);
            let mut bytes = Vec::new();
            b.read_to_end(&mut bytes).unwrap();
            bytes
        };
        for len in 0..good.len() {
            let (mut a, mut b) = pair();
            a.write_all(&good[..len]).unwrap();
            drop(a);
            assert!(receive_preamble(&mut b, soon()).is_err(), "{len} bytes");
        }
        for (at, value) in [(0, b'X'), (8, 9), (12, 77), (40, 2), (43, 1)] {
            let (mut a, mut b) = pair();
            let mut bytes = good.clone();
            bytes[at] = value;
            a.write_all(&bytes).unwrap();
            assert_eq!(receive_preamble(&mut b, soon()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
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
        for len in 0..good.len() {
            let (mut a, mut b) = pair();
            a.write_all(&good[..len]).unwrap();
            drop(a);
            assert!(receive_answer(&mut b, soon()).is_err(), "{len} bytes");
        }
        for (at, value) in [(0, b'X'), (8, 2), (15, 5), (52, 2), (55, 1)] {
            let (mut a, mut b) = pair();
            let mut bytes = good.clone();
            bytes[at] = value;
            a.write_all(&bytes).unwrap();
            assert_eq!(receive_answer(&mut b, soon()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_client_at_an_address_for_something_else_is_told() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (host, _) = listener.accept().unwrap();
        let (mut tcp, mut rdma) = (Stream::Tcp(client), Stream::Rdma(host));
        for (from, to, told) in [(true, false, "rdma:host:port"), (false, true, "tcp:host:port")] {
            let (from, to) = match (from, to) {
                (true, _) => (&mut tcp, &mut rdma),
                _ => (&mut rdma, &mut tcp),
            };
            send_preamble(from, Purpose::Probe).unwrap();
            let error = receive_preamble(to, soon()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().ends_with(told), "{error}");
        }
    }

    #[test]
    fn a_deadline_that_has_passed_ends_the_wait() {
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
}
