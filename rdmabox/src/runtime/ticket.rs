//! What a caller waits on: a count of requests that are not done, the first error, and the caller's thread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread::{Thread, ThreadId},
};

use parking_lot::Mutex;

use crate::session::RequestError;

/// Most lanes of a session.
pub(crate) const MAX_LANES: usize = 16;

#[derive(Debug)]
pub(crate) struct Ticket {
    remaining: AtomicUsize,
    /// How many of its requests are posted on each lane.
    posted: [AtomicU32; MAX_LANES],
    error: Mutex<Option<RequestError>>,
    thread: Thread,
}

impl Ticket {
    /// A ticket of the calling thread for `requests` requests.
    pub(crate) fn new(requests: usize) -> Arc<Ticket> {
        Arc::new(Ticket {
            remaining: AtomicUsize::new(requests),
            posted: Default::default(),
            error: Mutex::new(None),
            thread: std::thread::current(),
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    /// Notes that one of its requests is posted on `lane`. Before the post.
    pub(crate) fn posted_on(&self, lane: usize) {
        self.posted[lane].fetch_add(1, Ordering::AcqRel);
    }

    /// True if nothing of it is outstanding on `lane`.
    pub(crate) fn is_settled_on(&self, lane: usize) -> bool {
        self.posted[lane].load(Ordering::Acquire) == 0
    }

    /// A lane that something of it is outstanding on.
    pub(crate) fn unsettled_lane(&self) -> Option<usize> {
        (0..MAX_LANES).find(|lane| !self.is_settled_on(*lane))
    }

    /// One request is done: posted on `lane`, or never posted. True if its owner may be asleep and has to look.
    pub(crate) fn complete_one(&self, lane: Option<usize>, result: Result<(), RequestError>) -> bool {
        if let Err(e) = result {
            self.error.lock().get_or_insert(e);
        }
        let all = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        let settled = lane.is_some_and(|lane| self.posted[lane].fetch_sub(1, Ordering::AcqRel) == 1);
        (all || settled) && self.thread.id() != std::thread::current().id()
    }

    /// The outcome, once done.
    pub(crate) fn result(&self) -> Result<(), RequestError> {
        match self.error.lock().take() {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    pub(crate) fn owner(&self) -> ThreadId {
        self.thread.id()
    }

    pub(crate) fn unpark(&self) {
        self.thread.unpark();
    }
}
