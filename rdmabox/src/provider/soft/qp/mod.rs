//! Queue pairs: the send queue, the responder, and the two directions of the stream.

mod post;
mod responder;
mod rx;
mod send_queue;
mod soft_qp;
mod tx;

#[cfg(all(not(loom), test))]
pub(crate) use self::soft_qp::max_answers;
pub(crate) use self::soft_qp::{SoftQp, SoftQpInit};
