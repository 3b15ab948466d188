//! Where a file's bytes lie.

use serde::{Deserialize, Serialize};

/// A region of server memory that the client may reach one-sidedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRef {
    /// Virtual address of its first byte, at the server.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

/// A run of a file that is contiguous in the arena. All three are multiples of [`BLOCK`](crate::BLOCK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First byte in the file.
    pub file: u64,
    /// First byte in the arena.
    pub arena: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// First file byte after it.
    pub fn file_end(&self) -> u64 {
        self.file + self.len
    }
}
