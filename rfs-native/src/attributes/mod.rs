//! Attributes of inodes: their form for callers, and permitted changes.

pub(crate) mod change;
pub(crate) mod contents;
pub(crate) mod stat;
