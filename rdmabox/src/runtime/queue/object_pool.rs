//! Reuses working storage, so that the request path allocates nothing after its largest batch.
//!
//! # Concurrency
//! Called from any thread. The lock is a leaf.

use crate::sync::Mutex;

/// A pool of unused values. A value keeps the contents that its last user left.
#[derive(Debug)]
pub(crate) struct ObjectPool<T>(Mutex<Vec<Box<T>>>);

/// Limit of the kept values. More exist while more threads work at once.
const MAX_KEPT: usize = 16;

impl<T> Default for ObjectPool<T> {
    fn default() -> Self {
        ObjectPool(Mutex::new(Vec::with_capacity(MAX_KEPT)))
    }
}

impl<T: Default> ObjectPool<T> {
    /// Takes an unused value, or makes one.
    pub(crate) fn take(&self) -> Box<T> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// Keeps the value for the next user.
    pub(crate) fn put(&self, value: Box<T>) {
        let mut kept = self.0.lock();
        if kept.len() < MAX_KEPT {
            kept.push(value);
        }
    }
}

#[cfg(all(loom, test))]
mod model;
