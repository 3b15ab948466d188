//! Locations of file data: regions of server memory, and extents in the arena.

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

/// A range of a file that is contiguous in the arena. All fields are multiples of
/// [`BLOCK`](crate::BLOCK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Offset of the first byte in the file.
    pub file: u64,
    /// Offset of the first byte in the arena.
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
