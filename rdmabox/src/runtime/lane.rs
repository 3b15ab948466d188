//! A lane: one queue pair, its completion queue, and what is posted on it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Attendance, Ticket};
use crate::{
    batch::InFlightHandle,
    memory::{Loan, PreMrBuf},
    verbs::{MrHandle, QueuePair, WcStatus},
};

/// A caller's part of a work request.
#[derive(Debug)]
pub(crate) struct Member {
    pub loan: Loan,
    pub ticket: Arc<Ticket>,
}

/// What kind of work request, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

/// A posted work request. Fields are dropped in this order: registrations before the memory they describe.
#[derive(Debug)]
pub(crate) struct PostedWr {
    pub registrations: SmallVec<[MrHandle; 4]>,
    pub staging: Option<PreMrBuf>,
    pub members: SmallVec<[Member; 4]>,
    pub kind: Kind,
    pub len: u64,
    /// Bytes counted in the admission window.
    pub admitted: u64,
    pub in_flight: Option<InFlightHandle>,
    pub posted_at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct LaneQueue {
    /// Sequence number of the first entry; they double as `wr_id`.
    first: u64,
    posted: VecDeque<PostedWr>,
}

impl LaneQueue {
    /// The `wr_id` of the next request.
    pub(crate) fn next_id(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    pub(crate) fn push(&mut self, wr: PostedWr) {
        self.posted.push_back(wr);
    }

    pub(crate) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Takes everything that a completion of `wr_id` says is over.
    ///
    /// Requests complete in order and errors are always reported, so that whatever was posted before it and has not
    /// been reported succeeded. A flushed request says nothing about those before it: they count as flushed, too.
    pub(crate) fn complete(
        &mut self,
        wr_id: u64,
        status: WcStatus,
        out: &mut SmallVec<[(PostedWr, WcStatus); 8]>,
    ) {
        let earlier = match status {
            WcStatus::WrFlushErr => WcStatus::WrFlushErr,
            _ => WcStatus::Success,
        };
        while self.first <= wr_id {
            let Some(wr) = self.posted.pop_front() else { return };
            let own = if self.first == wr_id { status } else { earlier };
            self.first += 1;
            out.push((wr, own));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub qp: Arc<dyn QueuePair>,
    pub queue: Mutex<LaneQueue>,
    pub attendance: Attendance,
    depth: usize,
    /// Places of the send queue that are taken or promised. Raised under the runtime's gate only.
    used: AtomicUsize,
}

impl Lane {
    pub(crate) fn new(qp: Arc<dyn QueuePair>, attendance: Attendance) -> Lane {
        let depth = qp.caps().max_send_wr as usize;
        Lane { qp, queue: Mutex::default(), attendance, depth, used: AtomicUsize::new(0) }
    }

    /// Requests that may be posted. Only the holder of the runtime's gate can rely on it.
    pub(crate) fn room(&self) -> usize {
        self.depth.saturating_sub(self.used.load(Ordering::Acquire))
    }

    /// Promises places to requests that are about to be posted. Under the runtime's gate, within [`room`](Self::room).
    pub(crate) fn reserve(&self, count: usize) {
        self.used.fetch_add(count, Ordering::AcqRel);
    }

    /// Gives places back, of requests that were polled or refused.
    pub(crate) fn vacate(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> PostedWr {
        PostedWr {
            registrations: SmallVec::new(),
            staging: None,
            members: SmallVec::new(),
            kind: Kind::Write,
            len: 1,
            admitted: 0,
            in_flight: None,
            posted_at: Instant::now(),
        }
    }

    /// What a completion of the third of four requests says about each.
    fn outcome(status: WcStatus) -> Vec<WcStatus> {
        let mut queue = LaneQueue::default();
        for _ in 0..4 {
            queue.push(entry());
        }
        let mut out = SmallVec::new();
        queue.complete(2, status, &mut out);
        assert_eq!((queue.len(), queue.next_id()), (1, 4));
        // A second report of the same changes nothing.
        queue.complete(2, status, &mut out);
        assert_eq!(queue.len(), 1);
        out.into_iter().map(|(_, status)| status).collect()
    }

    #[test]
    fn what_a_completion_says_about_earlier_requests() {
        use WcStatus::*;
        assert_eq!(outcome(Success), [Success, Success, Success]);
        assert_eq!(outcome(RemAccessErr), [Success, Success, RemAccessErr]);
        assert_eq!(outcome(WrFlushErr), [WrFlushErr, WrFlushErr, WrFlushErr]);
    }
}
