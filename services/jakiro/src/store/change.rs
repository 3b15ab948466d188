//! Changes of an item, and their outcomes.
//!
//! # Concurrency
//! Plain values.

use super::memory::NEVER;

/// The condition and the kind of a change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Stores the value.
    Set,
    /// Stores the value if there is no item with the key.
    Add,
    /// Stores the value if there is an item with the key.
    Replace,
    /// Adds the value behind that of the item, which keeps its flags and its time to live.
    Append,
    /// Adds the value in front of that of the item, which keeps its flags and its time to live.
    Prepend,
    /// Stores the value if the item has this version.
    CompareVersion(u64),
}

/// A change of a value: all of it but key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of the change.
    pub mode: StoreMode,
    /// Flags of the item. The store does not interpret them.
    pub flags: u32,
    /// Time in milliseconds of the store's clock at which the item expires, or [`NEVER`].
    pub expires: u64,
}

impl Change {
    /// Returns a change with flags 0 that does not expire.
    pub fn new(mode: StoreMode) -> Change {
        Change { mode, flags: 0, expires: NEVER }
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The value is stored; the item has this version.
    Stored(u64),
    /// The condition of the mode does not hold: the key is there ([`StoreMode::Add`]), or it is
    /// not.
    NotStored,
    /// The item has another version ([`StoreMode::CompareVersion`]).
    OtherVersion,
    /// There is no item to compare with ([`StoreMode::CompareVersion`]).
    NotFound,
}

/// A change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Adds, modulo 2 to the 64th.
    Up(u64),
    /// Subtracts, down to 0.
    Down(u64),
}

impl Delta {
    /// Returns the number after the change.
    pub fn apply(self, number: u64) -> u64 {
        match self {
            Delta::Up(by) => number.wrapping_add(by),
            Delta::Down(by) => number.saturating_sub(by),
        }
    }
}
