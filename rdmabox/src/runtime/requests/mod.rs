//! The way of a request: from its submission to its completion, and the threads that drive it.

mod async_request;
mod busy_poll;
mod completion;
mod gathering;
mod joint_waits;
mod mapped_io;
mod plug;
mod pollers;
mod post;
mod qp_recovery;
mod submit;

pub(crate) use self::async_request::{Ended, Started};
pub use self::busy_poll::Until;
pub(crate) use self::gathering::WaitedBy;
pub(crate) use self::joint_waits::{SubmittedList, deadline_of};
