//! Options of clients and of their requests.
//!
//! # Concurrency
//! Plain values.

use std::time::Duration;

use rdmabox::{CallsBy, SessionOptions};

use crate::store::StoreMode;

/// Options of a client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Options of the session with each partition: provider, key, TLS, timeouts. `calls` tells how
    /// replies come, and `fetch_size` how many bytes of a reply the first READ fetches.
    pub session: SessionOptions,
}

impl Default for ClientOptions {
    /// Returns options of sessions with one data queue pair, because a client makes calls only.
    fn default() -> Self {
        let mut session = SessionOptions::default();
        session.queue_pairs = 1;
        ClientOptions { session }
    }
}

impl ClientOptions {
    /// Sets the options of sessions.
    #[must_use]
    pub fn session(self, session: SessionOptions) -> ClientOptions {
        ClientOptions { session }
    }

    /// Sets how replies come: by remote fetching or by message.
    #[must_use]
    pub fn calls(mut self, calls: CallsBy) -> ClientOptions {
        self.session.calls = calls;
        self
    }

    /// Sets the bytes of a reply that the first READ fetches, at first, or always if the option
    /// `adapt_fetch_size` of the sessions is false. A reply has the value and 1 byte of status (up
    /// to 13 with flags and version), rounded up to 8 bytes. It also has 24 bytes of framing.
    #[must_use]
    pub fn fetch_size(mut self, fetch_size: usize) -> ClientOptions {
        self.session.fetch_size = fetch_size;
        self
    }
}

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The condition and the kind of the change.
    pub mode: StoreMode,
    /// Flags of the item, which the store does not interpret.
    pub flags: u32,
    /// Time after which the item is gone, in steps of a millisecond. `None`: it does not expire.
    pub time_to_live: Option<Duration>,
}

impl Put {
    /// Stores without flags and without a time to live.
    pub fn new(mode: StoreMode) -> Put {
        Put { mode, flags: 0, time_to_live: None }
    }

    /// Sets the flags.
    #[must_use]
    pub fn flags(self, flags: u32) -> Put {
        Put { flags, ..self }
    }

    /// Sets the time to live.
    #[must_use]
    pub fn time_to_live(self, time: Duration) -> Put {
        Put { time_to_live: Some(time), ..self }
    }
}

/// An item without key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemInfo {
    /// Flags of the item.
    pub flags: u32,
    /// Version of the item, for [`StoreMode::CompareVersion`].
    pub version: u64,
}
