//! Bytes to messages and back.
//!
//! The encoding is postcard's (varints, little-endian), which its authors keep stable. A decoder of what a peer
//! sent accepts exactly one message, no byte more, within [`MAX_MESSAGE`].

use serde::{Deserialize, Serialize};

use crate::{Attr, MAX_MESSAGE, Reply, Request};

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Longer than a message can be.
    #[error("message of {0} bytes, the limit is {MAX_MESSAGE}")]
    TooLong(usize),
    /// It ends before it is complete.
    #[error("message ends too early")]
    Truncated,
    /// More bytes than the message has.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// Bytes that stand for nothing.
    #[error("message makes no sense")]
    Malformed,
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match take(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(DecodeError::Trailing(rest.len())),
    }
}

/// The message that the bytes begin with, and the bytes behind it.
fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), DecodeError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    postcard::take_from_bytes(bytes).map_err(|e| match e {
        postcard::Error::DeserializeUnexpectedEnd => DecodeError::Truncated,
        _ => DecodeError::Malformed,
    })
}

fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    out.clear();
    append(message, out);
}

fn append<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    match postcard::to_extend(message, std::mem::take(out)) {
        Ok(encoded) => *out = encoded,
        // A Vec takes any number of bytes and the messages hold no type that postcard refuses.
        Err(e) => unreachable!("a message could not be encoded: {e}"),
    }
}

/// Decodes a request.
pub fn decode_request(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    decode(bytes)
}

/// The version that an `Attach` names, in whatever version the rest of it is. `None` for all other bytes.
pub fn attach_version(bytes: &[u8]) -> Option<u32> {
    match postcard::take_from_bytes::<(u32, u32)>(bytes) {
        Ok(((0, version), _)) => Some(version),
        _ => None,
    }
}

/// Decodes a reply.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    decode(bytes)
}

/// Decodes a reply to a request that changes a name, and the attributes of the [directory](Request::directory) if they came with it.
pub fn decode_reply_with(bytes: &[u8]) -> Result<(Reply, Option<Attr>), DecodeError> {
    match take(bytes)? {
        (reply, []) => Ok((reply, None)),
        (reply, rest) => Ok((reply, Some(decode(rest)?))),
    }
}

/// Encodes a request into `out`, replacing what it held.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    encode(request, out);
}

/// Encodes a reply into `out`, replacing what it held.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    encode(reply, out);
}

/// The same for a reply to a request that changes a name, with the attributes of the [directory](Request::directory).
pub fn encode_reply_with(reply: &Reply, directory: &Attr, out: &mut Vec<u8>) {
    encode(reply, out);
    append(directory, out);
}
