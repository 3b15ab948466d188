//! The client's first words on a stream: what it is for, and whether the client will prove who it is.

use std::{io, time::Instant};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, byteorder::little_endian::U32};

use super::{MAGIC, Token, VERSION, invalid};
use crate::{
    session::{ProviderKind, key::KeyId, proof::Nonce, stream::Stream},
    tls::HANDSHAKE_RECORD,
};

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Only to hear which host this is, and where its Unix socket is.
    Probe,
    /// A new session with so many data queue pairs, whose calls are made by fetching if the host can. The client has that key.
    Control { queue_pairs: u32, fetch: bool, key: Option<KeyId> },
    /// Queue pair `index` of the session of `token`, to be made or in the place of the one before. Index 0 carries
    /// messages and is joined once. The client proves that it knows the session's secret, if it has one.
    Join { token: Token, index: u32, proves: bool },
}

impl Purpose {
    /// True if the client will prove something.
    pub(crate) fn proves(&self) -> bool {
        matches!(self, Purpose::Control { key: Some(_), .. } | Purpose::Join { proves: true, .. })
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
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
    /// What the client will prove: [`NOTHING`], [`KEY`] or [`SESSION`].
    proves: U32,
    /// The name of the key, with [`KEY`].
    key: [u8; 32],
    /// Where it proves something.
    nonce: Nonce,
}

const CONTROL: u32 = 1;
const JOIN: u32 = 2;
const PROBE: u32 = 3;

const SOFTWARE: u32 = 0;
const RDMA: u32 = 1;

const REPLY: u32 = 0;
const FETCH: u32 = 1;

const NOTHING: u32 = 0;
const KEY: u32 = 1;
const SESSION: u32 = 2;

fn kind_of_address(stream: &Stream) -> u32 {
    if stream.provider() == ProviderKind::Rdma { RDMA } else { SOFTWARE }
}

/// A preamble, and what it means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) purpose: Purpose,
    raw: RawPreamble,
}

impl Opening {
    /// What to say on `stream`.
    ///
    /// # Errors
    /// There is no randomness for a nonce.
    pub(super) fn new(stream: &Stream, purpose: Purpose) -> io::Result<Opening> {
        let (kind, token, number, calls) = match purpose {
            Purpose::Probe => (PROBE, Token::default(), 0, REPLY),
            Purpose::Control { queue_pairs, fetch: false, .. } => {
                (CONTROL, Token::default(), queue_pairs, REPLY)
            }
            Purpose::Control { queue_pairs, fetch: true, .. } => {
                (CONTROL, Token::default(), queue_pairs, FETCH)
            }
            Purpose::Join { token, index, .. } => (JOIN, token, index, REPLY),
        };
        let (proves, key) = match purpose {
            Purpose::Control { key: Some(key), .. } => (KEY, key.to_wire()),
            Purpose::Join { proves: true, .. } => (SESSION, [0; 32]),
            _ => (NOTHING, [0; 32]),
        };
        let raw = RawPreamble {
            magic: MAGIC,
            version: VERSION.into(),
            kind: kind.into(),
            token,
            number: number.into(),
            kind_of_address: kind_of_address(stream).into(),
            calls: calls.into(),
            proves: proves.into(),
            key,
            nonce: if purpose.proves() { Nonce::random()? } else { Nonce::default() },
        };
        Ok(Opening { purpose, raw })
    }

    /// As it travels.
    pub(super) fn bytes(&self) -> &[u8] {
        self.raw.as_bytes()
    }
}

/// Reads what a client has come for: never more than the bytes of one preamble.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if the client has come to an address for something else; it is worth telling why.
pub(crate) fn receive_preamble(stream: &mut Stream, deadline: Instant) -> io::Result<Opening> {
    let mut raw = RawPreamble::new_zeroed();
    stream.read_exact_by(&mut raw.as_mut_bytes()[..RawPreamble::FIRST], deadline)?;
    raw.judge_first()?;
    stream.read_exact_by(&mut raw.as_mut_bytes()[RawPreamble::FIRST..], deadline)?;
    let purpose = raw.purpose(kind_of_address(stream))?;
    Ok(Opening { purpose, raw })
}

impl RawPreamble {
    /// Bytes that are the same in every version.
    const FIRST: usize = 16;

    /// Whether the first bytes are those of a client of this version.
    fn judge_first(&self) -> io::Result<()> {
        if self.magic != MAGIC {
            return Err(match self.magic {
                [HANDSHAKE_RECORD, 3, ..] => {
                    io::Error::new(io::ErrorKind::Unsupported, "it wants TLS, and this server has none")
                }
                _ => invalid("not an rdmabox client"),
            });
        }
        if self.version.get() != VERSION {
            let version = self.version.get();
            return Err(invalid(format!("client has protocol version {version}, this is {VERSION}")));
        }
        Ok(())
    }

    /// What the stream is for, which came to an address of kind `ours`.
    fn purpose(&self, ours: u32) -> io::Result<Purpose> {
        let theirs = self.kind_of_address.get();
        if theirs != ours {
            let text = match theirs {
                RDMA => "this is an address for TCP, and none for RDMA: give tcp:host:port",
                _ => "this is an address for RDMA: give rdma:host:port",
            };
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let number = self.number.get();
        let fetch = match self.calls.get() {
            REPLY => false,
            FETCH => true,
            other => return Err(invalid(format!("unknown way of answering calls {other}"))),
        };
        Ok(match (self.kind.get(), self.proves.get()) {
            (CONTROL, NOTHING) => Purpose::Control { queue_pairs: number, fetch, key: None },
            (CONTROL, KEY) => {
                let key = KeyId::from_wire(self.key).ok_or_else(|| invalid("a key without a proper name"))?;
                Purpose::Control { queue_pairs: number, fetch, key: Some(key) }
            }
            (JOIN, NOTHING) => Purpose::Join { token: self.token, index: number, proves: false },
            (JOIN, SESSION) => Purpose::Join { token: self.token, index: number, proves: true },
            (PROBE, NOTHING) => Purpose::Probe,
            (kind, proves) => return Err(invalid(format!("unknown kind of stream {kind}, proof {proves}"))),
        })
    }
}

/// What the first bytes on a stream are for, as [`receive_preamble`] understands them at an address of either kind.
#[cfg(feature = "fuzzing")]
pub(super) fn purpose_of(bytes: &[u8]) -> Option<Purpose> {
    let (raw, _) = RawPreamble::read_from_prefix(bytes).ok()?;
    raw.judge_first().ok()?;
    raw.purpose(SOFTWARE).or_else(|_| raw.purpose(RDMA)).ok()
}
