//! Locations of file data: regions of server memory, places in the memory of stores, and extents.

use serde::{Deserialize, Serialize};

/// A region of server memory for one-sided access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRef {
    /// Virtual address of the first byte, at the server.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

/// A range of a file that is contiguous in the memory of one store. All fields are multiples of
/// [`BLOCK`](crate::BLOCK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset of the first byte in the file.
    pub file: u64,
    /// Place of the first byte: the number of a [`DataPlace`]. In the server's
    /// own arena it is the offset.
    pub arena: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// Returns the offset, in the file, of the first byte after the extent.
    pub fn file_end(&self) -> u64 {
        self.file + self.len
    }
}

/// Returns true if the server moves data of a file whose layout has this generation. Places of the
/// layout can change without a recall that is awaited. So a session reads the record after each
/// read and write, and repeats them if the generation is another one by then.
pub fn moves(layout_generation: u64) -> bool {
    layout_generation % 2 == 1
}

/// Bits of the number that have the offset. The upper bits have the store.
const OFFSET_BITS: u32 = 48;

/// A place of file data. Store 0 is the server's own arena, so a place in it is the same number as
/// its offset. Other stores are processes that lend their memory to the server.
///
/// An [`Extent`] names the place of its first byte, and lies wholly in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataPlace(u64);

impl DataPlace {
    /// Number of bytes that one store can have.
    pub const STORE_LEN: u64 = 1 << OFFSET_BITS;

    /// Returns the place at an offset of a store. Returns `None` if no store has that offset.
    pub fn new(store: u16, offset: u64) -> Option<DataPlace> {
        (offset < Self::STORE_LEN).then_some(DataPlace(u64::from(store) << OFFSET_BITS | offset))
    }

    /// Returns the place that a message or an extent names.
    pub fn from_number(number: u64) -> DataPlace {
        DataPlace(number)
    }

    /// Returns the number that messages and extents have.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the store.
    pub fn store(self) -> u16 {
        // The shift leaves 16 bits.
        (self.0 >> OFFSET_BITS) as u16
    }

    /// Returns the offset in the memory of the store.
    pub fn offset(self) -> u64 {
        self.0 % Self::STORE_LEN
    }

    /// Returns the offset of the first byte behind `len` bytes. Returns `None` if they reach beyond
    /// the numbers of the store.
    pub fn end(self, len: u64) -> Option<u64> {
        self.offset().checked_add(len).filter(|end| *end <= Self::STORE_LEN)
    }
}
