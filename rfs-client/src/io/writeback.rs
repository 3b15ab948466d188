//! Operations for a caller with exclusive use ([`exclusive`](crate::AttachOptions::exclusive)) that
//! caches written data and write times until it writes them back.
//!
//! # Concurrency
//! Session threads. Takes the inode's `io` shared.

use std::sync::{Arc, atomic::Ordering};

use rfs_proto::{Attr, Marks, SetAttr, SetTime, record};

use crate::{
    error::ClientError,
    inode::{Inode, table::InodeTable},
    io::write::Writes,
    remote::{
        Remote, RemoteExt,
        operation::Op,
        records::{RawRecord, Seen},
    },
    requests::{layouts::Layouts, record_reader::RecordReader},
};

/// Returns the write time, if `changes` sets nothing else. 0 stands for no time in a record.
fn write_time(changes: &SetAttr) -> Option<i64> {
    match *changes {
        SetAttr { mtime: Some(SetTime::At(time)), ctime: Some(ctime), .. }
            if time == ctime
                && time != 0
                && *changes
                    == SetAttr { mtime: changes.mtime, ctime: changes.ctime, ..SetAttr::default() } =>
        {
            Some(time)
        }
        _ => None,
    }
}

/// Writes data and write times back that the caller has cached.
#[derive(Debug)]
pub struct WriteBack {
    remote: Arc<dyn Remote>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    writes: Arc<Writes>,
    /// True if the session may only read the memory: the server sets the times.
    confined: bool,
}

impl WriteBack {
    pub(crate) fn new(layouts: &Layouts, writes: &Arc<Writes>, confined: bool) -> WriteBack {
        let (calls, records) = (&layouts.calls, Arc::clone(&layouts.records));
        let (remote, inodes) = (Arc::clone(&calls.remote), Arc::clone(&calls.caching.inodes));
        WriteBack { remote, inodes, records, writes: Arc::clone(writes), confined }
    }

    /// Writes as [`Writes::write`], without the time: the caller sets it.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<(), ClientError> {
        self.writes.write_then(self.remote.epochs().in_use, (ino, offset), data, |_| Ok(()))
    }

    /// Sets the write time one-sidedly, in one round trip. Returns `None` if this needs
    /// [`setattr`](crate::Attributes::setattr): more is to be set, the file is not open, or it was
    /// changed later.
    pub fn set_write_time(&self, ino: u64, changes: &SetAttr) -> Result<Option<Attr>, ClientError> {
        if self.confined {
            return Ok(None);
        }
        let (Some(time), Some(inode)) = (write_time(changes), self.inodes.get(ino)) else { return Ok(None) };
        // The kernel's clock is coarse, so a file can be younger than its first write.
        if inode.caller.lock().told.is_some_and(|told| told.ctime > time) {
            return Ok(None);
        }
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Ok(None);
        }
        let kept = inode.is_cacheable();
        let Some(mut attr) = self.exchange_time(&inode, time)?.filter(|attr| attr.ctime == time) else {
            return Ok(None);
        };
        if kept {
            attr.marks |= Marks::KEEP;
        }
        Ok(Some(attr))
    }

    /// Writes the write time into an open inode's record, then reads the record. Returns `None` if
    /// the record is unreadable now.
    fn exchange_time(&self, inode: &Inode, time: i64) -> Result<Option<Attr>, ClientError> {
        let (slot, record_place, field) = self.records.record_and_field(inode, record::WRITE_TIME)?;
        let mut raw: RawRecord = [0; record::LEN];
        let bytes = time.to_le_bytes();
        self.remote.execute(&mut [
            Op::Write { place: field, data: &bytes },
            Op::Read { place: record_place, out: &mut raw },
        ])?;
        Ok(Seen::decode(&raw, inode.ino, slot).map(|seen| seen.attr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_a_write_time_if_they_set_nothing_else() {
        let none = SetAttr::default();
        let at = |time| Some(SetTime::At(time));
        assert_eq!(write_time(&SetAttr { mtime: at(5), ctime: Some(5), ..none }), Some(5));
        for changes in [
            none,
            SetAttr { mtime: at(5), ..none },
            SetAttr { mtime: at(5), ctime: Some(6), ..none },
            SetAttr { mtime: at(0), ctime: Some(0), ..none },
            SetAttr { mtime: Some(SetTime::Now), ctime: Some(5), ..none },
            SetAttr { mtime: at(5), ctime: Some(5), atime: at(5), ..none },
            SetAttr { mtime: at(5), ctime: Some(5), size: Some(0), ..none },
            SetAttr { mtime: at(5), ctime: Some(5), drop_privileges: true, ..none },
        ] {
            assert_eq!(write_time(&changes), None, "{changes:?}");
        }
    }
}
