//! The client side of a pool: sessions to stores, places of chunks, and transfers across stores.
//!
//! [`Stores`] connects to a store when a chunk of it is first used, and keeps the session and the
//! addresses of chunks for later. A [`Link`] is a session with the address of one chunk. [`read`]
//! and [`write()`](write()) move bytes of any number of links at once, one-sidedly.
//!
//! # Concurrency
//! See the modules.

mod queue_pairs;
mod sessions;
mod transfer;

pub use self::{
    queue_pairs::queue_pairs,
    sessions::{Link, LinkError, Stores},
    transfer::{Piece, TransferError, read, read_parts, write},
};
