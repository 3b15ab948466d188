//! A software network card: the verbs model over stream sockets, and over mapped memory within a
//! host.
//!
//! A connected queue pair is a stream. Over TCP each request is a frame. A list of work requests
//! leaves in one vectored send whose payload comes straight from registered memory. The receiver
//! reads payloads from the socket straight into the target region. Over a Unix socket the peers
//! also exchange their memory (sealed memfds) and a shared table of regions. Then the post itself
//! checks and executes READ, WRITE and atomics, and only messages travel as frames.
//!
//! # Concurrency
//! Any thread may use any object. The thread that makes progress moves the bytes
//! ([`Progress`](crate::verbs::Progress)). It is an engine thread of the device, or a thread that
//! polls or waits on a completion queue.

mod completion;
mod device;
mod device_state;
mod limits;
mod memory;
mod qp;
mod stream;
mod wire;

pub use self::completion::ENGINE_LOOK;
pub use self::device::SoftDevice;
pub use self::stream::{ConnectedProcess, congestion_control};
pub(crate) use self::stream::{replace_bbr, try_often};
#[cfg(feature = "fuzzing")]
pub(crate) use self::wire::{HEADER_LEN, Hello, MAGIC, VERSION};
#[cfg(any(feature = "fuzzing", feature = "internals"))]
pub(crate) use self::wire::{Header, Opcode};
