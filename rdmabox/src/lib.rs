//! A userspace RDMA optimization runtime.
pub mod memory;
pub mod session;
pub mod verbs;

pub use memory::{Memory, MemoryError};
pub use session::*;
