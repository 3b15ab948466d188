//! The memcached text protocol without I/O: bytes of a client become commands.
//!
//! [`Parser`] cuts the bytes of a connection into [`Command`]s. A command borrows its key and its
//! value from the input, so the parser copies no bytes.
//!
//! # Concurrency
//! Pure functions and plain values.

mod command;
mod line;
mod number;
mod parser;

pub use command::{Command, Fault, Retrieval, Store};
pub use parser::{MAX_GET_LINE, MAX_LINE, Parser, Progress};
