//! The first bytes on a stream between a client and a host, before any memory is reachable.
//!
//! A client that is given a TCP address first asks, on a stream of its own, whether that is its own host. It then opens
//! a control stream, is told the name of its session, and opens one stream per queue pair that it joins with that
//! name; each of those then belongs to its queue pair. When all are connected the host says so on the control
//! stream, which stays open: its end is the end of the session. With the name the client learns the length of its lease,
//! if it has one: it sends a byte on the control stream three times in that time. If it has asked for calls by fetching it learns,
//! too, where its memory for them is, or that there is none.
//!
//! A client that has a key names it in its first words on the control stream, with a nonce. The host answers with a nonce of
//! its own, the client proves that it knows the key's secret, and the host that it does, with its answer in the proof. A host
//! answers a name that it does not know as it answers a wrong secret. Both have a secret of the session then, and on every
//! stream that joins it they prove to each other, in the same way, that they know that one. Without a key the name of the
//! session is what has to be kept secret.
//!
//! Over TCP all this may be inside of TLS, which is then what each stream of a session begins with. Proofs are bound to the TLS
//! connection that they are made on (RFC 9266).
//!
//! Until that end the name stays good: a stream that joins a data queue pair again brings a new one, which takes the
//! place of the one before. Once the two have proved who they are, the host sends nothing on it, not even the greeting of the new
//! queue pair, before its side of the old one is in Err, and, where the client has memory mapped, before the client has closed the
//! old stream: from then on nothing that was posted on the old one takes effect. A stream that the host does not let join is
//! closed without a word, and nothing else of the session notices: one with an unknown name or without a proof, for a place that
//! the session does not have or for that of the calls, on a socket of another kind than the control stream's, the third at a time for
//! one place, and one whose predecessor the client does not close within three seconds after the host has stopped sending on
//! it.

mod client;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod host;
mod message;
mod preamble;
#[cfg(test)]
mod tests;

use std::{fmt, io};

use subtle::ConstantTimeEq;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{key::Secret, proof::Dialogue, stream::Stream};

pub(crate) use client::{introduce, join};
pub(crate) use host::{challenge, prove, send_welcome};
pub(crate) use message::{Answer, receive_answer, send_answer};
pub(crate) use preamble::{Opening, Purpose, receive_preamble};

const MAGIC: [u8; 8] = *b"rdmabxS\x01";
const VERSION: u32 = 4;

/// Identifies a host until it boots again.
pub(crate) type HostId = [u8; 16];

/// In front of what binds a dialogue to a stream with TLS: no preamble begins like this.
const BOUND: &[u8] = b"tls-exporter\0";

/// The dialogue that begins with an opening, on the stream that it was said on. With TLS what only the two ends of that know comes
/// first: whoever stands in between, with two connections and a certificate that is believed, cannot pass a proof on.
fn begin(secret: Secret, stream: &Stream, opening: &Opening) -> Dialogue {
    let mut dialogue = Dialogue::new(secret, &[]);
    if let Some(binding) = stream.binding() {
        dialogue.say(BOUND);
        dialogue.say(binding);
    }
    dialogue.say(opening.bytes());
    dialogue
}

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

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
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
