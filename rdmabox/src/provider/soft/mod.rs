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
//! Any thread may use any object. The thread that makes progress moves the bytes: an engine
//! thread of the device, or a thread that polls or waits on a completion queue
//! ([`Progress`](crate::verbs::Progress)).

mod completions;
mod congestion;
mod cq;
mod device;
mod direct;
mod engine;
mod poll_set;
mod post;
mod qp;
mod recv_buffer;
mod regions;
mod requester;
mod responder;
mod retransmission;
mod rx;
mod shared_table;
mod socket;
mod spin;
mod tx;
mod wire;

pub use congestion::congestion_control;
pub(crate) use congestion::replace_bbr;
pub use device::{ConnectedProcess, SoftDevice};
pub(crate) use retransmission::try_often;
pub(crate) use socket::IoVec;
pub use spin::ENGINE_LOOK;
#[cfg(feature = "fuzzing")]
pub(crate) use wire::{HEADER_LEN, Hello, MAGIC, VERSION};
pub(crate) use wire::{Header, Opcode};
