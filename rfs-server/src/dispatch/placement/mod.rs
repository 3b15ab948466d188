//! Which files have data in a store.
//!
//! # Concurrency
//! Any thread. A scan locks one shard after the other, so other requests go on.

mod lost_files;
mod paths;

use super::state::store::Store;
pub use lost_files::{LostFile, LostFiles};

/// Looks at the places of files.
#[derive(Clone, Copy)]
pub struct Placement<'a> {
    pub(super) store: &'a Store,
}
