//! A lane: one queue pair, its completion queue, and what is posted on it.

use std::{collections::VecDeque, sync::Arc, time::Instant};

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

    /// Takes everything that a completion of `wr_id` says is over: requests complete in order, so that whatever
    /// was posted before it succeeded.
    pub(crate) fn complete(
        &mut self,
        wr_id: u64,
        status: WcStatus,
        out: &mut SmallVec<[(PostedWr, WcStatus); 8]>,
    ) {
        while self.first <= wr_id {
            let Some(wr) = self.posted.pop_front() else { return };
            let own = if self.first == wr_id { status } else { WcStatus::Success };
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
    pub depth: usize,
}
