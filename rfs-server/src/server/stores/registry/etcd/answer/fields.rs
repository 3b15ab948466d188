//! Fields of answers, as the gateway writes them.
//!
//! The gateway writes 64-bit numbers as text, keys and values in base64, and leaves out fields that
//! are zero.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, de::Error};

use super::super::key_store::{Entry, Lease};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Int,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    key: Base64,
    value: Base64,
    mod_revision: Int,
    lease: Int,
}

impl KeyValue {
    /// Returns the entry; `None` if the key is no text, and so is none of this program.
    pub(super) fn into_entry(self) -> Option<Entry> {
        let key = String::from_utf8(self.key.0).ok().filter(|key| !key.is_empty())?;
        Some(Entry { key, value: self.value.0, revision: self.mod_revision.0, lease: Lease(self.lease.0) })
    }
}

/// A number, as text or as a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Int(pub(super) i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Int, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(i64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(number) => Ok(Int(number)),
            Form::Text(text) => text.parse().map(Int).map_err(D::Error::custom),
        }
    }
}

/// Bytes in base64.
#[derive(Debug, Default)]
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Base64, D::Error> {
        let text = String::deserialize(from)?;
        BASE64_STANDARD.decode(text).map(Base64).map_err(D::Error::custom)
    }
}
