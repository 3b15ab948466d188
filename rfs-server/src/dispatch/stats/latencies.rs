//! How long requests of clients take at the server.
//!
//! A request is recorded from its arrival at the file service until its reply is handed to the
//! runtime. The next recalls and the next lock grants of a session are not recorded: their replies
//! wait for an event, and not for the server.
//!
//! # Concurrency
//! Any thread; relaxed atomics.

use std::time::Duration;

use rdmabox::stats::{Histogram, LatencyRecorder};

/// When a reply left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The thread that handled the request has sent the reply.
    AtOnce,
    /// The reply has waited until other sessions acknowledged recalls.
    AfterRecalls,
}

/// Latencies of the requests of an export.
#[derive(Debug, Default)]
pub struct CallLatencies {
    at_once: LatencyRecorder,
    after_recalls: LatencyRecorder,
}

impl CallLatencies {
    /// Records a request.
    pub fn record(&self, departure: Departure, latency: Duration) {
        match departure {
            Departure::AtOnce => self.at_once.record(latency),
            Departure::AfterRecalls => self.after_recalls.record(latency),
        }
    }

    /// Returns the latencies so far, each with its name in the status.
    pub fn snapshot(&self) -> [(&'static str, Histogram); 2] {
        [("at_once", self.at_once.snapshot()), ("after_recalls", self.after_recalls.snapshot())]
    }
}
