//! Decisions of the pager without I/O: page states, victims, read-ahead, chunks of
//! lenders, and the code of stripes.
//!
//! No I/O, no locks, no clock. The [engine](crate::engine) carries out the decisions.
//!
//! # Concurrency
//! Plain values. The fault thread owns them.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod code;
pub(crate) mod core_sharing;
pub(crate) mod groups;
pub(crate) mod layout;
pub(crate) mod page;
pub(crate) mod read_ahead;
pub(crate) mod redundancy;
pub(crate) mod region;
pub(crate) mod table;

#[cfg(test)]
mod model;

/// Length of a page in bytes: the unit of faults and of residency.
pub(crate) const PAGE: usize = 4096;
