//! Repetitions of failed writes.
//!
//! # Concurrency
//! Polling threads add. Each repetition runs on a thread of its own. If the system has no thread
//! for it, the next session thread that writes runs it. The queue's lock is not held meanwhile.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use parking_lot::Mutex;

/// Repeats a write, which may block for long, and sends its reply.
type WriteRetry = Box<dyn FnOnce() + Send>;

/// The repetitions that no thread has taken yet.
#[derive(Default)]
pub(crate) struct WriteRetries {
    queue: Mutex<VecDeque<WriteRetry>>,
    /// True if there was no thread for some of them.
    stranded: AtomicBool,
}

impl fmt::Debug for WriteRetries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteRetries").field(&self.queue.lock().len()).finish()
    }
}

impl WriteRetries {
    /// Adds a repetition. Without a thread for it, [`run_stranded`](Self::run_stranded) runs it: a
    /// repetition must not be dropped, because it keeps space of a file.
    pub(crate) fn add(self: &Arc<Self>, retry: WriteRetry) {
        self.queue.lock().push_back(retry);
        // Each thread takes one repetition, in any order.
        let own: Weak<WriteRetries> = Arc::downgrade(self);
        let one = move || _ = own.upgrade().and_then(|retries| retries.next()).map(|retry| retry());
        if let Err(e) = thread::Builder::new().name("rfs-write".into()).spawn(one) {
            log::error!("cannot start a thread that retries a write, the next write retries it: {e}");
            self.stranded.store(true, Ordering::Release);
        }
    }

    fn next(&self) -> Option<WriteRetry> {
        self.queue.lock().pop_front()
    }

    /// Runs the repetitions that had no thread. The calling thread may block.
    pub(crate) fn run_stranded(&self) {
        if self.stranded.load(Ordering::Acquire) && self.stranded.swap(false, Ordering::AcqRel) {
            while let Some(retry) = self.next() {
                retry();
            }
        }
    }
}
