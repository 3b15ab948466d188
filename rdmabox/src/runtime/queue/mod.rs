//! Requests before they are posted: merge queues, and the objects that pass through them.

mod fences;
mod merge_queue;
mod object_pool;

pub(crate) use self::fences::FenceTracker;
pub(crate) use self::merge_queue::{CombinerGuard, MergeQueue};
pub(crate) use self::object_pool::ObjectPool;
