//! The preamble of a stream: its purpose, and the proof that the client will give.
//!
//! # Concurrency
//! Runs on the thread of the stream; no locks.

use std::{io, time::Instant};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, byteorder::little_endian::U32};

use super::{MAGIC, Token, VERSION, invalid};
use crate::{
    auth::{KeyId, Nonce},
    session::{address::ProviderKind, stream::Stream},
    tls::HANDSHAKE_RECORD,
};

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Asks for the host's identity and its Unix socket.
    Probe,
    /// Requests a session with `queue_pairs` data queue pairs and a key. Calls use remote fetching
    /// if requested and possible.
    Control { queue_pairs: u32, fetch: bool, key: Option<KeyId> },
    /// Joins the session of `token` as queue pair `index`, initially or as a replacement. Index 0
    /// is for calls and is joined once. The client proves the session's secret if there is one.
    Join { token: Token, index: u32, proves: bool },
}

impl Purpose {
    /// Returns true if the client will give a proof.
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
    /// The kind of address that the client expects: [`RDMA`] or [`SOFTWARE`].
    kind_of_address: U32,
    /// How calls are answered: [`REPLY`] or [`FETCH`].
    calls: U32,
    /// The announced proof: [`NOTHING`], [`KEY`] or [`SESSION`].
    proves: U32,
    /// The name of the key, with [`KEY`].
    key: [u8; 32],
    /// Random if a proof is announced, otherwise zero.
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

/// A preamble in its wire form, with its purpose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preamble {
    pub(crate) purpose: Purpose,
    raw: RawPreamble,
}

impl Preamble {
    /// Creates the preamble for `stream`.
    ///
    /// # Errors
    /// The system has no random numbers for a nonce.
    pub(super) fn new(stream: &Stream, purpose: Purpose) -> io::Result<Preamble> {
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
        Ok(Preamble { purpose, raw })
    }

    /// Returns the wire form.
    pub(super) fn bytes(&self) -> &[u8] {
        self.raw.as_bytes()
    }
}

/// Receives a preamble. Reads no bytes behind it.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] if the client expects another kind of address, or has another
/// version. The reason is worth an answer, which shows this side's version.
pub(crate) fn receive_preamble(stream: &mut Stream, deadline: Instant) -> io::Result<Preamble> {
    let mut raw = RawPreamble::new_zeroed();
    stream.read_exact_by(&mut raw.as_mut_bytes()[..RawPreamble::FIRST], deadline)?;
    raw.check_version()?;
    stream.read_exact_by(&mut raw.as_mut_bytes()[RawPreamble::FIRST..], deadline)?;
    let purpose = raw.purpose(kind_of_address(stream))?;
    Ok(Preamble { purpose, raw })
}

impl RawPreamble {
    /// Length of the part that is equal in every version.
    const FIRST: usize = 16;

    /// Checks that the first bytes come from a client of this version.
    fn check_version(&self) -> io::Result<()> {
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
            let older = if version < VERSION { "client" } else { "host" };
            let text = format!(
                "the client has protocol version {version}, this host {VERSION}: upgrade the {older}"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(())
    }

    /// Decodes the purpose of a stream to an address of kind `ours`.
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

/// Returns the purpose of a preamble, as [`receive_preamble`] decodes it, for either kind of
/// address.
#[cfg(feature = "fuzzing")]
pub(super) fn purpose_of(bytes: &[u8]) -> Option<Purpose> {
    let (raw, _) = RawPreamble::read_from_prefix(bytes).ok()?;
    raw.check_version().ok()?;
    raw.purpose(SOFTWARE).or_else(|_| raw.purpose(RDMA)).ok()
}
