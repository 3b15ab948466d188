//! A client-driven key-value store.

#[allow(dead_code)] // The nodes that use it follow.
mod logic;
#[cfg(test)]
mod simulation;

pub use logic::error::DecodeError;
