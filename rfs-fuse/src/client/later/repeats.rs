//! Repetitions of failed writes, each on its own thread.

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
type Repeat = Box<dyn FnOnce() + Send>;

/// The repetitions that no thread has taken yet.
#[derive(Default)]
pub(crate) struct Repeats {
    waiting: Mutex<VecDeque<Repeat>>,
    /// True if there was no thread for some of them.
    stranded: AtomicBool,
}

impl fmt::Debug for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Repeats").field(&self.waiting.lock().len()).finish()
    }
}

impl Repeats {
    /// Adds a repetition. Without a thread for it, [`those_left`](Self::those_left) runs it: a
    /// repetition must not be dropped, because it keeps space of a file.
    pub(super) fn add(self: &Arc<Self>, repeat: Repeat) {
        self.waiting.lock().push_back(repeat);
        // Each thread takes one repetition, in any order.
        let own: Weak<Repeats> = Arc::downgrade(self);
        let one = move || _ = own.upgrade().and_then(|repeats| repeats.next()).map(|repeat| repeat());
        if let Err(e) = thread::Builder::new().name("rfs-write".into()).spawn(one) {
            log::error!("cannot start a thread that repeats a write, the next write repeats it: {e}");
            self.stranded.store(true, Ordering::Release);
        }
    }

    fn next(&self) -> Option<Repeat> {
        self.waiting.lock().pop_front()
    }

    /// Runs the repetitions that had no thread. The calling thread may block.
    pub(crate) fn those_left(&self) {
        if self.stranded.load(Ordering::Acquire) && self.stranded.swap(false, Ordering::AcqRel) {
            while let Some(repeat) = self.next() {
                repeat();
            }
        }
    }
}
