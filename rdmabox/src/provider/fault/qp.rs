//! Queue pairs that take part of a list, break, or lose their connection.

use std::{sync::Arc, time::Duration};

use super::{
    plan::{Plan, Posting},
    relay,
};
use crate::{
    mapping::Memory,
    verbs::{
        Access, AtomicOp, AtomicOps, DirectOp, PostError, PostErrorReason, QpCaps, QpState, QueuePair,
        RecvWr, RemoteAddr, Rendezvous, SendOp, SendWr, VerbsError, WcStatus,
    },
};

/// A queue pair with faults; without a plan it has none.
#[derive(Debug)]
pub(super) struct FaultQp {
    inner: Arc<dyn QueuePair>,
    plan: Option<Arc<Plan>>,
    atomic_ops: AtomicOps,
}

impl FaultQp {
    pub(super) fn new(inner: Arc<dyn QueuePair>, plan: Option<Arc<Plan>>, atomic_ops: AtomicOps) -> FaultQp {
        FaultQp { inner, plan, atomic_ops }
    }

    /// Returns the atomic of a request if the device does not have it.
    fn lacks(&self, wr: &SendWr<'_>) -> Option<AtomicOp> {
        match wr.op {
            SendOp::FetchOp { op, .. } if !self.atomic_ops.contains(op.kind()) => Some(op),
            _ => None,
        }
    }
}

impl crate::verbs::Sealed for FaultQp {}

impl QueuePair for FaultQp {
    fn qp_num(&self) -> u32 {
        self.inner.qp_num()
    }

    fn state(&self) -> QpState {
        self.inner.state()
    }

    fn caps(&self) -> QpCaps {
        self.inner.caps()
    }

    fn connect(&self, stream: Rendezvous, timeout: Duration) -> Result<(), VerbsError> {
        let cut = self.plan.as_ref().and_then(|plan| plan.cut());
        let stream = match (stream, cut) {
            (Rendezvous::Tcp(stream), Some(cut)) => {
                let relayed = relay::cut(stream, cut).map_err(|e| VerbsError::os("relay", e))?;
                Rendezvous::Tcp(relayed)
            }
            (Rendezvous::Tls(stream), Some(cut)) => {
                let relayed = stream.over(|below| relay::cut(below, cut));
                Rendezvous::Tls(relayed.map_err(|e| VerbsError::os("relay", e))?)
            }
            // Memory handles cannot be relayed.
            (stream, _) => stream,
        };
        self.inner.connect(stream, timeout)
    }

    fn post_send(&self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let refused = (0..).zip(list).find_map(|(at, wr)| Some((at, self.lacks(wr)?)));
        if let Some((posted, op)) = refused {
            self.inner.post_send(&list[..posted])?;
            return Err(PostError { posted, reason: PostErrorReason::Unsupported(op) });
        }
        match self.plan.as_ref().map_or(Posting::Whole, |plan| plan.posting(list.len())) {
            Posting::Whole => self.inner.post_send(list),
            Posting::Part(posted) => {
                self.inner.post_send(&list[..posted])?;
                Err(PostError { posted, reason: PostErrorReason::Device(libc::ENOMEM) })
            }
            Posting::Broken => {
                let outcome = self.inner.post_send(list);
                self.inner.to_error();
                outcome
            }
        }
    }

    fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner.post_recv(list)
    }

    fn to_error(&self) {
        self.inner.to_error();
    }

    fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }

    fn executes_at_post(&self) -> bool {
        self.inner.executes_at_post()
    }

    fn works_beside_others(&self) -> bool {
        self.inner.works_beside_others()
    }

    fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), WcStatus>> {
        if let DirectOp::FetchOp { op, .. } = op
            && !self.atomic_ops.contains(op.kind())
        {
            return None;
        }
        if self.inner.executes_at_post() && self.plan.as_ref().is_some_and(|plan| plan.breaks()) {
            self.inner.to_error();
            return Some(Err(WcStatus::RetryExcErr));
        }
        self.inner.execute_now(op)
    }

    fn map_remote(&self, remote: RemoteAddr, len: u64, needs: Access) -> Option<(Arc<Memory>, usize)> {
        self.inner.map_remote(remote, len, needs)
    }
}
