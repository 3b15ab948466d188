//! Nodes that join a running store and leave it.

mod join;
mod leave;

pub use join::JoinOptions;
pub(super) use join::claim;
