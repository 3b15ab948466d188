//! Times of reads and writes that this client makes.
//!
//! # Concurrency
//! Session threads. Holds the inode's `times` over one small WRITE.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    error::ClientError,
    inode::{Inode, access::AccessTimes, write_times::WriteTimes},
    remote::clock::ServerClock,
    requests::record_reader::RecordReader,
};

/// Notes and publishes the times of this client's reads and writes of files.
#[derive(Debug)]
pub(crate) struct FileTimes {
    pub(crate) records: Arc<RecordReader>,
    pub(crate) clock: ServerClock,
    pub(crate) access_times: AccessTimes,
    /// True if the session may only read the memory: the server sets the times.
    pub(crate) confined: bool,
}

impl FileTimes {
    /// Notes that the inode was written now.
    pub(crate) fn stamp(&self, inode: &Inode) -> Result<(), ClientError> {
        self.was_written(inode);
        self.publish_time(inode, |times| times.note(self.clock.now()))
    }

    /// Publishes the time that `due` returns, if any.
    pub(crate) fn publish_time(
        &self,
        inode: &Inode,
        due: impl FnOnce(&mut WriteTimes) -> Option<i64>,
    ) -> Result<(), ClientError> {
        if self.confined {
            return Ok(());
        }
        let mut times = inode.times.lock();
        match (due(&mut times), inode.slot()) {
            (Some(time), Some(slot)) => {
                let epoch = inode.layout_epoch();
                self.records.write_time(epoch, slot, time)
            }
            _ => Ok(()),
        }
    }

    /// Notes that a file is read.
    pub(crate) fn was_read(&self, inode: &Inode) {
        if inode.access_due.load(Ordering::Relaxed) {
            inode.access_due.store(self.access_times == AccessTimes::Always, Ordering::Relaxed);
            inode.note_access(self.clock.now());
        }
    }

    /// Notes that a file was written: the next read counts.
    pub(crate) fn was_written(&self, inode: &Inode) {
        if self.access_times == AccessTimes::Relative {
            inode.access_due.store(true, Ordering::Relaxed);
        }
    }
}
