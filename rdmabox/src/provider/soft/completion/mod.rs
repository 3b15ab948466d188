//! Completion queues, and the threads that make progress for them.

mod completions;
mod cq;
mod engine;
mod poll_set;
mod spin;

pub(crate) use self::completions::FreedSlots;
pub(crate) use self::cq::SoftCq;
pub(crate) use self::engine::Engine;
pub(crate) use self::poll_set::{Interest, Member, PollSet};
pub use self::spin::ENGINE_LOOK;
