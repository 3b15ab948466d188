//! Calls between a client and a partition, and their encoding.
//!
//! A request begins with a byte for protocol version and operation ([`Request`]). A reply ends with
//! a byte for its [`Status`], and its length is that of the message. A value is the begin of its
//! reply, so it arrives in the buffer of the caller without a further copy. Numbers are
//! little-endian. The first call of each session is [`Request::Hello`].
//!
//! # Concurrency
//! No I/O, no locks, no clock.

mod fields;
mod hello;
mod reply;
mod request;
mod status;

pub use self::{
    hello::{Hello, MAX_ADDRESS, MAX_ADDRESSES},
    reply::{Entries, Entry, ValueReply},
    request::{Request, StoreRequest, VERSION},
    status::{DecodeError, Status},
};

/// Maximum bytes of a value, or of a part of it, in one message. Longer values travel in parts.
pub const MAX_PART: usize = 60 * 1024;
/// Maximum number of keys of a [`Request::GetMany`].
pub const MAX_KEYS: usize = 1024;
/// Maximum number of transfers that a session has at a time.
pub const MAX_TRANSFERS: usize = 64;

#[cfg(test)]
mod tests;
