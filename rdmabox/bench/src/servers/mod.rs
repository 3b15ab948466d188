//! The servers of a load: starting them, serving, and their control messages.

pub mod fleet;
pub mod protocol;
pub mod server;
