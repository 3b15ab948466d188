//! A network card in software: the verbs model over stream sockets, and over mapped memory inside a host.
//!
//! A connected queue pair is a stream. Over TCP every request is a frame: a list of work requests leaves in one
//! vectored send whose payload comes straight from registered memory, and the receiving side reads it from the
//! socket straight into the target region. Over a Unix socket the peers also hand each other their memory
//! (sealed memfds) and a shared table of regions; READ, WRITE and atomics are then executed by the post itself,
//! after the checks that a responder would have made, and only messages travel as frames.
//!
//! Threads: every object may be used from any thread. Bytes move on whichever thread makes progress: an
//! engine thread of the device, or the thread that polls or waits on a completion queue
//! ([`Progress`](crate::verbs::Progress)).
//!
//! It knows nothing of the runtime above it, and nothing of files.

mod ahead;
mod completions;
mod congestion;
mod cq;
mod device;
mod direct;
mod engine;
mod poll_set;
mod post;
mod qp;
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
pub use device::SoftDevice;
pub(crate) use retransmission::try_often;
pub(crate) use socket::IoVec;
pub use spin::ENGINE_LOOK;
pub(crate) use wire::{Header, Opcode};
