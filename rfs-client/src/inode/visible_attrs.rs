//! The attributes that the caller was told, and the threads that asked for them.
//!
//! # Concurrency
//! Any thread. No locks: [`ReaderThreads`] is one atomic word.

use std::sync::atomic::{AtomicU32, Ordering};

use rfs_proto::{Attr, Marks};

/// The attributes that tell whether a file changed, and the permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VisibleAttrs {
    size: u64,
    mtime: i64,
    pub(crate) ctime: i64,
    perm: u32,
    marks: Marks,
}

impl VisibleAttrs {
    pub(crate) fn of(attr: &Attr) -> VisibleAttrs {
        let marks = attr.marks - Marks::KEEP - Marks::SHARED;
        VisibleAttrs { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, perm: attr.perm, marks }
    }
}

/// The threads that asked for attributes: none, one, or several.
#[derive(Debug, Default)]
pub(crate) struct ReaderThreads(AtomicU32);

/// Stands for more than one thread.
const SEVERAL: u32 = u32::MAX;

impl ReaderThreads {
    /// Adds a thread.
    pub(crate) fn add(&self, thread: u32) {
        // A thread without a known number counts as several.
        let thread = if thread == 0 { SEVERAL } else { thread };
        let with = |before| match before {
            0 => Some(thread),
            before if before == thread => None,
            _ => Some(SEVERAL),
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with).ok();
    }

    /// Forgets all threads. Returns true if another thread than `thread` was among them.
    pub(crate) fn take_others(&self, thread: u32) -> bool {
        let before = self.0.swap(0, Ordering::Relaxed);
        before != 0 && before != thread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_tell_other_threads_from_this_one() {
        let readers = ReaderThreads::default();
        assert!(!readers.take_others(5));
        readers.add(5);
        readers.add(5);
        assert!(!readers.take_others(5) && !readers.take_others(6));
        readers.add(5);
        assert!(readers.take_others(6));
        readers.add(5);
        readers.add(6);
        assert!(readers.take_others(6));
    }
}
