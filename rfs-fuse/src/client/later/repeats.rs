//! Writes that have to be repeated, each on a thread of its own.

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

/// Repeats a write, which may take long, and answers it.
type Repeat = Box<dyn FnOnce() + Send>;

/// Those that nobody has begun with.
#[derive(Default)]
pub(crate) struct Repeats {
    waiting: Mutex<VecDeque<Repeat>>,
    /// For some of them there was no thread.
    stranded: AtomicBool,
}

impl fmt::Debug for Repeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Repeats").field(&self.waiting.lock().len()).finish()
    }
}

impl Repeats {
    /// One more. Where there is no thread for it, it is left to [`those_left`](Self::those_left): it may be given up by nobody, as it keeps a place.
    pub(super) fn add(self: &Arc<Self>, repeat: Repeat) {
        self.waiting.lock().push_back(repeat);
        // Each thread takes one, whichever.
        let own: Weak<Repeats> = Arc::downgrade(self);
        let one = move || _ = own.upgrade().and_then(|repeats| repeats.next()).map(|repeat| repeat());
        if let Err(e) = thread::Builder::new().name("rfs-write".into()).spawn(one) {
            log::error!("no thread to repeat a write: {e}; the next one who writes does it");
            self.stranded.store(true, Ordering::Release);
        }
    }

    fn next(&self) -> Option<Repeat> {
        self.waiting.lock().pop_front()
    }

    /// Repeats what had no thread to do so. For threads that may wait.
    pub(crate) fn those_left(&self) {
        if self.stranded.load(Ordering::Acquire) && self.stranded.swap(false, Ordering::AcqRel) {
            while let Some(repeat) = self.next() {
                repeat();
            }
        }
    }
}
