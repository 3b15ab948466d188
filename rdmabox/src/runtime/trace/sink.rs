//! The receiver of events.
//!
//! # Concurrency
//! Any thread calls a sink, several at the same time.

use std::fmt;

use super::TraceEvent;

/// Receives the events of sessions.
pub trait TraceSink: Send + Sync + fmt::Debug {
    /// Receives an event, on the thread of the step that it reports, right after the step.
    ///
    /// The runtime may hold locks of its request path. So this must not block, and must not make
    /// requests of a session.
    fn record(&self, event: &TraceEvent<'_>);
}
