//! Serves paged memory as a block device, over the protocol of network block devices (NBD).
//!
//! [`Conversation`] is the server's side of a connection without I/O: it takes the client's bytes,
//! and says which bytes to send and how to change the memory. [`NbdServer`] has the sockets.
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
