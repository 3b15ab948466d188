//! Requests on memory that is mapped here, carried out by their caller: no queue, no work request, no completion.
//!
//! There is nothing to gather for, to wait for or to be admitted to: such a request is over before the call that makes it
//! returns. What has to hold is the order. A caller's writes that overlap take effect in the order in which they were
//! made, and those of its requests that are still queued were started earlier: while there are any, no write
//! goes this way. A READ promises nothing about writes that are not done.

use std::{sync::atomic::Ordering, time::Instant};

use super::{Runtime, lane::Kind};
use crate::{session::RequestError, sync::thread_number, verbs::DirectOp};

impl Runtime {
    /// Carries a request out. `None` if that cannot be had now, and nothing has happened: it is to be submitted.
    pub(crate) fn carry_out(&self, op: DirectOp<'_>) -> Option<Result<(), RequestError>> {
        if !self.direct {
            return None;
        }
        let (kind, requests) = match op {
            DirectOp::Read { .. } => (Kind::Read, &self.stats.read_requests),
            DirectOp::Write { .. } => (Kind::Write, &self.stats.write_requests),
            DirectOp::CompareSwap { .. } | DirectOp::FetchAdd { .. } => {
                (Kind::Atomic, &self.stats.atomic_requests)
            }
        };
        if kind != Kind::Read && self.queued.load(Ordering::SeqCst) != 0 {
            return None;
        }
        // Each thread has a lane of its own, as far as there are enough: what guards it then stays in one cache.
        let index = thread_number() as usize % self.lanes.len();
        let len = op.byte_len();
        let started = Instant::now();
        let status = self.lanes[index].execute_now(op)?;
        let latency = started.elapsed();
        requests.inc();
        self.stats.direct.inc();
        match status {
            Ok(()) => {
                self.count_done(kind, len, latency);
                Some(Ok(()))
            }
            Err(status) => {
                self.lane_failed(index);
                Some(Err(self.failure(status, latency)))
            }
        }
    }
}
