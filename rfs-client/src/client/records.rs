//! Reads of an inode's record, and its places.
//!
//! # Concurrency
//! Session threads. Takes an inode's `size` and `layout`, each briefly.

use rfs_proto::{Request, record};

use crate::{
    client::Client,
    error::ClientError,
    inode::{Inode, size::LookStart},
    memory::records::{Glimpse, RawRecord, Seen},
    remote::address::{Epoch, Place},
};

impl Client {
    /// Returns the state to note before the read of a size.
    pub(crate) fn before_look(&self) -> LookStart {
        LookStart { epoch: self.remote.epochs().newest, period: self.inodes.recalls().now() }
    }

    /// Reads the size, generation and space of an inode.
    ///
    /// # Errors
    /// Fails without a session, even if the record is mapped.
    pub(crate) fn look(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if self.records.is_mapped() {
            self.remote.ready()?;
        }
        self.peek(inode)
    }

    /// Reads as [`look`](Self::look), for a caller that uses the session before or after. A mapped
    /// record can be read without a session.
    pub(crate) fn peek(&self, inode: &Inode) -> Result<Glimpse, ClientError> {
        if let Some(slot) = inode.slot()
            && let Some(glimpse) = self.records.glimpse(inode.ino, slot)
        {
            return Ok(glimpse);
        }
        let start = self.before_look();
        let read = match inode.slot() {
            Some(slot) => self.records.read(inode.ino, slot)?,
            None => None,
        };
        let now = match read {
            Some(seen) => seen.glimpse(),
            None => {
                let attr = self.call_attr(&Request::GetAttr { ino: inode.ino })?;
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
        let seen = if self.records.is_mapped() { None } else { Seen::decode(raw, inode.ino, slot) };
        let Some(seen) = seen else { return self.peek(inode) };
        let now = seen.glimpse();
        inode.saw(start, now.generation, now.size);
        Ok(now)
    }

    /// Returns the slot and place of an open inode's record.
    pub(crate) fn record_of(&self, inode: &Inode) -> Result<(u32, Place), ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        Ok((slot, self.records.field(inode.layout.read().epoch(), slot, 0, record::LEN)?))
    }

    /// Returns the place of a word of an open inode's record.
    pub(crate) fn field_of(&self, inode: &Inode, field: usize) -> Result<Place, ClientError> {
        let slot = inode.slot().ok_or(ClientError::Protocol("an open file without a record"))?;
        self.records.field(inode.layout.read().epoch(), slot, field, 8)
    }

    /// Returns the place of `len` bytes at an offset of the arena.
    pub(crate) fn arena_place(&self, epoch: Epoch, offset: u64, len: u64) -> Result<Place, ClientError> {
        self.arena.place(epoch, offset, len).ok_or(ClientError::Protocol("an extent outside the arena"))
    }
}
