//! A connected queue pair for tests, whose posts a function handles.
//!
//! # Concurrency
//! Any thread may call it. The function runs on the posting thread, without locks.

use std::{fmt, time::Duration};

use super::{PostError, QpCaps, QpState, QueuePair, RecvWr, Rendezvous, SendWr, VerbsError};
use crate::sync::atomic::{AtomicBool, Ordering};

/// A connected queue pair that passes each list to `post`. It receives nothing.
pub(crate) struct StubQp<P> {
    pub(crate) caps: QpCaps,
    pub(crate) executes_at_post: bool,
    failed: AtomicBool,
    post: P,
}

impl<P: Fn(&[SendWr<'_>]) -> Result<(), PostError>> StubQp<P> {
    pub(crate) fn new(post: P) -> StubQp<P> {
        let (caps, failed) = (QpCaps::default(), AtomicBool::new(false));
        StubQp { caps, executes_at_post: false, failed, post }
    }

    /// Sets the places of the send queue.
    pub(crate) fn places(mut self, places: usize) -> StubQp<P> {
        self.caps.max_send_wr = places as u32;
        self
    }
}

impl<P> fmt::Debug for StubQp<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StubQp").field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl<P> super::Sealed for StubQp<P> {}

impl<P: Fn(&[SendWr<'_>]) -> Result<(), PostError> + Send + Sync> QueuePair for StubQp<P> {
    fn qp_num(&self) -> u32 {
        1
    }

    fn state(&self) -> QpState {
        if self.failed.load(Ordering::SeqCst) { QpState::Err } else { QpState::Rts }
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    fn connect(&self, _: Rendezvous, _: Duration) -> Result<(), VerbsError> {
        unreachable!("it is connected")
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        (self.post)(list)
    }

    fn post_recv(&self, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        unreachable!("nothing is received")
    }

    fn to_error(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    fn executes_at_post(&self) -> bool {
        self.executes_at_post
    }
}
