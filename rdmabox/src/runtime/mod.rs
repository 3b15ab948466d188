//! The request path: submit, plan, admit, post, complete.
//!
//! Threads push requests into the merge queue of their direction ([`submit`]); the one that finds no other at work
//! plans and posts for all. A [`lane`] is a queue pair with its completion queue and the requests posted on it. A
//! caller that waits for its [`ticket`] polls the completion queue itself, on behalf of everybody who waits there
//! ([`attend`]). No thread of the runtime's own takes part.

mod attend;
mod complete;
mod lane;
mod order;
mod post;
mod submit;
mod ticket;

pub(crate) use attend::{Attendance, Waited};
pub(crate) use submit::{GroupOp, Runtime, RuntimeInit};
pub(crate) use ticket::Ticket;
