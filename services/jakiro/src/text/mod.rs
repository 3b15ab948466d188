//! The memcached text protocol as a front of the store.
//!
//! [`TextServer`] has the sockets. Bytes of clients become commands ([`protocol`]). Commands become
//! requests to the store and steps of answers (`plan`). A round carries out the requests of all
//! connections that are ready.
//!
//! # Concurrency
//! See the modules.

mod answer;
mod moment;
mod plan;
pub mod protocol;
mod request;
mod round;
mod server;

pub use server::{TextOptions, TextServer, TextServerError};
