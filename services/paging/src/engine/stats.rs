//! Counters of a pager.
//!
//! # Concurrency
//! [`Counters`] are relaxed atomics: the fault thread adds, any thread reads. A snapshot is not
//! one instant.

use std::sync::atomic::{AtomicU64, Ordering};

use rdmabox::StatsSnapshot;
use serde::{Deserialize, Serialize};

macro_rules! counters {
    (
        of_thread { $($(#[$doc:meta])* $name:ident,)* }
        of_sessions { $($(#[$session_doc:meta])* $session:ident,)* }
    ) => {
        /// Counters of the fault thread.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// Counters of a pager since it was made.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        #[non_exhaustive]
        pub struct PagerStats {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$session_doc])* pub $session: u64,)*
        }

        impl PagerStats {
            /// Returns all counters with their names.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name),)*
                    $((stringify!($session), self.$session),)*
                ]
            }

            /// Adds the counters of a session.
            pub(crate) fn add_session(&mut self, stats: &StatsSnapshot) {
                $(self.$session += stats.$session;)*
            }
        }

        impl Counters {
            /// Reads all counters.
            pub(crate) fn snapshot(&self) -> PagerStats {
                PagerStats {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    ..PagerStats::default()
                }
            }
        }
    };
}

counters! {
    of_thread {
        /// Faults on pages that were not resident.
        faults,
        /// Of these, the ones that a page of zeros resolved: the page had no bytes.
        zero_fills,
        /// Stores to a protected page. The page was resident, and no byte moved.
        hits,
        /// Pages that left local memory.
        evictions,
        /// Of these, clean pages. A server had their bytes, and none were sent.
        clean_evictions,
        /// Of these, pages of zeros, which are neither sent nor stored.
        zero_evictions,
        /// Pages that were written out, whether or not they left afterwards.
        pages_written,
        /// Pages that a store changed during their write-out. They stayed.
        redirtied,
        /// Pages that came from a server, with the ones that were read ahead.
        pages_read,
        /// Pages that were read ahead of a fault.
        read_ahead_pages,
        /// Pages that were computed from other pages of their stripe, because their server is lost.
        decoded_pages,
        /// Pages that stayed at their servers and were read for the parity pages of their stripe.
        parity_reads,
        /// Bytes sent to servers, with all copies and parity pages.
        bytes_written,
        /// Bytes read from servers for faults.
        bytes_read,
        /// Requests that were repeated after an error.
        retries,
        /// Servers that are lost.
        servers_lost,
        /// Pages whose bytes are lost.
        pages_lost,
        /// Chunks that another server got after a loss.
        repaired_chunks,
        /// Pages in local memory now.
        resident,
        /// The largest value of `resident`.
        max_resident,
        /// Chunks of servers in use now, with all copies and parity pages.
        chunks,
        /// Faults for which the budget was exceeded, because no server had room.
        over_budget,
    }
    of_sessions {
        /// Requests that travelled in the work request of another one, over all servers.
        merged,
        /// Work requests, over all servers.
        work_requests,
        /// Posts of a list of work requests, over all servers.
        doorbells,
        /// Requests that waited for room in the window, over all servers: in that of their session,
        /// or of their device. By default RDMA devices and modelled cards have one window each.
        window_waits,
        /// Requests that were executed in mapped memory, without a work request.
        direct,
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl Counters {
    /// Sets the number of resident pages.
    pub(crate) fn set_resident(&self, pages: usize) {
        self.resident.store(pages as u64, Ordering::Relaxed);
        self.max_resident.fetch_max(pages as u64, Ordering::Relaxed);
    }
}
