//! Encoding of calls: a magic number with a version, then postcard.
//!
//! Another service, or another version, is told by its first message. A decoder accepts a message
//! with no bytes left over, and never panics.
//!
//! # Concurrency
//! Plain values.

use serde::{Deserialize, Serialize};

/// Prefix of every message. The last byte is the version.
pub type Magic = [u8; 8];

/// Appends a message with its magic number to `out`.
///
/// # Panics
/// If the message has a value that postcard cannot encode, such as a sequence of unknown length.
pub fn encode(magic: &Magic, message: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(magic);
    let bytes = std::mem::take(out);
    *out = postcard::to_extend(message, bytes).expect("postcard encodes plain values");
}

/// Decodes a message; `None` if the bytes are no message of this service and version.
pub fn decode<'a, T: Deserialize<'a>>(magic: &Magic, bytes: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes.strip_prefix(magic)?).ok()?;
    rest.is_empty().then_some(message)
}
