//! Clients of a store.
//!
//! [`Client`] has a session with each partition. `keyspace` finds the partition of a key and makes
//! calls, and `transfer` moves long values in parts. `many` asks for several items with one call
//! for each partition.
//!
//! # Concurrency
//! A client serves any number of threads. Each thread has buffers of its own.

mod connect;
mod error;
mod handle;
mod keyspace;
mod many;
mod options;
mod scratch;
mod transfer;

pub use self::{
    error::ClientError,
    handle::Client,
    options::{ClientOptions, ItemInfo, Put},
};
