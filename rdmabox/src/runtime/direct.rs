//! Requests on memory that is mapped here, carried out by their caller: no queue, no work request, no completion.
//!
//! There is nothing to gather for, to wait for or to be admitted to: such a request is over before the call that makes it
//! returns. What has to hold is the order. A caller's writes that overlap take effect in the order in which they were
//! made, and those of its requests that are still queued were started earlier: while there are any, no write
//! goes this way. A READ promises nothing about writes that are not done.

use std::time::Duration;

use super::{
    Runtime,
    lane::{Incarnation, Kind, Lane},
};
use crate::{
    session::RequestError,
    stats::Direction,
    sync::{atomic::Ordering, now, thread_slot},
    verbs::{DirectOp, WcStatus},
};

/// What came of an attempt.
#[derive(Clone, Copy, Debug)]
enum Attempt {
    /// Nothing: it has to be submitted.
    NotNow,
    Done,
    /// On the lane of that number, with the queue pair that it had.
    Failed(WcStatus, usize, Incarnation),
}

impl Runtime {
    /// Carries a request out. `None` if that cannot be had now, and nothing has happened: it is to be submitted.
    #[inline]
    pub(crate) fn carry_out(&self, op: &mut DirectOp<'_>) -> Option<Result<(), RequestError>> {
        // An error is much larger than an attempt: it is made only where there is one.
        match self.attempt(op) {
            Attempt::NotNow => None,
            Attempt::Done => Some(Ok(())),
            Attempt::Failed(status, lane, which) => Some(Err(self.failed_on_the_spot(status, lane, which))),
        }
    }

    fn attempt(&self, op: &mut DirectOp<'_>) -> Attempt {
        if !self.direct {
            return Attempt::NotNow;
        }
        let (kind, direction) = match op {
            DirectOp::Read { .. } => (Kind::Read, Direction::Read),
            DirectOp::Write { .. } => (Kind::Write, Direction::Write),
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } => (Kind::Atomic, Direction::Atomic),
        };
        if kind != Kind::Read && self.queued.load(Ordering::SeqCst) != 0 {
            return Attempt::NotNow;
        }
        let counts = self.stats.on_the_spot.of(thread_slot::mine());
        let timed = counts.is_timed(direction);
        // The first that can: those who use it side by side share nothing that changes.
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| !lane.is_down()) {
            let result = if timed { self.execute_timed(lane, kind, op) } else { lane.execute_now(op) };
            match result {
                Some(Ok(())) => {
                    counts.count(direction, op.byte_len());
                    return Attempt::Done;
                }
                Some(Err((status, which))) => {
                    counts.count(direction, 0);
                    return Attempt::Failed(status, index, which);
                }
                None => {}
            }
        }
        Attempt::NotNow
    }

    #[cold]
    fn execute_timed(
        &self,
        lane: &Lane,
        kind: Kind,
        op: &mut DirectOp<'_>,
    ) -> Option<Result<(), (WcStatus, Incarnation)>> {
        let started = now();
        let result = lane.execute_now(op);
        if let Some(Ok(())) = result {
            self.count_latency(kind, now().saturating_duration_since(started));
        }
        result
    }

    #[cold]
    fn failed_on_the_spot(&self, status: WcStatus, lane: usize, which: Incarnation) -> RequestError {
        self.lane_failed(lane, which);
        self.failure(status, Duration::ZERO)
    }
}
