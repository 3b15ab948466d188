//! How two queue pairs connect: the addresses of both ends, and their exchange over a stream.

mod endpoint;
mod handshake;

#[cfg(feature = "fuzzing")]
pub(crate) use self::endpoint::Greeting;
pub(crate) use self::endpoint::{Endpoint, Local, Path};
pub(crate) use self::handshake::Exchange;
