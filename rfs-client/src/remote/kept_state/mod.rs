//! State of a mount that outlives its process.
//!
//! A [`KeptState`] is memory that another process holds, too. The client notes in it all that the
//! server cannot tell the next process. This is the identity of the mount, references to inodes,
//! opens, locks, and the calls in flight. The next process opens it, and
//! [`Client::connect_kept`](crate::Client::connect_kept) continues the session of the dead one.
//!
//! The kernel sends again each request that has no answer. A [`RequestScope`] stands for one
//! request of the kernel. Its effects and its calls are noted until its answer is sent. Before the
//! next process begins a repeated request anew, it takes the effects back
//! ([`KeptState::take_back`]). It gives each call the reply that the server had noted for it.
//!
//! # Concurrency
//! Session threads. [`state`], [`calls`] and [`scope`] have locks, held briefly.

mod appends;
mod area;
mod calls;
mod counter;
mod free_places;
mod layout;
mod locks;
mod row;
mod scope;
mod state;
#[cfg(test)]
mod tests;

/// Format of the kept state. A program continues only states of its own format.
pub const KEPT_FORMAT: u64 = layout::FORMAT;

pub(crate) use self::{
    calls::{KeptCalls, KeptReply},
    locks::KeptLock,
    row::Row,
    scope::current,
};
pub use self::{
    counter::Counter,
    scope::{InScope, RequestScope, is_repeated_request},
    state::{KeptState, KeptStateError},
};
