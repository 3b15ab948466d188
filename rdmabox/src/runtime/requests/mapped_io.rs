//! Executes requests on mapped memory in the caller: no queue, no work request, no completion.
//!
//! Such a request is finished when its call returns, so it needs no merging and no admission.
//! Only the order matters: overlapping writes of one caller take effect in program order. Started
//! requests may still be queued, so a write is not executed here while any are. A READ guarantees
//! nothing about unfinished writes and needs no such check.
//!
//! # Concurrency
//! Called from any thread. Callers share the lane's reader lock, and each counts in its own
//! shard.

use std::time::Duration;

use crate::{
    error::RequestError,
    runtime::{
        lane::{Kind, Lane, QpGeneration},
        state::Runtime,
        trace::{TraceEvent, current_request},
    },
    stats::Direction,
    sync::{atomic::Ordering, now, thread_slot},
    verbs::{DirectOp, WcStatus},
};

/// The result of an attempt to execute a request here.
#[derive(Clone, Copy, Debug)]
enum ExecuteAttempt {
    /// Nothing happened: the request has to be submitted.
    NotPossible,
    Done,
    /// Status, lane index, and the generation of the queue pair that failed.
    Failed(WcStatus, usize, QpGeneration),
}

impl Runtime {
    /// Executes a request. Returns `None` if that is impossible now: nothing happened, and the
    /// caller has to submit the request.
    #[inline]
    pub(crate) fn execute_one_mapped(&self, op: &mut DirectOp<'_>) -> Option<Result<(), RequestError>> {
        // A `RequestError` is much larger than an attempt, so it is built only on failure.
        match self.try_execute(op) {
            ExecuteAttempt::NotPossible => None,
            ExecuteAttempt::Done => Some(Ok(())),
            ExecuteAttempt::Failed(status, lane, generation) => {
                Some(Err(self.fail_mapped(status, lane, generation)))
            }
        }
    }

    fn try_execute(&self, op: &mut DirectOp<'_>) -> ExecuteAttempt {
        if !self.direct {
            return ExecuteAttempt::NotPossible;
        }
        let (kind, direction) = match op {
            DirectOp::Read { .. } => (Kind::Read, Direction::Read),
            DirectOp::Write { .. } => (Kind::Write, Direction::Write),
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } | DirectOp::FetchOp { .. } => {
                (Kind::Atomic, Direction::Atomic)
            }
        };
        if kind != Kind::Read && self.queued.load(Ordering::SeqCst) != 0 {
            return ExecuteAttempt::NotPossible;
        }
        let counts = self.stats.direct_counts.of(thread_slot::current());
        let (timed, tracer) = (counts.is_timed(direction), self.active_tracer());
        // All callers take the first usable lane: they share no mutable state there.
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| !lane.is_down()) {
            let result = match timed || tracer.is_some() {
                true => self.execute_timed(lane, kind, op, timed),
                false => lane.execute_now(op),
            };
            match result {
                Some(Ok(())) => {
                    counts.count(direction, op.byte_len());
                    return ExecuteAttempt::Done;
                }
                Some(Err((status, generation))) => {
                    counts.count(direction, 0);
                    return ExecuteAttempt::Failed(status, index, generation);
                }
                None => {}
            }
        }
        ExecuteAttempt::NotPossible
    }

    /// Executes a request, and reports it if the tracer is on. Records the latency if `timed`.
    #[cold]
    fn execute_timed(
        &self,
        lane: &Lane,
        kind: Kind,
        op: &mut DirectOp<'_>,
        timed: bool,
    ) -> Option<Result<(), (WcStatus, QpGeneration)>> {
        let began = now();
        let result = lane.execute_now(op);
        if let Some(Ok(())) = result {
            if timed {
                self.count_latency(kind, now().saturating_duration_since(began));
            }
            if let Some(tracer) = self.active_tracer() {
                let (request, kind, bytes) = (current_request(), kind.into(), op.byte_len());
                tracer.record(&TraceEvent::Executed { request, kind, bytes, began });
            }
        }
        result
    }

    #[cold]
    fn fail_mapped(&self, status: WcStatus, lane: usize, generation: QpGeneration) -> RequestError {
        self.fail_lane(lane, generation);
        self.failure(status, Duration::ZERO, self.timeout)
    }
}
