//! Totals of an export.

use serde::{Deserialize, Serialize};

/// Totals of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Size of the arena, in blocks of [`BLOCK`](crate::BLOCK) bytes.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Maximum number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub inodes_free: u64,
}
