//! A node: it lends memory, and is a client of all nodes.

mod cluster;
mod driver;
mod enrollment;
mod listen;
mod members;
mod memory;
mod options;
mod service;
mod start;
mod stats;
mod store;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use cluster::roster::{JoinRequest, Roster};
pub use enrollment::JoinOptions;
pub use members::{MAX_NODES, Members};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use memory::control::read_control_block;
pub use options::NodeOptions;
pub use service::Command;
pub use start::Node;
pub use stats::NodeStats;
pub use store::Value;
