//! The use of memory, in bytes.

/// Sums over the arena and the stores that can be reached, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Size of the arena and of all stores.
    pub len: u64,
    /// Free and zero.
    pub clean: u64,
    /// Free, to be zeroed or being zeroed.
    pub dirty: u64,
    /// Free, but sessions can reach it.
    pub quarantined: u64,
}

impl Totals {
    /// Returns the bytes that files can still get.
    pub fn available(&self) -> u64 {
        self.clean + self.dirty
    }
}

/// Use of the memory of one store, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Number of the store; 0 is the server's own arena.
    pub store: u16,
    /// Bytes that the store lends.
    pub len: u64,
    /// Free and zero.
    pub clean: u64,
    /// Free, to be zeroed. Bytes that are being zeroed count as used.
    pub dirty: u64,
    /// Free, but sessions can reach it.
    pub quarantined: u64,
    /// New data may go there.
    pub is_open: bool,
}

impl StoreUsage {
    /// Returns the bytes that files have.
    pub fn used(&self) -> u64 {
        self.len.saturating_sub(self.clean + self.dirty + self.quarantined)
    }
}
