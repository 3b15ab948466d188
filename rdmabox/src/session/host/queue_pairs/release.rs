//! The end of queue pairs: the client releases mapped memory, and the host ends the queue pairs.
//!
//! # Concurrency
//! Called by stream threads and the session's thread, without locks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::Entry;
use crate::{session::stream::Stream, verbs::QueuePair};

/// Time limit for a client to release mapped memory when one of its queue pairs ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval between checks for the release.
pub(super) const RELEASE_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The queue pairs of an ended session.
#[derive(Debug)]
pub(crate) struct ClosedQueuePairs {
    pub(super) data: usize,
    pub(super) entries: Vec<Entry>,
}

impl ClosedQueuePairs {
    /// Returns the queue pairs for calls and for deferred replies.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Arc<dyn QueuePair>> {
        [0, self.data + 1].into_iter().filter_map(|index| self.entries.get(index)?.qp.as_ref())
    }

    /// Ends all queue pairs, so later requests have no effect. Returns whether they have stopped.
    /// If the client does not release mapped memory, returns `self` as the error. The caller then
    /// waits for [`is_released`](Self::is_released).
    pub(crate) fn end(self) -> Result<bool, ClosedQueuePairs> {
        let mapped: Vec<&Stream> = self.mapped().collect();
        if !request_release(&mapped, || false) {
            return Err(self);
        }
        Ok(self.force())
    }

    /// Ends all queue pairs, even of a client that has not released mapped memory; the host cannot
    /// observe its release afterwards. Returns false if a device has not stopped and may still
    /// access memory.
    pub(crate) fn force(self) -> bool {
        let qps = || self.entries.iter().filter_map(|entry| entry.qp.as_ref());
        qps().for_each(|qp| qp.to_error());
        qps().all(|qp| qp.is_stopped())
    }

    /// Returns true if the client has released all mapped memory.
    pub(crate) fn is_released(&self) -> bool {
        self.mapped().all(Stream::is_over)
    }

    fn mapped(&self) -> impl Iterator<Item = &Stream> {
        self.entries.iter().filter_map(|entry| entry.stream.as_deref())
    }
}

/// Asks a client to release mapped memory, and waits for that. Returns false after a timeout, or
/// once `is_cancelled` returns true.
///
/// The client executes its requests itself, and the host cannot stop them. But the client's side
/// of a queue pair ends when the host stops sending. It waits for the post in progress, then
/// closes the stream. A closed or dead client has closed its streams already.
pub(super) fn request_release(mapped: &[&Stream], is_cancelled: impl Fn() -> bool) -> bool {
    mapped.iter().for_each(|stream| stream.shutdown_write());
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    while !mapped.iter().all(|stream| stream.is_over()) {
        if is_cancelled() || Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(RELEASE_POLL_INTERVAL);
    }
    true
}
