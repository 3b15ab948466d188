//! Errors of a store.
//!
//! # Concurrency
//! Plain values.

/// Why a store did not change an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum StoreError {
    /// The value is longer than the limit of the store. An older item of the key stays.
    #[error("the value is longer than the store permits: at most 1 MiB, or its own limit")]
    ValueTooLong = 1,
    /// Transfers of long values hold the memory. An older item of the key may be gone. A retry is
    /// safe once these transfers have ended.
    #[error("transfers of long values hold all memory of the partition: retry later, or give it more memory")]
    Full = 2,
    /// The value is no number: 1 to 20 decimal digits that fit 64 bits.
    #[error("the value is not a decimal number of 64 bits")]
    NotANumber = 3,
}

impl StoreError {
    /// Returns a number for each kind of error.
    pub fn code(self) -> u8 {
        self as u8
    }
}
