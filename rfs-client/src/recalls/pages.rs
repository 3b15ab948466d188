//! Pages that the caller caches of files that other mounts have open, too.
//!
//! A mount that reads on asks the server for the right to cache pages again. A mount that opens a
//! file for writing hears from the server if other mounts have it open. After each write, it has
//! the server recall their pages before the write returns.
//!
//! # Concurrency
//! Session threads. A hold is taken under the lock of the recall log.

use std::sync::{
    Arc,
    atomic::{Ordering, fence},
};

use rfs_proto::{Marks, Request};

use crate::{
    cache::page_hold::is_contested,
    cache::{changes::Effect, recall_log::RequestTime},
    error::ClientError,
    inode::table::InodeTable,
    requests::{cache_rules::CacheRules, calls::Calls, record_reader::RecordReader},
};

/// Makes sure that no mount caches pages that the server would not recall.
#[derive(Debug)]
pub struct PageHolds {
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
}

impl PageHolds {
    pub(crate) fn new(calls: &Arc<Calls>, records: &Arc<RecordReader>) -> PageHolds {
        let (caching, inodes) = (Arc::clone(&calls.caching), Arc::clone(&calls.caching.inodes));
        PageHolds { calls: Arc::clone(calls), caching, inodes, records: Arc::clone(records) }
    }

    /// Returns true if the server would not recall pages of a file that are about to be cached. The
    /// caller then calls [`hold_pages`](Self::hold_pages) first.
    pub fn lacks_hold(&self, ino: u64) -> bool {
        self.inodes.sharing().contested.load(Ordering::SeqCst) > 0
            && self.caching.is_on()
            && self.inodes.get(ino).is_some_and(|inode| inode.hold.is_lost())
    }

    /// Returns true if the kernel was told to drop pages of a file since it was opened.
    pub fn is_contested(&self, ino: u64) -> bool {
        self.inodes.sharing().contested.load(Ordering::SeqCst) > 0
            && self.inodes.get(ino).is_some_and(|inode| is_contested(inode.hold.state()))
    }

    /// Has the server recall pages of a file that are read or written from now on.
    ///
    /// # Errors
    /// The error of the call. No page may be cached then.
    pub fn hold_pages(&self, ino: u64) -> Result<(), ClientError> {
        let Some(inode) = self.inodes.get(ino) else { return Ok(()) };
        let since: RequestTime = self.caching.since();
        self.calls.call_done(&Request::HoldPages { ino })?;
        let guard = self.caching.hold_recalls();
        if inode.hold.is_lost() && !guard.loses_pages(since, ino) {
            inode.hold.hold(self.inodes.sharing());
        }
        Ok(())
    }

    /// Returns true if other mounts may cache pages of a file that is open here for writing.
    pub fn is_shared(&self, ino: u64) -> bool {
        self.inodes.sharing().shared.load(Ordering::SeqCst) > 0
            && self.inodes.get(ino).is_some_and(|inode| !inode.shared.seen().is_multiple_of(2))
    }

    /// Returns true if other mounts may cache pages of a file from before a write that has placed
    /// its bytes. A mapped record tells it without a call.
    pub fn are_cached_elsewhere(&self, ino: u64) -> bool {
        if !self.is_shared(ino) {
            return false;
        }
        // The bytes are visible before the look. A mount that the look misses reads them.
        fence(Ordering::SeqCst);
        let privileges = self.inodes.get(ino).and_then(|inode| self.records.privileges(&inode));
        privileges.is_none_or(|(_, marks)| marks.contains(Marks::PAGES))
    }

    /// Blocks until no other mount caches pages older than the writes before this call.
    ///
    /// # Errors
    /// The error of the call. Other mounts may cache old pages then.
    pub fn drop_others_pages(&self, ino: u64) -> Result<(), ClientError> {
        // Other clients can delay this call, so it counts among the changes.
        let effect = Effect::default();
        let inode = self.inodes.get(ino);
        let seen = inode.as_ref().map(|inode| inode.shared.seen());
        let _under_way = self.caching.changes().begin(&effect);
        let attr = self.calls.call_attr(&Request::DropPages { ino })?;
        if let (Some(inode), Some(seen), false) = (inode, seen, attr.marks.contains(Marks::SHARED)) {
            // From now on other mounts open the file without caching pages.
            inode.shared.end_as_of(seen, self.inodes.sharing());
        }
        Ok(())
    }

    /// Notes a request through the open file `handle`.
    pub fn used(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.pages.used(handle);
        }
    }
}
