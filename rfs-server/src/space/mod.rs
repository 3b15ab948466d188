//! The space of an export: its allocator, its bytes with their checksums, and the extents of files.
//!
//! Bottom up: [`alloc`] decides which range is free, and [`bytes`] reads and writes the arena.
//! [`file_extents`] maps a file to ranges, and [`account`] has the allocator together with the
//! bytes. [`snapshot_hold`] keeps released space for a snapshot; [`zeroer`] zeroes it. [`eviction`]
//! chooses files that go when space runs short. [`lent_memory`] is the memory of stores.
//!
//! # Concurrency
//! See each module; `account` has the lock.

pub mod account;
pub mod alloc;
pub mod bytes;
pub mod eviction;
pub mod file_extents;
pub mod lent_memory;
pub mod nonzero_bitmap;
pub mod quarantine;
pub mod snapshot_hold;
#[cfg(test)]
pub(crate) mod tests;
pub mod zeroer;

pub use account::{Space, TooSmall, Zeroing};
pub use alloc::range::Range;
pub use bytes::Bytes;
pub use nonzero_bitmap::NonzeroBitmap;
pub use zeroer::Zeroer;
