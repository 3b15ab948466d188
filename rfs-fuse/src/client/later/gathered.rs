//! Requests that are to be started together.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdmabox::RemoteAddr;

use crate::client::{ReadDone, Remote, WriteDone};

/// So many, or so many bytes of them, are started at once.
const MOST: usize = 16;
const MOST_BYTES: usize = 64 << 10;

/// A read or a write that has only to be started.
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

/// Those that have gathered.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    waiting: Mutex<Waiting>,
    /// Those that were started and have not come back.
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
    /// One more. Those that have gathered are started now, unless `more` follows and one that was started is to come back.
    pub(super) fn add(&self, remote: &dyn Remote, request: Request, more: bool) {
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.bytes += request.bytes();
            waiting.requests.push(request);
            waiting.requests.len() >= MOST || waiting.bytes >= MOST_BYTES
        };
        // After they are there: one that comes back later than this look finds them.
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

    /// One has come back.
    pub(super) fn came_back(&self, remote: &dyn Remote) {
        self.started.fetch_sub(1, Ordering::SeqCst);
        self.start(remote);
    }
}
