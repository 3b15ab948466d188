//! Access times: which reads count, and the report to the server.
//!
//! As with relatime, a read counts if the file has changed since the last access, or that access
//! is a day old. The client notes the time, shows it in attributes, and reports it with the last
//! close by a started call. If the client dies, its noted time is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rfs_proto::{Attr, Errno, Request};

use crate::{Client, ClientError, inode::Inode};

/// The reads that count as an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The first read after a change, and after a day.
    #[default]
    Relative,
    /// Every read.
    Always,
    /// No read.
    Never,
}

const DAY_NS: i64 = 24 * 60 * 60 * 1_000_000_000;

impl AccessTimes {
    /// Returns true if a read at `now` counts.
    fn counts(self, attr: &Attr, now: i64) -> bool {
        match self {
            AccessTimes::Relative => {
                attr.atime <= attr.mtime
                    || attr.atime <= attr.ctime
                    || now.saturating_sub(attr.atime) >= DAY_NS
            }
            AccessTimes::Always => true,
            AccessTimes::Never => false,
        }
    }
}

/// Time of the last read that counted, until the server shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastRead {
    /// There is none, or the server has shown it.
    #[default]
    Known,
    /// The client has to report it.
    Noted(i64),
    /// The client has reported it, and the report may be in flight.
    Told(i64),
}

/// The last access to an inode by this client.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// True if the next read counts.
    due: AtomicBool,
    last: Mutex<LastRead>,
}

impl Access {
    fn note(&self, now: i64) {
        *self.last.lock() = LastRead::Noted(now);
    }

    /// Returns the access time to show, given the server's `atime`.
    pub(crate) fn latest(&self, atime: i64) -> i64 {
        let mut last = self.last.lock();
        match *last {
            LastRead::Noted(read) | LastRead::Told(read) if read > atime => read,
            LastRead::Noted(_) => atime,
            LastRead::Told(_) | LastRead::Known => {
                *last = LastRead::Known;
                atime
            }
        }
    }

    /// Returns the time to report, once.
    fn take_noted(&self) -> Option<i64> {
        self.due.store(false, Ordering::Relaxed);
        let mut last = self.last.lock();
        let LastRead::Noted(read) = *last else { return None };
        *last = LastRead::Told(read);
        Some(read)
    }

    /// Forgets the noted time before a call sets another. Returns true if a report may be in
    /// flight.
    pub(crate) fn forget(&self) -> bool {
        matches!(std::mem::take(&mut *self.last.lock()), LastRead::Told(_))
    }
}

impl Client {
    /// Notes that a file with these attributes was opened for reading. Returns true if that changes
    /// the access time.
    ///
    /// With `unseen`, the kernel may serve reads from its page cache, unseen by this client. The
    /// open itself then counts as a read.
    pub fn will_read(&self, attr: &Attr, unseen: bool) -> bool {
        let now = self.clock.now();
        if attr.size == 0 || !self.access_times.counts(attr, now) {
            return false;
        }
        let Some(inode) = self.inodes.get(attr.ino) else { return false };
        match unseen {
            true => inode.access.note(now),
            false => inode.access.due.store(true, Ordering::Relaxed),
        }
        unseen
    }

    /// Notes that a directory with these attributes is read from its beginning. Returns true if
    /// that changes the access time.
    pub fn reads_directory(&self, attr: &Attr) -> Result<bool, ClientError> {
        let now = self.clock.now();
        match self.inodes.get(attr.ino) {
            Some(inode) if self.directory_access_times.counts(attr, now) => {
                inode.access.note(now);
                self.directory_is_read(inode.ino);
                self.tell_access(&inode).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Notes that a directory was opened whose listing the caller has cached. The open counts as a
    /// read, because this client does not see the reads. Returns true if that changes the access
    /// time.
    pub fn will_list(&self, ino: u64) -> Result<bool, ClientError> {
        if self.directory_access_times == AccessTimes::Never {
            return Ok(false);
        }
        match self.getattr(ino) {
            Ok(attr) => self.reads_directory(&attr),
            // The directory was removed, but a process may still use it as its working directory.
            Err(ClientError::Errno(Errno::ENOENT)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Notes that a file is read.
    pub(crate) fn was_read(&self, inode: &Inode) {
        if inode.access.due.load(Ordering::Relaxed) {
            inode.access.due.store(self.access_times == AccessTimes::Always, Ordering::Relaxed);
            inode.access.note(self.clock.now());
        }
    }

    /// Notes that a file was written: the next read counts.
    pub(crate) fn was_written(&self, inode: &Inode) {
        if self.access_times == AccessTimes::Relative {
            inode.access.due.store(true, Ordering::Relaxed);
        }
    }

    /// Reports the last read to the server, if needed.
    pub(crate) fn tell_access(&self, inode: &Inode) -> Result<(), ClientError> {
        match inode.access.take_noted() {
            Some(at) => self.start(&Request::Accessed { ino: inode.ino, at }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{FileKind, Marks};

    use super::*;

    fn attr(atime: i64, mtime: i64, ctime: i64) -> Attr {
        Attr {
            ino: 5,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 1,
            blocks: 8,
            atime,
            mtime,
            ctime,
            layout_generation: 0,
            slot: 1,
            marks: Marks::empty(),
        }
    }

    #[test]
    fn a_read_counts_after_a_change_and_after_a_day() {
        let counts = |attr: Attr, now| AccessTimes::Relative.counts(&attr, now);
        assert!(counts(attr(10, 10, 10), 11), "it has not been read since it was made");
        assert!(counts(attr(20, 30, 10), 31) && counts(attr(20, 10, 30), 31));
        assert!(!counts(attr(20, 10, 10), 31));
        assert!(!counts(attr(20, 10, 10), 19 + DAY_NS) && counts(attr(20, 10, 10), 20 + DAY_NS));
        // Clocks at the limits of the type.
        assert!(!counts(attr(i64::MAX, 0, 0), i64::MIN) && counts(attr(1 - DAY_NS, -DAY_NS, -DAY_NS), 1));
        assert!(AccessTimes::Always.counts(&attr(20, 10, 10), 31));
        assert!(!AccessTimes::Never.counts(&attr(10, 10, 10), 11));
    }

    #[test]
    fn a_read_shows_until_the_server_knows_of_it() {
        let access = Access::default();
        assert_eq!((access.latest(5), access.take_noted(), access.forget()), (5, None, false));
        access.note(10);
        assert_eq!((access.latest(5), access.latest(20), access.latest(5)), (10, 20, 10));
        assert_eq!((access.take_noted(), access.take_noted()), (Some(10), None));
        assert_eq!((access.latest(5), access.latest(10)), (10, 10));
        assert_eq!(access.latest(5), 5, "it was set to that since");
        access.note(10);
        assert!(!access.forget(), "the server has not been told");
        access.note(10);
        access.take_noted();
        assert!(access.forget() && !access.forget());
        assert_eq!(access.latest(5), 5);
    }
}
