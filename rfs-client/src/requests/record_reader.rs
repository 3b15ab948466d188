//! Reads of an inode's record, and its places.
//!
//! # Concurrency
//! Session threads. Takes an inode's `file` briefly.

use std::sync::Arc;

use rfs_proto::{Marks, Request, record};
use smallvec::SmallVec;

use crate::{
    error::ClientError,
    inode::{Inode, size::LookStart, table::InodeTable},
    remote::{
        Remote, RemoteExt,
        address::{Epoch, Place},
        operation::{LIST, Op, Ops},
        records::{Glimpse, RawRecord, Records, Seen},
    },
    requests::calls::Calls,
};

/// Parts of one read, with their destinations.
pub(crate) type ReadParts<'a> = SmallVec<[(Place, &'a mut [u8]); 4]>;

/// Reads the records of open files, and asks by message for those that are unreadable.
#[derive(Debug)]
pub(crate) struct RecordReader {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    inodes: Arc<InodeTable>,
    table: Records,
}

impl RecordReader {
    pub(crate) fn new(calls: &Arc<Calls>, table: Records) -> RecordReader {
        let (remote, inodes) = (Arc::clone(&calls.remote), Arc::clone(&calls.caching.inodes));
        RecordReader { remote, calls: Arc::clone(calls), inodes, table }
    }

    /// Returns true if records are mapped here.
    pub(crate) fn is_mapped(&self) -> bool {
        self.table.is_mapped()
    }

    /// Reads mode and marks of a mapped record. Returns `None` if it is not mapped, or unreadable.
    pub(crate) fn privileges(&self, inode: &Inode) -> Option<(u32, Marks)> {
        self.table.privileges(inode.ino, inode.slot()?)
    }

    /// Publishes the time of a write.
    pub(crate) fn write_time(&self, epoch: Epoch, slot: u32, time: i64) -> Result<(), ClientError> {
        self.table.write_time(epoch, slot, time)
    }

    /// Reads an inode's record. Returns `None` if it stays unreadable.
    pub(crate) fn read(&self, ino: u64, slot: u32) -> Result<Option<Seen>, ClientError> {
        self.table.read(ino, slot)
    }

    /// Returns the state to note before the read of a size.
    pub(crate) fn before_look(&self) -> LookStart {
        LookStart { epoch: self.remote.epochs().newest, period: self.inodes.recalls().now() }
    }

    /// Reads the size, generation and space of an inode.
    ///
    /// # Errors
    /// Fails without a session, even if the record is mapped.
    pub(crate) fn look(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if self.table.is_mapped() {
            self.remote.ready()?;
        }
        self.peek(inode)
    }

    /// Reads as [`look`](Self::look), for a caller that uses the session before or after. A mapped
    /// record can be read without a session.
    pub(crate) fn peek(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if let Some(slot) = inode.slot()
            && let Some(glimpse) = self.table.glimpse(inode.ino, slot)
        {
            return Ok(glimpse);
        }
        let start = self.before_look();
        let read = match inode.slot() {
            Some(slot) => self.table.read(inode.ino, slot)?,
            None => None,
        };
        let now = match read {
            Some(seen) => seen.glimpse(),
            None => {
                let attr = self.calls.call_attr(&Request::GetAttr { ino: inode.ino })?;
                Glimpse { size: attr.size, generation: attr.layout_generation, allocated: None }
            }
        };
        inode.saw(start, now.generation, now.size);
        Ok(now)
    }

    /// Returns the size, generation and space of an inode as of the end of a list that began at
    /// `start`. Over a network the list has read the record into `raw` at its end, and its size is
    /// taken in. A mapped record is read now, and so is a record that was being changed.
    pub(crate) fn record_behind(
        &self,
        inode: &Inode,
        slot: u32,
        raw: &RawRecord,
        start: LookStart,
    ) -> Result<Glimpse, ClientError> {
        let seen = if self.table.is_mapped() { None } else { Seen::decode(raw, inode.ino, slot) };
        let Some(seen) = seen else { return self.peek(inode) };
        let now = seen.glimpse();
        inode.saw(start, now.generation, now.size);
        Ok(now)
    }

    /// Returns the slot and place of an open inode's record.
    pub(crate) fn record_of(&self, inode: &Inode) -> Result<(u32, Place), ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        Ok((slot, self.table.field(inode.layout_epoch(), slot, 0, record::LEN)?))
    }

    /// Returns the place of a word of an open inode's record.
    pub(crate) fn field_of(&self, inode: &Inode, field: usize) -> Result<Place, ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        self.table.field(inode.layout_epoch(), slot, field, 8)
    }

    /// Returns the slot and place of an open inode's record, and the place of a word of it.
    pub(crate) fn record_and_field(
        &self,
        inode: &Inode,
        field: usize,
    ) -> Result<(u32, Place, Place), ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        let epoch = inode.layout_epoch();
        let place = |field, len| self.table.field(epoch, slot, field, len);
        Ok((slot, place(0, record::LEN)?, place(field, 8)?))
    }

    /// Reads parts, and the record after them in the same list. Returns the contents of the record.
    pub(crate) fn read_and_look(
        &self,
        inode: &Inode,
        mut parts: ReadParts<'_>,
        start: LookStart,
    ) -> Result<Glimpse, ClientError> {
        let (slot, record_place) = self.record_of(inode)?;
        let mut raw: RawRecord = [0; record::LEN];
        if parts.len() >= LIST {
            self.remote.read(&mut parts)?;
            parts.clear();
        }
        let mut ops: Ops<'_> = parts.into_iter().map(|(place, out)| Op::Read { place, out }).collect();
        ops.push(Op::Read { place: record_place, out: &mut raw });
        self.remote.execute(&mut ops)?;
        drop(ops);
        self.record_behind(inode, slot, &raw, start)
    }
}
