//! The store: partitions of a hash table in a fixed amount of memory.
//!
//! A [`Partition`] belongs to one thread at a time. It takes all memory when it is made, and
//! allocates none afterwards. It evicts the items whose last use is the longest ago when it needs
//! room. [`Store`] is the partitions of a server with their locks, a seed and a clock.
//!
//! # Concurrency
//! [`Store`] may be used by any thread; all else is plain values.

mod change;
mod counters;
mod error;
mod key;
mod memory;
mod number;
mod partition;
mod partitions;
mod transfer;

pub(crate) use self::number::parse_u64;
pub use self::{
    change::{Change, Delta, StoreMode, StoreOutcome},
    counters::Counters,
    error::StoreError,
    key::{Key, KeyError, MAX_KEY},
    memory::{Item, Limits, MAX_VALUE, NEVER, Pieces, SizeError},
    partition::Partition,
    partitions::{Store, StoreOptions},
    transfer::{Download, Upload},
};

#[cfg(test)]
mod tests;
