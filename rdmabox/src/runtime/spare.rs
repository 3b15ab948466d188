//! Working storage that is used again, so that the request path allocates nothing once it has seen its largest batch.

use crate::sync::Mutex;

/// Values that are not in use. What a user leaves in one is found by the next.
#[derive(Debug)]
pub(crate) struct Spare<T>(Mutex<Vec<Box<T>>>);

/// Values that are kept; more exist only while more threads work at once.
const KEPT: usize = 16;

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Spare(Mutex::new(Vec::with_capacity(KEPT)))
    }
}

impl<T: Default> Spare<T> {
    /// One that nobody uses.
    pub(crate) fn take(&self) -> Box<T> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps it for the next user.
    pub(crate) fn put(&self, value: Box<T>) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            kept.push(value);
        }
    }
}

#[cfg(all(loom, test))]
mod model;
