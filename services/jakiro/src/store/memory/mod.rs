//! The memory of a partition: items in blocks, their index and their order of use.
//!
//! It has no rules about the life of items: no times, no versions, no conditions.
//!
//! # Concurrency
//! One thread at a time. No I/O, no locks, no clock.

mod blocks;
mod index;
mod item;
mod items;
mod limits;
mod lru;

pub(super) use self::{
    blocks::{BlockId, Cursor},
    items::Items,
};
pub use self::{
    item::{Item, NEVER, Pieces},
    limits::{Limits, MAX_VALUE, SizeError},
};

#[cfg(test)]
pub(super) use self::blocks::blocks_of;
