//! Requests of clients.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use super::{
    fields::{Fields, put_short},
    status::DecodeError,
};
use crate::store::{Delta, StoreMode};

/// Version of the protocol, 1 to 7: the upper three bits of the first byte of each request.
pub const VERSION: u8 = 1;
const VERSION_SHIFT: u32 = 5;
/// Bytes of the first request that tell this protocol from others.
const MAGIC: [u8; 6] = *b"jakiro";

/// A time to live in milliseconds that does not end.
const FOREVER: u64 = u64::MAX;

/// A request of a client to a partition.
///
/// Times to live are in milliseconds. `None`: the item does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request<'a> {
    /// Asks for the description of the store.
    Hello,
    /// Asks for an item.
    Get {
        /// Ask for the version as well.
        with_version: bool,
        /// The key.
        key: &'a [u8],
    },
    /// Asks for an item, and sets its time to live.
    GetAndTouch {
        /// The new time to live.
        time_to_live: Option<u64>,
        /// The key.
        key: &'a [u8],
    },
    /// Asks for several items.
    GetMany {
        /// The keys, each behind a byte with its length.
        keys: &'a [u8],
    },
    /// Changes a value.
    Store {
        /// The change.
        change: StoreRequest,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
    },
    /// Deletes an item.
    Delete {
        /// The key.
        key: &'a [u8],
    },
    /// Sets a time to live.
    Touch {
        /// The new time to live.
        time_to_live: Option<u64>,
        /// The key.
        key: &'a [u8],
    },
    /// Changes a number.
    ChangeNumber {
        /// The change.
        delta: Delta,
        /// The key.
        key: &'a [u8],
    },
    /// Begins to store a value in parts.
    BeginUpload {
        /// The change.
        change: StoreRequest,
        /// Length of the value in bytes.
        value_len: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Stores the next part.
    ContinueUpload {
        /// Number of the transfer.
        transfer: u32,
        /// The part.
        part: &'a [u8],
    },
    /// Makes the value visible.
    FinishUpload {
        /// Number of the transfer.
        transfer: u32,
    },
    /// Asks for the next part of a long value.
    ContinueDownload {
        /// Number of the transfer.
        transfer: u32,
    },
    /// Removes all items, after a delay in milliseconds.
    Flush {
        /// The delay.
        delay: u64,
    },
    /// Asks for the counters of the partition.
    Counters,
}

/// A change of a value, as a client asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRequest {
    /// The kind of the change.
    pub mode: StoreMode,
    /// Flags of the item.
    pub flags: u32,
    /// Time to live in milliseconds.
    pub time_to_live: Option<u64>,
}

const HELLO: u8 = 0;
const GET: u8 = 1;
const GET_WITH_VERSION: u8 = 2;
const GET_AND_TOUCH: u8 = 3;
const GET_MANY: u8 = 4;
const STORE: u8 = 5;
const DELETE: u8 = 6;
const TOUCH: u8 = 7;
const INCREMENT: u8 = 8;
const DECREMENT: u8 = 9;
const BEGIN_UPLOAD: u8 = 10;
const CONTINUE_UPLOAD: u8 = 11;
const FINISH_UPLOAD: u8 = 12;
const CONTINUE_DOWNLOAD: u8 = 13;
const FLUSH: u8 = 14;
const COUNTERS: u8 = 15;

impl<'a> Request<'a> {
    /// Appends the encoding of the request.
    ///
    /// # Panics
    /// With debug assertions, if a key is longer than 255 bytes. Callers check keys before.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << VERSION_SHIFT | self.operation());
        match *self {
            Request::Hello => out.extend_from_slice(&MAGIC),
            Request::Get { key, .. } | Request::Delete { key } => out.extend_from_slice(key),
            Request::GetAndTouch { time_to_live, key } | Request::Touch { time_to_live, key } => {
                put_u64(out, time_to_live.unwrap_or(FOREVER));
                out.extend_from_slice(key);
            }
            Request::GetMany { keys } => out.extend_from_slice(keys),
            Request::Store { change, key, value } => {
                change.encode(out);
                put_short(out, key);
                out.extend_from_slice(value);
            }
            Request::ChangeNumber { delta: Delta::Up(by) | Delta::Down(by), key } => {
                put_u64(out, by);
                out.extend_from_slice(key);
            }
            Request::BeginUpload { change, value_len, key } => {
                change.encode(out);
                out.extend_from_slice(&value_len.to_le_bytes());
                out.extend_from_slice(key);
            }
            Request::ContinueUpload { transfer, part } => {
                out.extend_from_slice(&transfer.to_le_bytes());
                out.extend_from_slice(part);
            }
            Request::FinishUpload { transfer } | Request::ContinueDownload { transfer } => {
                out.extend_from_slice(&transfer.to_le_bytes());
            }
            Request::Flush { delay } => put_u64(out, delay),
            Request::Counters => {}
        }
    }

    fn operation(&self) -> u8 {
        match self {
            Request::Hello => HELLO,
            Request::Get { with_version: false, .. } => GET,
            Request::Get { with_version: true, .. } => GET_WITH_VERSION,
            Request::GetAndTouch { .. } => GET_AND_TOUCH,
            Request::GetMany { .. } => GET_MANY,
            Request::Store { .. } => STORE,
            Request::Delete { .. } => DELETE,
            Request::Touch { .. } => TOUCH,
            Request::ChangeNumber { delta: Delta::Up(_), .. } => INCREMENT,
            Request::ChangeNumber { delta: Delta::Down(_), .. } => DECREMENT,
            Request::BeginUpload { .. } => BEGIN_UPLOAD,
            Request::ContinueUpload { .. } => CONTINUE_UPLOAD,
            Request::FinishUpload { .. } => FINISH_UPLOAD,
            Request::ContinueDownload { .. } => CONTINUE_DOWNLOAD,
            Request::Flush { .. } => FLUSH,
            Request::Counters => COUNTERS,
        }
    }

    /// Decodes a request. The length of keys is not checked.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no request of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<Request<'a>, DecodeError> {
        let mut fields = Fields::new(bytes);
        let first = fields.u8()?;
        if first >> VERSION_SHIFT != VERSION {
            return Err(DecodeError::Version(first >> VERSION_SHIFT));
        }
        let request = match first & ((1 << VERSION_SHIFT) - 1) {
            HELLO if fields.bytes(MAGIC.len())? == MAGIC => Request::Hello,
            HELLO => return Err(DecodeError::Field("magic")),
            GET => Request::Get { with_version: false, key: fields.rest() },
            GET_WITH_VERSION => Request::Get { with_version: true, key: fields.rest() },
            GET_AND_TOUCH => {
                Request::GetAndTouch { time_to_live: time_to_live(&mut fields)?, key: fields.rest() }
            }
            GET_MANY => Request::GetMany { keys: fields.rest() },
            STORE => Request::Store {
                change: StoreRequest::decode(&mut fields)?,
                key: fields.short_bytes()?,
                value: fields.rest(),
            },
            DELETE => Request::Delete { key: fields.rest() },
            TOUCH => Request::Touch { time_to_live: time_to_live(&mut fields)?, key: fields.rest() },
            INCREMENT => Request::ChangeNumber { delta: Delta::Up(fields.u64()?), key: fields.rest() },
            DECREMENT => Request::ChangeNumber { delta: Delta::Down(fields.u64()?), key: fields.rest() },
            BEGIN_UPLOAD => Request::BeginUpload {
                change: StoreRequest::decode(&mut fields)?,
                value_len: fields.u32()?,
                key: fields.rest(),
            },
            CONTINUE_UPLOAD => Request::ContinueUpload { transfer: fields.u32()?, part: fields.rest() },
            FINISH_UPLOAD => Request::FinishUpload { transfer: fields.u32()? },
            CONTINUE_DOWNLOAD => Request::ContinueDownload { transfer: fields.u32()? },
            FLUSH => Request::Flush { delay: fields.u64()? },
            COUNTERS => Request::Counters,
            _ => return Err(DecodeError::Field("operation")),
        };
        fields.end()?;
        Ok(request)
    }

    /// Appends a key to the keys of a [`GetMany`](Self::GetMany). The key has at most 255 bytes.
    pub fn add_key(keys: &mut Vec<u8>, key: &[u8]) {
        put_short(keys, key);
    }

    /// Returns the keys of a [`GetMany`](Self::GetMany), in order. Ends after an error.
    pub fn keys(keys: &'a [u8]) -> impl Iterator<Item = Result<&'a [u8], DecodeError>> {
        let mut fields = Fields::new(keys);
        std::iter::from_fn(move || {
            if fields.is_empty() {
                return None;
            }
            let key = fields.short_bytes();
            if key.is_err() {
                fields.rest();
            }
            Some(key)
        })
    }
}

const SET: u8 = 0;
const ADD: u8 = 1;
const REPLACE: u8 = 2;
const APPEND: u8 = 3;
const PREPEND: u8 = 4;
const COMPARE_VERSION: u8 = 5;

impl StoreRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.mode {
            StoreMode::Set => SET,
            StoreMode::Add => ADD,
            StoreMode::Replace => REPLACE,
            StoreMode::Append => APPEND,
            StoreMode::Prepend => PREPEND,
            StoreMode::CompareVersion(_) => COMPARE_VERSION,
        });
        if let StoreMode::CompareVersion(version) = self.mode {
            put_u64(out, version);
        }
        out.extend_from_slice(&self.flags.to_le_bytes());
        put_u64(out, self.time_to_live.unwrap_or(FOREVER));
    }

    fn decode(fields: &mut Fields<'_>) -> Result<StoreRequest, DecodeError> {
        let mode = match fields.u8()? {
            SET => StoreMode::Set,
            ADD => StoreMode::Add,
            REPLACE => StoreMode::Replace,
            APPEND => StoreMode::Append,
            PREPEND => StoreMode::Prepend,
            COMPARE_VERSION => StoreMode::CompareVersion(fields.u64()?),
            _ => return Err(DecodeError::Field("mode")),
        };
        Ok(StoreRequest { mode, flags: fields.u32()?, time_to_live: time_to_live(fields)? })
    }
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn time_to_live(fields: &mut Fields<'_>) -> Result<Option<u64>, DecodeError> {
    fields.u64().map(|time| (time != FOREVER).then_some(time))
}
