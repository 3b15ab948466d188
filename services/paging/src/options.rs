//! Settings of a pager.
//!
//! # Concurrency
//! Plain values.

use std::{fmt, sync::Arc};

use rdmabox::SessionOptions;

use crate::{
    error::{PagerEvent, PagingError},
    logic::{PAGE, chunks::CHUNK},
};

/// Smallest budget: an instruction may need several pages at once, and so may several threads.
pub(crate) const MIN_BUDGET_PAGES: u64 = 32;

/// Receives events; see [`PagerOptions::on_event`].
pub(crate) type EventHandler = Arc<dyn Fn(&PagerEvent) + Send + Sync>;

/// Settings of a [`RemotePager`](crate::RemotePager).
#[derive(Clone)]
#[non_exhaustive]
pub struct PagerOptions {
    /// Bytes of local memory for the pages of all regions, at least 128 KiB. Rounded down to pages.
    pub local_budget: u64,
    /// Servers that get each page: 1, or 2 for a mirror.
    pub copies: usize,
    /// Length of the longest block that sequential faults read, in bytes. 4096 reads no page ahead.
    pub read_ahead: u64,
    /// Options of the sessions with the servers: key, TLS, window, polling, timeouts.
    pub session: SessionOptions,
    pub(crate) on_event: Option<EventHandler>,
}

impl PagerOptions {
    /// One copy of each page, read-ahead of up to 128 KiB, and the default session options.
    pub fn new(local_budget: u64) -> PagerOptions {
        PagerOptions {
            local_budget,
            copies: 1,
            read_ahead: 128 << 10,
            session: SessionOptions::default(),
            on_event: None,
        }
    }

    /// Sets the number of servers that get each page.
    pub fn copies(mut self, copies: usize) -> PagerOptions {
        self.copies = copies;
        self
    }

    /// Sets the length of the longest block that sequential faults read.
    pub fn read_ahead(mut self, bytes: u64) -> PagerOptions {
        self.read_ahead = bytes;
        self
    }

    /// Sets the options of the sessions with the servers.
    pub fn session(mut self, options: SessionOptions) -> PagerOptions {
        self.session = options;
        self
    }

    /// Sets a function that receives events. A thread of its own calls it, so it may use paged
    /// memory. Without it events go to the log, as errors.
    pub fn on_event(mut self, handler: impl Fn(&PagerEvent) + Send + Sync + 'static) -> PagerOptions {
        self.on_event = Some(Arc::new(handler));
        self
    }

    /// Checks the values for a number of servers.
    pub(crate) fn check(&self, servers: usize) -> Result<(), PagingError> {
        let invalid = |option, value, allowed| Err(PagingError::InvalidOption { option, value, allowed });
        if self.local_budget / (PAGE as u64) < MIN_BUDGET_PAGES {
            return invalid("local_budget", self.local_budget, "at least 131072 bytes");
        }
        if servers == 0 {
            return invalid("the number of servers", 0, "at least 1");
        }
        if self.copies == 0 || self.copies > 2 {
            return invalid("copies", self.copies as u64, "1, or 2 for a mirror");
        }
        if self.copies > servers {
            return invalid("copies", self.copies as u64, "at most the number of servers");
        }
        if self.read_ahead < PAGE as u64 || self.read_ahead > CHUNK as u64 {
            return invalid("read_ahead", self.read_ahead, "4096 to 1048576 bytes");
        }
        Ok(())
    }

    /// The budget in pages.
    pub(crate) fn budget_pages(&self) -> usize {
        usize::try_from(self.local_budget).unwrap_or(usize::MAX) / PAGE
    }

    /// The longest block in pages.
    pub(crate) fn read_ahead_pages(&self) -> usize {
        self.read_ahead as usize / PAGE
    }
}

impl fmt::Debug for PagerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagerOptions")
            .field("local_budget", &self.local_budget)
            .field("copies", &self.copies)
            .field("read_ahead", &self.read_ahead)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
