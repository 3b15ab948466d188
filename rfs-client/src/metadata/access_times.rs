//! Access times: which reads count, and the report to the server.
//!
//! # Concurrency
//! Session threads.

use std::sync::{Arc, atomic::Ordering};

use rfs_proto::{Attr, Errno, Request};

use crate::{
    error::ClientError,
    inode::{Inode, access::AccessTimes, table::InodeTable},
    metadata::attributes::Attributes,
    remote::clock::ServerClock,
    requests::{cache_rules::CacheRules, calls::Calls},
};

/// Longest interval in which the kernel's times of written files do not advance.
const KERNEL_TICK_NS: i64 = 10_000_000;

/// Notes the reads that change access times, and reports them to the server.
#[derive(Debug)]
pub struct AccessReports {
    calls: Arc<Calls>,
    caching: Arc<CacheRules>,
    inodes: Arc<InodeTable>,
    attributes: Arc<Attributes>,
    clock: ServerClock,
    files: AccessTimes,
    directories: AccessTimes,
}

impl AccessReports {
    /// Creates the reports under these rules for files and directories.
    pub(crate) fn new(
        calls: &Arc<Calls>,
        attributes: &Arc<Attributes>,
        clock: ServerClock,
        (files, directories): (AccessTimes, AccessTimes),
    ) -> AccessReports {
        let (caching, inodes) = (Arc::clone(&calls.caching), Arc::clone(&calls.caching.inodes));
        let (calls, attributes) = (Arc::clone(calls), Arc::clone(attributes));
        AccessReports { calls, caching, inodes, attributes, clock, files, directories }
    }

    /// Notes that a file with these attributes was opened for reading. Returns true if that changes
    /// the access time.
    ///
    /// With `unseen`, the kernel may serve reads from its page cache, unseen by this client. The
    /// open itself then counts as a read. With `unwritten`, the kernel may also have bytes that it
    /// has not written back, so an empty file may have something to read.
    pub fn will_read(&self, attr: &Attr, unseen: bool, unwritten: bool) -> bool {
        let now = self.clock.now();
        // The kernel's times of a new file may lie before its access time, which is the server's.
        let slack = if unwritten { KERNEL_TICK_NS } else { 0 };
        let before = Attr { atime: attr.atime.saturating_sub(slack), ..*attr };
        if attr.size == 0 && !unwritten || !self.files.counts(&before, now) {
            return false;
        }
        let Some(inode) = self.inodes.get(attr.ino) else { return false };
        match unseen {
            true => inode.note_access(now),
            false => inode.access_due.store(true, Ordering::Relaxed),
        }
        unseen
    }

    /// Notes that a directory with these attributes is read from its beginning. Returns true if
    /// that changes the access time.
    pub fn reads_directory(&self, attr: &Attr) -> Result<bool, ClientError> {
        let now = self.clock.now();
        match self.inodes.get(attr.ino) {
            Some(inode) if self.directories.counts(attr, now) => {
                inode.note_access(now);
                self.caching.directory_is_read(inode.ino);
                self.tell_access(&inode).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Notes that a directory was opened whose listing the caller has cached. The open counts as a
    /// read, because this client does not see the reads. Returns true if that changes the access
    /// time.
    pub fn will_list(&self, ino: u64) -> Result<bool, ClientError> {
        if self.directories == AccessTimes::Never {
            return Ok(false);
        }
        match self.attributes.getattr(ino) {
            Ok(attr) => self.reads_directory(&attr),
            // The directory was removed, but a process may still use it as its working directory.
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reports the last read to the server, if needed.
    pub(crate) fn tell_access(&self, inode: &Inode) -> Result<(), ClientError> {
        inode.access_due.store(false, Ordering::Relaxed);
        let noted = inode.caller.lock().last_read.take_noted();
        match noted {
            Some(at) => self.calls.start(&Request::Accessed { ino: inode.ino, at }),
            None => Ok(()),
        }
    }
}
