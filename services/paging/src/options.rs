//! Settings of a pager.
//!
//! # Concurrency
//! Plain values.

mod switches;

use std::{fmt, sync::Arc};

use rdmabox::SessionOptions;
#[cfg(feature = "model")]
pub use switches::CardSwitch;
pub use switches::{ParseSwitchesError, Switches};

use crate::{
    error::{PagerEvent, PagingError},
    logic::{PAGE, layout::CHUNK, redundancy::Redundancy},
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
    /// How many servers may be lost without the loss of a page.
    pub redundancy: Redundancy,
    /// Length of the longest block that sequential faults read, in bytes. 4096 reads no page ahead.
    pub read_ahead: u64,
    /// The fault thread runs on the core of a thread that faults often, if one thread causes the
    /// faults. This saves interrupts between cores. `false` leaves the thread to the kernel.
    pub follow: bool,
    /// Options of the sessions with the servers: key, TLS, window, polling, timeouts.
    pub session: SessionOptions,
    pub(crate) on_event: Option<EventHandler>,
}

impl PagerOptions {
    /// Returns options with a local budget in bytes. The others are no redundancy, read-ahead of up
    /// to 128 KiB, a fault thread that follows, and the defaults of sessions.
    pub fn new(local_budget: u64) -> PagerOptions {
        PagerOptions {
            local_budget,
            redundancy: Redundancy::None,
            read_ahead: 128 << 10,
            follow: true,
            session: SessionOptions::default(),
            on_event: None,
        }
    }

    /// Sets how many servers get a page, and in which form.
    pub fn redundancy(mut self, redundancy: Redundancy) -> PagerOptions {
        self.redundancy = redundancy;
        self
    }

    /// Sets the length of the longest block that sequential faults read.
    pub fn read_ahead(mut self, bytes: u64) -> PagerOptions {
        self.read_ahead = bytes;
        self
    }

    /// Sets whether the fault thread follows a thread that faults to its core.
    pub fn follow(mut self, follow: bool) -> PagerOptions {
        self.follow = follow;
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
        if !self.redundancy.is_valid() {
            let servers = self.redundancy.servers() as u64;
            return invalid("the redundancy", servers, "2 to 16 data pages and 1 to 4 parity pages");
        }
        if servers < self.redundancy.servers() {
            let allowed = "1; with a mirror 2; with a code its data and parity pages together; or more";
            return invalid("the number of servers", servers as u64, allowed);
        }
        if self.read_ahead < PAGE as u64 || self.read_ahead > CHUNK as u64 {
            return invalid("read_ahead", self.read_ahead, "4096 to 1048576 bytes");
        }
        Ok(())
    }

    /// Returns the budget in pages.
    pub(crate) fn budget_pages(&self) -> usize {
        usize::try_from(self.local_budget).unwrap_or(usize::MAX) / PAGE
    }

    /// Returns the longest block in pages.
    pub(crate) fn read_ahead_pages(&self) -> usize {
        self.read_ahead as usize / PAGE
    }
}

impl fmt::Debug for PagerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagerOptions")
            .field("local_budget", &self.local_budget)
            .field("redundancy", &self.redundancy)
            .field("read_ahead", &self.read_ahead)
            .field("follow", &self.follow)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
