//! Serves paged memory as a block device, over the protocol of network block devices (NBD).
//!
//! [`Conversation`] is the server's side of a connection without I/O. It takes the client's bytes,
//! and returns the bytes to send and the changes of the memory. [`NbdServer`] has the sockets.
//!
//! # Concurrency
//! See the modules.

mod address;
mod conversation;
mod memory;
mod protocol;
mod room;
mod server;
mod socket;

pub use address::{NbdAddress, ParseNbdAddressError};
pub use conversation::{Conversation, Effect, Step};
pub use protocol::NbdError;
pub use server::{NbdServer, NbdServerError};
