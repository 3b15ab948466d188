//! Queue pairs: the send queue, the responder, and the two directions of the stream.

mod execute;
mod link;
mod pd;
mod post;
mod request;
mod responder;
mod rx;
mod rx_state;
mod send_queue;
mod soft_qp;
mod tx;

pub(crate) use self::pd::SoftPd;
pub(crate) use self::soft_qp::SoftQp;
#[cfg(all(not(loom), test))]
pub(crate) use self::soft_qp::max_answers;
