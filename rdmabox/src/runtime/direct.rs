//! Requests on memory that is mapped here, carried out by their caller: no queue, no work request, no completion.
//!
//! There is nothing to gather for, to wait for or to be admitted to: such a request is over before the call that makes it
//! returns. What has to hold is the order. A caller's writes that overlap take effect in the order in which they were
//! made, and those of its requests that are still queued were started earlier: while there are any, no write
//! goes this way. A READ promises nothing about writes that are not done.

use std::time::Duration;

use super::{Runtime, lane::Kind};
use crate::{
    session::RequestError,
    stats::Direction,
    sync::{atomic::Ordering, now, thread_number},
    verbs::DirectOp,
};

impl Runtime {
    /// Carries a request out. `None` if that cannot be had now, and nothing has happened: it is to be submitted.
    pub(crate) fn carry_out(&self, op: DirectOp<'_>) -> Option<Result<(), RequestError>> {
        if !self.direct {
            return None;
        }
        let (kind, direction) = match op {
            DirectOp::Read { .. } => (Kind::Read, Direction::Read),
            DirectOp::Write { .. } => (Kind::Write, Direction::Write),
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } => (Kind::Atomic, Direction::Atomic),
        };
        if kind != Kind::Read && self.queued.load(Ordering::SeqCst) != 0 {
            return None;
        }
        let thread = thread_number();
        // Each thread has a lane of its own, as far as there are enough: what guards it then stays in one cache.
        let index = thread as usize % self.lanes.len();
        let counts = &self.stats.on_the_spot;
        let len = op.byte_len();
        let started = counts.is_timed(thread, direction).then(now);
        match self.lanes[index].execute_now(op)? {
            Ok(()) => {
                counts.count(thread, direction, len);
                if let Some(started) = started {
                    self.count_latency(kind, now().saturating_duration_since(started));
                }
                Some(Ok(()))
            }
            Err(status) => {
                counts.count(thread, direction, 0);
                self.lane_failed(index);
                Some(Err(self.failure(status, Duration::ZERO)))
            }
        }
    }
}
