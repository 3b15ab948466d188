//! Reports the steps of requests to a tracer.
//!
//! # Concurrency
//! The thread of each step. It may hold the locks of the merge queue or of a lane.

use std::{collections::VecDeque, time::Instant};

use smallvec::SmallVec;

use crate::{
    memory::Loan,
    runtime::{
        lane::{Kind, Member, PostedWr},
        queue::Ready,
        state::Runtime,
        trace::{LocalMemory, TraceEvent, Tracer, TransferKind},
        wait::Ticket,
    },
    sync::now,
    verbs::WcStatus,
};

impl From<Kind> for TransferKind {
    fn from(kind: Kind) -> TransferKind {
        match kind {
            Kind::Read => TransferKind::Read,
            Kind::Write => TransferKind::Write,
            Kind::Atomic => TransferKind::Atomic,
        }
    }
}

fn requests_of<'a>(members: impl Iterator<Item = &'a Member>) -> SmallVec<[u64; 32]> {
    members.map(|member| member.ticket.traced_as()).collect()
}

/// Reports a request that enters the merge queue.
#[cold]
pub(in crate::runtime::requests) fn trace_queued(tracer: &Tracer, ticket: &Ticket, kind: Kind, loan: &Loan) {
    let (request, kind, bytes) = (ticket.traced_as(), kind.into(), loan.len() as u64);
    tracer.record(&TraceEvent::Queued { request, kind, bytes });
}

/// Numbers a work request whose memory is ready, and reports it with the requests that it carries.
#[cold]
pub(super) fn trace_planned(
    tracer: &Tracer,
    posted: &mut PostedWr,
    members: &[Member],
    memory: LocalMemory,
    began: Instant,
) {
    posted.traced_as = tracer.number_work_request();
    tracer.record(&TraceEvent::Planned {
        work_request: posted.traced_as,
        kind: posted.kind.into(),
        bytes: posted.len,
        requests: &requests_of(members.iter()),
        memory,
        began,
    });
}

/// Reports a chain that was posted.
#[cold]
pub(super) fn trace_posted(tracer: &Tracer, chain: &[Ready], lane: usize, accepted: bool, began: Instant) {
    let work_requests: SmallVec<[u64; 32]> = chain.iter().map(|wr| wr.posted.traced_as).collect();
    tracer.record(&TraceEvent::Posted { work_requests: &work_requests, lane, accepted, began });
}

/// The delivery of a completed work request. It is reported when this is dropped.
pub(in crate::runtime::requests) struct TracedDelivery<'a> {
    tracer: &'a Tracer,
    work_request: u64,
    began: Instant,
}

impl Drop for TracedDelivery<'_> {
    fn drop(&mut self) {
        let TracedDelivery { tracer, work_request, began } = *self;
        tracer.record(&TraceEvent::Delivered { work_request, began });
    }
}

impl Runtime {
    /// Reports the completion of a work request, if it is traced. `members` begins with its
    /// members.
    #[inline]
    pub(in crate::runtime::requests) fn trace_completion(
        &self,
        wr: &PostedWr,
        members: &VecDeque<Member>,
        status: WcStatus,
    ) -> Option<TracedDelivery<'_>> {
        if wr.traced_as == 0 {
            return None;
        }
        let (tracer, work_request, began) = (self.active_tracer()?, wr.traced_as, now());
        let requests = &requests_of(members.iter().take(wr.members));
        let kind = wr.kind.into();
        tracer.record(&TraceEvent::Completed { work_request, kind, requests, status });
        Some(TracedDelivery { tracer, work_request, began })
    }
}
