#![doc = include_str!("../README.md")]

pub mod client;
mod program;
pub mod protocol;
pub mod server;
pub mod store;
pub mod text;

pub use self::{
    client::{Client, ClientError, ClientOptions, ItemInfo, Put},
    program::cli,
    server::{Server, ServerError, ServerOptions},
    store::{Counters, Delta, MAX_KEY, MAX_VALUE, Store, StoreError, StoreMode, StoreOptions, StoreOutcome},
};

// Tests the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/user/services/jakiro.md")]
struct Guide;
