//! How threads wait for completions: tickets, and the leader among the waiters.

mod callback;
pub(crate) mod cq_wait;
mod interruption;
mod shortest_timeout;
mod ticket;
mod wait_many;

pub(crate) use self::callback::{as_callback, in_callback};
pub(crate) use self::cq_wait::{CqWaiters, WaitOutcome};
pub(crate) use self::interruption::Interruption;
pub(crate) use self::shortest_timeout::ShortestTimeout;
pub(crate) use self::ticket::{CqWaiter, MAX_LANES, Notice, Ticket};
pub(crate) use self::wait_many::{CqSource, CqUser, Waitable, wait_many};
