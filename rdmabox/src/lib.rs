//! A userspace RDMA optimization runtime.
pub mod admission;
pub mod batch;
pub mod memory;
pub mod polling;
pub mod provider;
mod rpc;
mod runtime;
pub mod session;
pub mod stats;
pub mod verbs;

pub use memory::{Memory, MemoryError};
pub use session::*;
