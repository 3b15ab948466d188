//! The reply to a comparison of blocks with their checksums.

use serde::{Deserialize, Serialize};

/// The result of a comparison of blocks with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Number of compared blocks.
    pub blocks: u64,
    /// Inode and offset at which to continue. `None` at the end.
    pub next: Option<(u64, u64)>,
    /// Blocks that do not match their checksums.
    pub bad: Vec<BadBlock>,
}

/// A block that does not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Inode of the file.
    pub ino: u64,
    /// Offset of the block in the file.
    pub offset: u64,
    /// Offset of the block in the arena.
    pub arena: u64,
    /// Stored check.
    pub expected: u32,
    /// Check of the bytes in the arena.
    pub found: u32,
    /// A path of the file from the root directory on, or its last
    /// [`MAX_SHOWN_PATH`](crate::MAX_SHOWN_PATH) bytes; empty if the file has no name.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}
