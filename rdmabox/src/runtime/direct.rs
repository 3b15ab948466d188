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
    sync::{atomic::Ordering, now, thread_slot},
    verbs::DirectOp,
};

impl Runtime {
    /// Carries a request out. `None` if that cannot be had now, and nothing has happened: it is to be submitted.
    #[inline]
    pub(crate) fn carry_out(&self, op: &mut DirectOp<'_>) -> Option<Result<(), RequestError>> {
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
        let slot = thread_slot::mine();
        // Any will do: those who use it side by side share nothing that changes.
        let (index, lane) = self.lanes.iter().enumerate().find(|(_, lane)| !lane.is_down())?;
        let counts = self.stats.on_the_spot.of(slot);
        let len = op.byte_len();
        let started = counts.is_timed(direction).then(now);
        match lane.execute_now(op)? {
            Ok(()) => {
                counts.count(direction, len);
                if let Some(started) = started {
                    self.count_latency(kind, now().saturating_duration_since(started));
                }
                Some(Ok(()))
            }
            Err(status) => {
                counts.count(direction, 0);
                self.lane_failed(index);
                Some(Err(self.failure(status, Duration::ZERO)))
            }
        }
    }
}
