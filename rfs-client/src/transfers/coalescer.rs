//! Batches of requests to start.
//!
//! A thread that knows of a waiting request leaves its own request in the batch. The batch starts
//! when it is full, when no request waits, or when a started request completes. It also starts when
//! a caller that announced another request flushes it.
//!
//! # Concurrency
//! Session threads add, polling threads complete. The batch's lock is held briefly, never over a
//! start.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdmabox::Until;

use crate::{
    remote::{Remote, operation::Transfer},
    transfers::in_flight::QueueHint,
};

/// Requests, or bytes of them, at which a batch is started.
const MAX_REQUESTS: usize = 16;
const MAX_BYTES: usize = 64 << 10;

/// The current batch.
#[derive(Debug, Default)]
pub(crate) struct Coalescer {
    batch: Mutex<Batch>,
    /// Number of requests that are started and have not completed.
    started: AtomicUsize,
    /// Largest value of `started`.
    peak: AtomicUsize,
}

#[derive(Default)]
struct Batch {
    requests: Vec<Transfer>,
    bytes: usize,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("requests", &self.requests.len()).field("bytes", &self.bytes).finish()
    }
}

impl Coalescer {
    /// Adds a request, and starts the batch. Leaves the request in the batch if another one waits
    /// and a started request will complete, or if the caller adds another one or flushes.
    pub(crate) fn add(&self, remote: &dyn Remote, request: Transfer, next: QueueHint) {
        let full = self.push(request);
        let stays = match next {
            QueueHint::Follows => true,
            // The request is in the batch before this check, so a later completion finds it.
            QueueHint::Waits => self.has_started(),
            QueueHint::Nothing | QueueHint::PollForReplies | QueueHint::Unknown => false,
        };
        if full || !stays {
            self.flush(remote);
        }
    }

    /// Starts the batch.
    pub(crate) fn flush(&self, remote: &dyn Remote) {
        self.start(remote, None);
    }

    /// Returns true if a request is started and has not completed.
    pub(crate) fn has_started(&self) -> bool {
        self.started.load(Ordering::SeqCst) > 0
    }

    /// Returns the largest number of requests that were started at once.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Adds a request and starts the batch. Then polls completions on this thread.
    pub(crate) fn add_and_poll(&self, remote: &dyn Remote, request: Transfer, until: Until) {
        self.push(request);
        self.start(remote, Some(until));
    }

    /// Returns true if the batch is full now.
    fn push(&self, request: Transfer) -> bool {
        let mut batch = self.batch.lock();
        batch.bytes += request.byte_len();
        batch.requests.push(request);
        batch.requests.len() >= MAX_REQUESTS || batch.bytes >= MAX_BYTES
    }

    fn start(&self, remote: &dyn Remote, until: Option<Until>) {
        let requests = {
            let mut batch = self.batch.lock();
            batch.bytes = 0;
            std::mem::take(&mut batch.requests)
        };
        // Another thread may have started the request. Then this thread only polls.
        if requests.is_empty() && until.is_none() {
            return;
        }
        let started = self.started.fetch_add(requests.len(), Ordering::SeqCst) + requests.len();
        // Only a change is stored, because all threads read the word.
        if started > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(started, Ordering::Relaxed);
        }
        remote.start(requests, until);
    }

    /// Notes a completion, and starts the batch.
    pub(crate) fn completed(&self, remote: &dyn Remote) {
        self.started.fetch_sub(1, Ordering::SeqCst);
        self.start(remote, None);
    }
}
