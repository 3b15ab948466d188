//! The operations on keys, and the parts that they share.

pub(crate) mod adopt;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod migrate;
mod path;
pub(crate) mod put;
mod scan;
