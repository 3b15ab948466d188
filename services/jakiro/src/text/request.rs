//! Requests to the store. They borrow keys and values from the input of a connection.
//!
//! # Concurrency
//! Plain values.

use crate::store::{Change, Delta};

/// A request to the store. Times are those of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// Finds an item, and changes its time of expiry if there is a new one.
    Get { key: &'a [u8], expires: Option<u64> },
    /// Changes a value.
    Store { key: &'a [u8], change: Change, value: &'a [u8] },
    /// Changes the decimal number that is the value of an item.
    Count { key: &'a [u8], delta: Delta },
    /// Changes the time of expiry of an item.
    Touch { key: &'a [u8], expires: u64 },
    /// Removes an item.
    Delete { key: &'a [u8] },
}

impl<'a> Request<'a> {
    /// Returns the key.
    pub(super) fn key(&self) -> &'a [u8] {
        match *self {
            Request::Get { key, .. }
            | Request::Store { key, .. }
            | Request::Count { key, .. }
            | Request::Touch { key, .. }
            | Request::Delete { key } => key,
        }
    }
}
