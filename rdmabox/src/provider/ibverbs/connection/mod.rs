//! How two queue pairs connect: the addresses of both ends, and their exchange over a stream.

mod endpoint;
mod handshake;

pub(crate) use self::endpoint::{Endpoint, Greeting, Local, Path};
pub(crate) use self::handshake::Exchange;
