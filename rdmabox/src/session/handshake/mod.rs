//! The handshake on each stream between client and host, before any memory is reachable.
//!
//! The client opens a control stream and receives the session's token. It then opens one stream
//! per queue pair, which joins by token and index. When all are connected, the host sends a
//! second answer on the control stream. With a key, both sides prove the key's secret on the
//! control stream, and the derived session secret on joining streams. An unknown key is answered
//! like a wrong secret. Without a key the token itself must stay secret. Inside TLS, proofs are
//! bound to the connection (RFC 9266).
//!
//! The host closes a stream that may not join without an answer; `HostQueuePairs` has the rules.
//!
//! # Concurrency
//! Runs on the thread of the stream; no locks.

mod client;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod host;
mod message;
mod preamble;
#[cfg(test)]
mod tests;

use std::{fmt, io, time::Duration};

use subtle::ConstantTimeEq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::stream::Stream;
use crate::auth::{Secret, Transcript};

pub(crate) use client::{introduce, join};
pub(crate) use host::{challenge, prove, send_welcome};
pub(crate) use message::{Answer, receive_answer, send_answer};
pub(crate) use preamble::{Preamble, Purpose, receive_preamble};

const MAGIC: [u8; 8] = *b"rdmabxS\x01";
/// Version of the protocol of sessions. Host and client must have the same version.
pub const VERSION: u32 = 5;

/// Time limit for each answer, for one queue pair, and for all queue pairs of a new session.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// Identity of a machine until its next boot.
pub(crate) type HostId = [u8; 16];

/// Prefix of the TLS binding in a transcript. No preamble begins with it.
const BOUND: &[u8] = b"tls-exporter\0";

/// Starts the transcript of a stream with its preamble. With TLS the channel binding comes first.
/// An attacker between two TLS connections, even with a trusted certificate, therefore cannot
/// forward a proof.
fn start_transcript(secret: Secret, stream: &Stream, preamble: &Preamble) -> Transcript {
    let mut transcript = Transcript::new(secret, &[]);
    if let Some(binding) = stream.binding() {
        transcript.append(BOUND);
        transcript.append(binding);
    }
    transcript.append(preamble.bytes());
    transcript
}

/// Names a session on joining streams. It is random and never printed. Comparing tokens takes the
/// same time for any difference.
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

/// A failure of the handshake that a client tells from others, inside an [`io::Error`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("host has protocol version {host}, this is {}", VERSION)]
    Version { host: u32 },
    #[error("the server does not prove that it has the key")]
    Unproved,
    /// The host refuses the identity of this side on a joining stream.
    #[error("{0}")]
    Denied(String),
}

impl HandshakeError {
    /// Returns the cause of an I/O error, if it is one of these.
    pub(crate) fn of(error: &io::Error) -> Option<&HandshakeError> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        let kind = match error {
            HandshakeError::Version { .. } | HandshakeError::Unproved => io::ErrorKind::InvalidData,
            HandshakeError::Denied(_) => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, error)
    }
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// Returns this machine's identity. Zero if the system reports none; zero matches no host.
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
