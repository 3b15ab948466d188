//! Which files have data in a store, and how it moves to other stores; which files leave the
//! export.
//!
//! # Concurrency
//! Any thread. A scan locks one shard after the other, so other requests go on.

pub(super) mod eviction;
mod lost_files;
mod moves;
mod paths;
mod silent_sessions;

use super::state::store::Store;
use crate::session::registry::Sessions;
pub use eviction::{EvictionActivity, Evictions};
pub use lost_files::{LostFile, LostFiles};
pub use moves::Moved;

/// Looks at the places of files, and moves their data.
#[derive(Clone, Copy)]
pub struct Placement<'a> {
    pub(super) store: &'a Store,
    pub(super) sessions: &'a Sessions,
}
