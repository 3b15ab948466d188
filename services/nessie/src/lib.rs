#![doc = include_str!("../README.md")]

pub mod cli;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod logic;
mod node;
mod server_driven;
#[cfg(test)]
mod simulation;

pub use error::NessieError;
pub use logic::error::DecodeError;
pub use node::{Command, JoinOptions, MAX_NODES, Members, Node, NodeOptions, NodeStats, Value};
pub use server_driven::ServerDriven;

// Compiles the code of the user's page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/user/services/nessie.md")]
struct Guide;
