//! Requests before they are posted: merge queues, and the objects that pass through them.

mod batch;
mod copy_budget;
mod fences;
mod gathering;
mod idle_parts;
mod merge_queue;
mod object_pool;
mod request;
mod shift;

pub(crate) use self::batch::{Batch, Ready};
pub(crate) use self::copy_budget::CopyBudget;
pub(crate) use self::fences::FenceTracker;
pub(crate) use self::gathering::Gathering;
pub(crate) use self::idle_parts::IdleParts;
pub(crate) use self::merge_queue::{CombinerGuard, MergeQueue};
pub(crate) use self::object_pool::ObjectPool;
pub(crate) use self::request::{Combiner, Direction, GroupOp, Pending, READ, Repeat, Request, WRITE};
pub(crate) use self::shift::Shift;
