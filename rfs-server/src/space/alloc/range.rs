//! A range of the arena.
//!
//! # Concurrency
//! A plain value.

/// A range of bytes of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Range {
    /// Returns the first byte behind the range.
    pub fn end(self) -> u64 {
        self.start + self.len
    }
}
