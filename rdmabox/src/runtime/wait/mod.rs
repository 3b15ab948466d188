//! How threads wait for completions: tickets, and the leader among the waiters.

mod callback;
pub(crate) mod cq_wait;
mod ticket;

pub(crate) use self::callback::{as_callback, in_callback};
pub(crate) use self::cq_wait::{CqWaiters, WaitOutcome};
pub(crate) use self::ticket::{CqWaiter, MAX_LANES, Notice, Ticket};
