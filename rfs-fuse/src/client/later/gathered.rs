//! Batches of requests to start.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdmabox::RemoteAddr;

use crate::client::{ReadDone, Remote, WriteDone};

/// Requests, or bytes of them, at which a batch is started.
const MOST: usize = 16;
const MOST_BYTES: usize = 64 << 10;

/// A read or a write that is ready to start.
pub(super) enum Request {
    Read(RemoteAddr, usize, ReadDone),
    Write(RemoteAddr, Vec<u8>, WriteDone),
}

impl Request {
    fn bytes(&self) -> usize {
        match self {
            Request::Read(_, len, _) => *len,
            Request::Write(_, data, _) => data.len(),
        }
    }

    fn start(self, remote: &dyn Remote) {
        match self {
            Request::Read(from, len, done) => remote.read_then(from, len, done),
            Request::Write(to, data, done) => remote.write_then(to, data, done),
        }
    }
}

/// The current batch.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    waiting: Mutex<Waiting>,
    /// Number of requests that are started and have not completed.
    started: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    bytes: usize,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("requests", &self.requests.len()).field("bytes", &self.bytes).finish()
    }
}

impl Gathered {
    /// Adds a request, and starts the batch unless `more` follow and a started request will
    /// complete.
    pub(super) fn add(&self, remote: &dyn Remote, request: Request, more: bool) {
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.bytes += request.bytes();
            waiting.requests.push(request);
            waiting.requests.len() >= MOST || waiting.bytes >= MOST_BYTES
        };
        // The request is in the batch before this check, so a later completion finds it.
        if full || !more || self.started.load(Ordering::SeqCst) == 0 {
            self.start(remote);
        }
    }

    fn start(&self, remote: &dyn Remote) {
        let mut requests = {
            let mut waiting = self.waiting.lock();
            waiting.bytes = 0;
            std::mem::take(&mut waiting.requests)
        };
        if requests.is_empty() {
            return;
        }
        self.started.fetch_add(requests.len(), Ordering::SeqCst);
        remote.together(&mut || requests.drain(..).for_each(|request| request.start(remote)));
    }

    /// Notes a completion, and starts the batch.
    pub(super) fn came_back(&self, remote: &dyn Remote) {
        self.started.fetch_sub(1, Ordering::SeqCst);
        self.start(remote);
    }
}
