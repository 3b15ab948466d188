//! Reads and writes in flight: their number, batches of requests to start, and repetitions.
//!
//! # Concurrency
//! Session threads start, polling threads complete.

pub(crate) mod coalescer;
pub(crate) mod in_flight;
pub(crate) mod write_retries;

use std::sync::Arc;

use rdmabox::Until;

use crate::{
    remote::{Remote, operation::Transfer},
    transfers::{
        coalescer::Coalescer,
        in_flight::{AloneStreak, InFlight, InFlightGuard, QueueHint},
        write_retries::WriteRetries,
    },
};

/// The reads and writes of a client in flight.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    in_flight: InFlight,
    alone_streak: AloneStreak,
    coalescer: Coalescer,
    pub(crate) retries: Arc<WriteRetries>,
}

impl Transfers {
    /// Counts a read or write that a thread blocks for.
    pub(crate) fn count(&self) -> InFlightGuard {
        self.in_flight.enter()
    }

    /// Returns the other work of the thread, or `None` if this request is alone.
    pub(crate) fn queue_hint(&self, next: impl FnOnce() -> QueueHint) -> Option<QueueHint> {
        if self.in_flight.any() {
            self.alone_streak.end();
            return Some(next());
        }
        self.alone_streak.finds_next(next).then_some(QueueHint::Waits)
    }

    /// Starts a request, with others if more are waiting. May poll completions if none is.
    pub(crate) fn start(&self, remote: &dyn Remote, request: Transfer, next: QueueHint) {
        let request = request.traced();
        match next {
            QueueHint::Waits | QueueHint::Follows | QueueHint::Unknown => {
                self.coalescer.add(remote, request, next)
            }
            QueueHint::Nothing => self.coalescer.add_and_poll(remote, request, Until::AllDone),
            QueueHint::PollForReplies => self.coalescer.add_and_poll(remote, request, Until::AnyDone),
        }
    }

    /// Starts the requests that wait for another one of their caller.
    pub(crate) fn flush(&self, remote: &dyn Remote) {
        self.coalescer.flush(remote);
    }

    /// Polls until a started request completes, for 100 microseconds at most. Returns false if none
    /// is started.
    pub(crate) fn poll(&self, remote: &dyn Remote) -> bool {
        let any = self.coalescer.has_started();
        if any {
            remote.start(Vec::new(), Some(Until::AnyDone));
        }
        any
    }

    /// Returns the largest number of started requests at once.
    pub(crate) fn started_peak(&self) -> usize {
        self.coalescer.peak()
    }

    /// Notes that a started request has completed.
    pub(crate) fn completed(&self, remote: &dyn Remote) {
        self.coalescer.completed(remote);
    }
}
