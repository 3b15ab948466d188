//! Encodes and decodes messages.
//!
//! The encoding is version 1 of postcard, which its authors keep stable. A decoder accepts exactly
//! one message of at most [`MAX_MESSAGE`] bytes, without trailing bytes.

use serde::{Deserialize, Serialize};

use crate::{Attr, Errno, MAX_MESSAGE, Reply, Request, VERSION};

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More than [`MAX_MESSAGE`] bytes.
    #[error("message of {0} bytes, the limit is {MAX_MESSAGE}")]
    TooLong(usize),
    /// The bytes end inside the message.
    #[error("truncated message")]
    Truncated,
    /// Bytes follow the message. The field is their number.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// An unknown variant or an invalid value.
    #[error("malformed message")]
    Malformed,
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match take(bytes)? {
        (message, []) => Ok(message),
        (_, rest) => Err(DecodeError::Trailing(rest.len())),
    }
}

/// Decodes the message at the start of the bytes. Returns it and the bytes after it.
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
        // A Vec accepts any number of bytes, and messages contain no type that postcard refuses.
        Err(e) => unreachable!("a message could not be encoded: {e}"),
    }
}

/// Decodes a request.
pub fn decode_request(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    decode(bytes)
}

/// Returns the version of an `Attach` of any protocol version, or `None` for other messages.
pub fn attach_version(bytes: &[u8]) -> Option<u32> {
    match postcard::take_from_bytes::<(u32, u32)>(bytes) {
        Ok(((0, version), _)) => Some(version),
        _ => None,
    }
}

/// Returns the version of the protocol that a session needs for an encoded request. It is that of
/// the request inside a [`Once`](Request::Once).
pub fn needed_version(request: &[u8]) -> u32 {
    let inner = match decode_request(request) {
        Ok(Request::Once { request, .. }) => decode_request(request),
        request => request,
    };
    inner.map_or(VERSION, |request| request.since())
}

/// Encodes the reply to an `Attach` of another version into `out`, replacing its contents. It is an
/// error, and behind it the newest version of the server. All versions have the same bytes.
pub fn encode_version_refusal(out: &mut Vec<u8>) {
    encode(&Reply::Error(Errno::EPROTONOSUPPORT), out);
    append(&VERSION, out);
}

/// Returns the newest version of the server if the reply is that to an `Attach` of another version.
pub fn refused_by_version(reply: &[u8]) -> Option<u32> {
    match take(reply) {
        Ok((Reply::Error(Errno::EPROTONOSUPPORT), rest)) => decode(rest).ok(),
        _ => None,
    }
}

/// Decodes a reply.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    decode(bytes)
}

/// Decodes a reply and, if present, the attributes of the [directory](Request::directory) after it.
pub fn decode_reply_with(bytes: &[u8]) -> Result<(Reply, Option<Attr>), DecodeError> {
    match take(bytes)? {
        (reply, []) => Ok((reply, None)),
        (reply, rest) => Ok((reply, Some(decode(rest)?))),
    }
}

/// Encodes a request into `out`, replacing its contents.
pub fn encode_request(request: &Request<'_>, out: &mut Vec<u8>) {
    encode(request, out);
}

/// Encodes a reply into `out`, replacing its contents.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    encode(reply, out);
}

/// Encodes a reply and the attributes of the [directory](Request::directory) into `out`, replacing
/// its contents.
pub fn encode_reply_with(reply: &Reply, directory: &Attr, out: &mut Vec<u8>) {
    encode(reply, out);
    append(directory, out);
}
