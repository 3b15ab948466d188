#![doc = include_str!("../README.md")]

mod barrier;
mod client;
mod error;
pub mod graph;
pub mod machine;
mod master;
mod node;
mod program;
pub mod proto;
mod refusal;
pub mod sort;

pub use barrier::{Coordinator, Worker};
pub use client::{AllocFlags, Client, ClientOptions, Mapping, Namespace, Region, Update, master_status};
pub use error::Error;
pub use master::{LogError, Master, MasterError, MasterOptions, repair_checksums, restore_log};
pub use node::{NodeOptions, StoreNode};
pub use program::cli;
pub use refusal::Refusal;
