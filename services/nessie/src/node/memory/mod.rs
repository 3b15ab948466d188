//! The memory that a node lends.

pub(crate) mod control;
pub(crate) mod table;
