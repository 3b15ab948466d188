//! Messages after the preamble: a head with kind and length, and a body.
//!
//! # Concurrency
//! Runs on the thread of the stream; no locks.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout,
    byteorder::little_endian::{U16, U32, U64},
};

use super::{HandshakeError, HostId, MAGIC, Token, VERSION, invalid};
use crate::{
    auth::{Nonce, Proof},
    session::stream::Stream,
    verbs::{AtomicScope, RemoteAddr},
};

/// Maximum length of an answer's text, in bytes.
pub(super) const MAX_TEXT: usize = 1024;

const REFUSED: u16 = 0;
const WELCOME: u16 = 1;
const CHALLENGE: u16 = 2;
const PROOF: u16 = 3;
/// A refusal because of the identity of the client.
const DENIED: u16 = 4;

/// Scopes of atomics by their code.
const SCOPES: [AtomicScope; 3] = [AtomicScope::None, AtomicScope::Device, AtomicScope::Global];

const REPLY: u32 = 0;
const FETCH: u32 = 1;

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHead {
    magic: [u8; 8],
    version: U32,
    kind: U16,
    /// Length of the body.
    len: U16,
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawAnswer {
    token: Token,
    host: HostId,
    /// 0: no lease.
    lease_ms: U32,
    /// [`REPLY`] or [`FETCH`]. With [`FETCH`] the next fields locate the call memory.
    calls: U32,
    fetch_key: U32,
    fetch_addr: U64,
    /// Index in [`SCOPES`].
    atomics: U32,
}

impl RawHead {
    /// Checks the head. Returns the kind and the length of the body.
    fn check(&self) -> io::Result<(u16, usize)> {
        if self.magic != MAGIC {
            return Err(invalid("no rdmabox host there"));
        }
        if self.version.get() != VERSION {
            return Err(HandshakeError::Version { host: self.version.get() }.into());
        }
        Ok((self.kind.get(), usize::from(self.len.get())))
    }
}

/// Maximum length of a body.
const MAX_BODY: usize = size_of::<RawAnswer>() + MAX_TEXT;

/// The host's answer on a control stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// False: the session is refused, and `text` has the reason.
    pub ok: bool,
    /// The session is refused because of the identity of the client.
    pub denied: bool,
    pub token: Token,
    pub host: HostId,
    /// Length of the lease, in the first answer.
    pub lease: Option<Duration>,
    /// The client's call memory for remote fetching, in the first answer, if requested and
    /// available.
    pub fetch: Option<RemoteAddr>,
    /// Scope of the session's atomics, in the first answer.
    pub atomics: AtomicScope,
    /// The path of the host's Unix socket, if it has one, in the first answer.
    pub text: String,
}

/// A message of the handshake.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Answer(Answer),
    /// The host's nonce, which requests a proof.
    Challenge(Nonce),
    Proof(Proof),
}

impl Message {
    /// Returns the wire form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Message::Answer(answer) => {
                let kind = match answer {
                    Answer { ok: true, .. } => WELCOME,
                    Answer { denied: true, .. } => DENIED,
                    Answer { .. } => REFUSED,
                };
                (kind, encode_answer(answer))
            }
            Message::Challenge(nonce) => (CHALLENGE, nonce.as_bytes().to_vec()),
            Message::Proof(proof) => (PROOF, proof.as_bytes().to_vec()),
        };
        // The longest body is an answer with the longest text, so its length fits.
        let len = U16::new(body.len() as u16);
        let head = RawHead { magic: MAGIC, version: VERSION.into(), kind: kind.into(), len };
        [head.as_bytes(), &body].concat()
    }

    /// Decodes the body of a message.
    fn decode(kind: u16, body: &[u8]) -> io::Result<Message> {
        let wrong = || invalid("answer of a wrong length");
        Ok(match kind {
            REFUSED | WELCOME | DENIED => Message::Answer(decode_answer(kind, body)?),
            CHALLENGE => Message::Challenge(Nonce::read_from_bytes(body).map_err(|_| wrong())?),
            PROOF => Message::Proof(Proof::read_from_bytes(body).map_err(|_| wrong())?),
            other => return Err(invalid(format!("unknown kind of answer {other}"))),
        })
    }

    /// Decodes the message at the start of `bytes`, as [`receive`](Self::receive) does.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = RawHead::read_from_prefix(bytes).ok()?;
        let (kind, len) = head.check().ok()?;
        Message::decode(kind, rest.get(..len)?).ok()
    }

    /// Sends the message. Returns the sent bytes.
    pub(super) fn send(&self, stream: &mut Stream) -> io::Result<Vec<u8>> {
        let bytes = self.encode();
        stream.write_all(&bytes)?;
        Ok(bytes)
    }

    /// Receives a message. Returns it with the received bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for an invalid message.
    pub(super) fn receive(stream: &mut Stream, deadline: Instant) -> io::Result<(Message, Vec<u8>)> {
        Message::receive_short(stream, MAX_BODY, deadline)
    }

    /// Receives a message of an unauthenticated peer. Reads no body if its announced length exceeds
    /// `most` bytes.
    pub(super) fn receive_short(
        stream: &mut Stream,
        most: usize,
        deadline: Instant,
    ) -> io::Result<(Message, Vec<u8>)> {
        let mut head = RawHead::new_zeroed();
        stream.read_exact_by(head.as_mut_bytes(), deadline)?;
        let (kind, len) = head.check()?;
        let mut body = [0; MAX_BODY];
        let body = body[..most.min(MAX_BODY)].get_mut(..len).ok_or_else(|| invalid("answer too long"))?;
        stream.read_exact_by(body, deadline)?;
        let message = Message::decode(kind, body)?;
        Ok((message, [head.as_bytes(), body].concat()))
    }
}

fn encode_answer(answer: &Answer) -> Vec<u8> {
    let mut end = answer.text.len().min(MAX_TEXT);
    while !answer.text.is_char_boundary(end) {
        end -= 1;
    }
    let fetch = answer.fetch.unwrap_or(RemoteAddr { addr: 0, rkey: 0 });
    let raw = RawAnswer {
        token: answer.token,
        host: answer.host,
        lease_ms: answer.lease.map_or(0, |lease| lease.as_millis().clamp(1, u32::MAX.into()) as u32).into(),
        calls: (if answer.fetch.is_some() { FETCH } else { REPLY }).into(),
        fetch_key: fetch.rkey.into(),
        fetch_addr: fetch.addr.into(),
        atomics: (answer.atomics as u32).into(),
    };
    [raw.as_bytes(), &answer.text.as_bytes()[..end]].concat()
}

fn decode_answer(kind: u16, body: &[u8]) -> io::Result<Answer> {
    let (raw, text) = RawAnswer::read_from_prefix(body).map_err(|_| invalid("answer of a wrong length"))?;
    let text = String::from_utf8(text.to_vec()).map_err(|_| invalid("answer is no text"))?;
    let lease = match raw.lease_ms.get() {
        0 => None,
        ms => Some(Duration::from_millis(ms.into())),
    };
    let fetch = match raw.calls.get() {
        REPLY => None,
        FETCH => Some(RemoteAddr { addr: raw.fetch_addr.get(), rkey: raw.fetch_key.get() }),
        other => return Err(invalid(format!("unknown way of answering calls {other}"))),
    };
    let (ok, denied) = (kind == WELCOME, kind == DENIED);
    let code = raw.atomics.get();
    let atomics = usize::try_from(code).ok().and_then(|code| SCOPES.get(code).copied());
    let atomics = atomics.ok_or_else(|| invalid(format!("unknown scope of atomics {code}")))?;
    Ok(Answer { ok, denied, token: raw.token, host: raw.host, lease, fetch, atomics, text })
}

pub(crate) fn send_answer(stream: &mut Stream, answer: &Answer) -> io::Result<()> {
    Message::Answer(answer.clone()).send(stream).map(drop)
}

pub(crate) fn receive_answer(stream: &mut Stream, deadline: Instant) -> io::Result<Answer> {
    match Message::receive(stream, deadline)?.0 {
        Message::Answer(answer) => Ok(answer),
        Message::Challenge(_) | Message::Proof(_) => {
            Err(invalid("the host requests a proof that was not offered"))
        }
    }
}
