//! The attributes that the caller was told, and the threads that asked for them.
//!
//! # Concurrency
//! Any thread. One lock, held briefly.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
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
    fn of(attr: &Attr) -> VisibleAttrs {
        let marks = attr.marks - Marks::KEEP - Marks::SHARED;
        VisibleAttrs { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, perm: attr.perm, marks }
    }
}

/// The attributes of an inode that the caller was told last.
#[derive(Debug, Default)]
pub(crate) struct ReportedAttrs {
    last: Mutex<Option<VisibleAttrs>>,
    /// Threads of the caller that asked for the attributes since the last change here.
    readers: ReaderThreads,
}

impl ReportedAttrs {
    /// Notes that the caller has cached these attributes, which its thread `thread` asked for.
    pub(crate) fn told(&self, attr: &Attr, thread: u32) {
        self.readers.add(thread);
        *self.last.lock() = Some(VisibleAttrs::of(attr));
    }

    /// Returns the attributes, unless the caller has dropped them.
    pub(crate) fn last(&self) -> Option<VisibleAttrs> {
        *self.last.lock()
    }

    /// Returns true if these attributes differ from those that the caller was told.
    pub(crate) fn differ(&self, attr: &Attr) -> bool {
        self.last() != Some(VisibleAttrs::of(attr))
    }

    /// Notes that the caller has dropped the attributes.
    pub(crate) fn forget(&self) {
        *self.last.lock() = None;
    }

    /// Notes that `thread` has changed the inode. Returns true if another thread has got the
    /// attributes since the last change.
    pub(crate) fn others_were_told(&self, thread: u32) -> bool {
        self.readers.take_others(thread)
    }
}

/// The threads that asked for attributes: none, one, or several.
#[derive(Debug, Default)]
struct ReaderThreads(AtomicU32);

/// Stands for more than one thread.
const SEVERAL: u32 = u32::MAX;

impl ReaderThreads {
    /// Adds a thread.
    fn add(&self, thread: u32) {
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
    fn take_others(&self, thread: u32) -> bool {
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
