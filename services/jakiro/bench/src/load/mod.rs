//! Loads: which requests the client threads make.
//!
//! # Concurrency
//! Plain values.

mod requests;
mod zipf;

use serde::{Deserialize, Serialize};

pub(crate) use self::requests::{Requests, key};

/// How often each key is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Popularity {
    /// All keys equally often.
    Uniform,
    /// By Zipf's law with the exponent 0.99.
    Zipf,
}

/// The lengths of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Lengths {
    /// All values have this length in bytes.
    Fixed(usize),
    /// Short texts: 1 to 899 bytes, 43 on average, of which 7 in a million are longer than 512.
    Texts,
}

impl Lengths {
    /// Returns the length of the value of a key.
    pub(crate) fn of(self, number: u64) -> usize {
        match self {
            Lengths::Fixed(len) => len,
            Lengths::Texts => requests::text_length(number),
        }
    }
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Gets of 100 requests. The others are puts.
    pub(crate) get_percent: u8,
    /// The lengths of values.
    pub(crate) lengths: Lengths,
    /// How often each key is used.
    pub(crate) popularity: Popularity,
    /// Number of keys.
    pub(crate) keys: u64,
}
