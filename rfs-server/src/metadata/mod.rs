//! Metadata of an export: names, inodes, the clock that dates them, and the attribute records that
//! clients read.
//!
//! # Concurrency
//! See each module.

pub mod attr_table;
pub mod clock;
pub mod id_map;
pub mod namespace;
pub mod root;

pub use attr_table::Table;
pub use root::Root;
