//! A server: one rdmabox host for each partition of a store.
//!
//! One thread polls the call memory of all sessions of a host, and executes the calls that it
//! finds. So a host with one call thread owns its partition, and a client has a session with each
//! host.
//! [`Executor`] turns requests into replies, without I/O. [`Server`] listens.
//!
//! # Concurrency
//! See the modules.

mod addresses;
mod error;
mod executor;
mod listener;
mod transfers;

pub(crate) use self::addresses::partition_address;
pub use self::{
    error::ServerError,
    executor::Executor,
    listener::{Server, ServerOptions},
};
