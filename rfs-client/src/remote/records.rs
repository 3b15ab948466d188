//! One-sided access to attribute records.
//!
//! A record can stay unreadable, because the server changes it or has given its slot to another
//! inode. The result is `None` then, and the caller asks by message.
//!
//! # Concurrency
//! Any number of threads. No locks.

use std::sync::Arc;

use rdmabox::Memory;
use rfs_proto::{Attr, Marks, record};

use crate::{
    error::ClientError,
    remote::{
        Mapped, Remote, RemoteExt,
        address::{Epoch, Place, Region, RegionBounds},
    },
};

const _: () = assert!(record::MODE.is_multiple_of(8) && record::RDEV.is_multiple_of(8));
const _: () = assert!(record::MARKS == record::RDEV + 4 && cfg!(target_endian = "little"));

/// Reads of one record before giving up.
const TRIES: usize = 16;

/// The table of records.
#[derive(Debug)]
pub(crate) struct Records {
    remote: Arc<dyn Remote>,
    table: RegionBounds,
    map: Option<Mapped>,
}

/// The words of a record that every read and write depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Glimpse {
    pub(crate) size: u64,
    pub(crate) generation: u64,
    /// Allocated space, which changes with every allocation. Only a record has it.
    pub(crate) allocated: Option<u64>,
}

/// A record as it came over the network.
pub(crate) type RawRecord = [u8; record::LEN];

/// The contents of a whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) attr: Attr,
    allocated: u64,
}

impl Seen {
    /// Decodes a record that was read in one piece. Returns `None` if the record was being changed,
    /// or is another inode's.
    pub(crate) fn decode(raw: &RawRecord, ino: u64, slot: u32) -> Option<Seen> {
        let attr = record::decode(raw, ino, slot)?;
        let mut allocated = [0; 8];
        allocated.copy_from_slice(&raw[record::BLOCKS..record::BLOCKS + 8]);
        Some(Seen { attr, allocated: u64::from_le_bytes(allocated) })
    }

    pub(crate) fn glimpse(&self) -> Glimpse {
        Glimpse {
            size: self.attr.size,
            generation: self.attr.layout_generation,
            allocated: Some(self.allocated),
        }
    }
}

/// A record in mapped memory.
struct MappedRecord<'m> {
    memory: &'m Memory,
    base: usize,
}

impl MappedRecord<'_> {
    fn word(&self, field: usize) -> u64 {
        self.memory.load_u64(self.base + field)
    }
}

impl Records {
    /// Creates the view of a table of `len` bytes.
    pub(crate) fn new(remote: Arc<dyn Remote>, len: u64) -> Records {
        let table = RegionBounds { region: Region::Table, len };
        let map = Mapped::of(&*remote, table);
        Records { remote, table, map }
    }

    /// Returns the place of `len` bytes at `field` of the record in `slot`.
    pub(crate) fn field(
        &self,
        epoch: Epoch,
        slot: u32,
        field: usize,
        len: usize,
    ) -> Result<Place, ClientError> {
        let offset = u64::from(slot) * record::LEN as u64 + field as u64;
        self.table
            .place(epoch, offset, len as u64)
            .ok_or(ClientError::Protocol("an attribute slot outside the table"))
    }

    /// Returns the mapping of the record, and its offset there. The mapping stays readable after
    /// the session has ended, but its contents are stale then.
    fn mapped(&self, slot: u32) -> Option<(&Mapped, usize)> {
        let start = u64::from(slot) * record::LEN as u64;
        let map = self.map.as_ref().filter(|_| start + record::LEN as u64 <= self.table.len)?;
        // Inside a region that is mapped whole, so it fits a usize.
        Some((map, map.offset + start as usize))
    }

    /// Reads a mapped record, with or without a session. Returns `None` if it is not mapped, being
    /// changed, or another inode's.
    pub(crate) fn glimpse(&self, ino: u64, slot: u32) -> Option<Glimpse> {
        self.read_mapped(ino, slot, |mapped| Glimpse {
            size: mapped.word(record::SIZE),
            generation: mapped.word(record::LAYOUT_GENERATION),
            allocated: Some(mapped.word(record::BLOCKS)),
        })
    }

    /// Reads mode and marks of a mapped record. Returns `None` as [`glimpse`](Self::glimpse).
    pub(crate) fn privileges(&self, ino: u64, slot: u32) -> Option<(u32, Marks)> {
        // The mode is the first half of its word, and the marks are the second half of theirs.
        let words =
            self.read_mapped(ino, slot, |mapped| (mapped.word(record::MODE), mapped.word(record::RDEV)));
        words.map(|(mode, marks)| (mode as u32 & 0o7777, Marks::from_bits_truncate((marks >> 32) as u32)))
    }

    /// Reads fields of one version of a mapped record.
    #[inline]
    fn read_mapped<T>(&self, ino: u64, slot: u32, read: impl Fn(&MappedRecord<'_>) -> T) -> Option<T> {
        let (map, base) = self.mapped(slot)?;
        let mapped = MappedRecord { memory: &map.memory, base };
        for _ in 0..TRIES {
            let version = mapped.word(record::VERSION);
            if !version.is_multiple_of(2) {
                std::hint::spin_loop();
                continue;
            }
            if mapped.word(record::INO) != ino {
                return None;
            }
            let fields = read(&mapped);
            if mapped.word(record::VERSION) == version {
                return Some(fields);
            }
        }
        None
    }

    /// Returns true if records are mapped here.
    pub(crate) fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    /// Reads an inode's record. Returns `None` if it stays unreadable.
    pub(crate) fn read(&self, ino: u64, slot: u32) -> Result<Option<Seen>, ClientError> {
        for _ in 0..TRIES {
            let mut raw: RawRecord = [0; record::LEN];
            match self.mapped(slot) {
                Some((map, base)) => {
                    self.remote.ready()?;
                    map.memory.read(base, &mut raw);
                }
                None => {
                    // The record itself names its inode, so an old place does no harm.
                    let place = self.field(self.remote.epochs().newest, slot, 0, record::LEN)?;
                    self.remote.read(&mut [(place, &mut raw)])?;
                }
            }
            if let Some(seen) = Seen::decode(&raw, ino, slot) {
                return Ok(Some(seen));
            }
            std::hint::spin_loop();
        }
        Ok(None)
    }

    /// Publishes the time of a write.
    pub(crate) fn write_time(&self, epoch: Epoch, slot: u32, time: i64) -> Result<(), ClientError> {
        let place = self.field(epoch, slot, record::WRITE_TIME, 8)?;
        Ok(self.remote.write(&[(place, &time.to_le_bytes())])?)
    }
}
