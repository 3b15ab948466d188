//! The posted requests of a lane, in order, with the callers' parts of each.
//!
//! # Concurrency
//! No locks. The lane's lock `queue` protects a [`LaneQueue`].

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::{
    batch::InFlightHandle,
    memory::{Loan, PreMrBuf},
    runtime::wait::Ticket,
    stats::LaneStats,
    verbs::{MrHandle, RemoteAddr, SendOp, WcStatus},
};

/// One caller's part of a work request.
#[derive(Debug)]
pub(crate) struct Member {
    pub loan: Loan,
    pub ticket: Arc<Ticket>,
}

/// The kind of a work request, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

impl Kind {
    /// Returns the kind of an operation.
    pub(crate) fn of(op: &SendOp) -> Kind {
        match op {
            SendOp::Read { .. } => Kind::Read,
            SendOp::Write { .. } | SendOp::Send { .. } => Kind::Write,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::FetchOp { .. } => Kind::Atomic,
        }
    }
}

/// A posted work request.
///
/// Fields are dropped in this order: registrations, then the memory that they describe. The
/// members' loans are dropped last.
#[derive(Debug)]
pub(crate) struct PostedWr {
    pub lane: usize,
    pub registrations: SmallVec<[MrHandle; 4]>,
    pub staging: Option<PreMrBuf>,
    /// Number of members.
    pub members: usize,
    pub kind: Kind,
    pub len: u64,
    /// Bytes that the request occupies in the admission window.
    pub admitted: u64,
    pub in_flight: Option<InFlightHandle>,
    /// First remote byte of a merged READ or WRITE, whose members can be repeated alone.
    pub merged_at: Option<RemoteAddr>,
    /// True if it repeats a part of a refused work request (`requests::submit::repeats`).
    pub is_repeat: bool,
    /// Time from which the operation timeout counts: that of the post. Earlier for a repetition.
    pub posted_at: Instant,
    /// Its number in a trace; 0 if it is not traced.
    pub traced_as: u64,
}

/// Finished work requests in posting order, with all their members in the same order.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub wrs: Vec<(PostedWr, WcStatus)>,
    pub members: VecDeque<Member>,
}

#[derive(Debug, Default)]
pub(crate) struct LaneQueue {
    /// Sequence number of the first entry of `posted`.
    first: u64,
    posted: VecDeque<PostedWr>,
    /// Members of all posted requests, in order. One queue for all, so that no request allocates a
    /// list.
    members: VecDeque<Member>,
    /// Counters of all requests that were pushed.
    pushed: LaneStats,
}

/// Width of the sequence number in a `wr_id`. The lane index uses the bits above.
const SEQUENCE_BITS: u32 = 56;

/// Returns the `wr_id` of a request on a lane. It names the lane because lanes may share a
/// completion queue.
pub(crate) fn wr_id(lane: usize, sequence: u64) -> u64 {
    ((lane as u64) << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// Returns the lane index and the sequence number of a `wr_id`.
pub(crate) fn lane_of(wr_id: u64) -> (usize, u64) {
    ((wr_id >> SEQUENCE_BITS) as usize, wr_id & ((1 << SEQUENCE_BITS) - 1))
}

impl LaneQueue {
    /// Returns the sequence number of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    /// Appends a request with its `wr.members` members.
    pub(crate) fn push(&mut self, wr: PostedWr, members: impl Iterator<Item = Member>) {
        let before = self.members.len();
        self.members.extend(members);
        debug_assert_eq!(self.members.len() - before, wr.members);
        self.pushed.work_requests += 1;
        self.pushed.bytes += wr.len;
        self.posted.push_back(wr);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Returns the counters of all requests posted here so far.
    pub(crate) fn stats(&self) -> LaneStats {
        self.pushed
    }

    /// Moves the requests that a completion of `sequence` finishes to `finished`.
    ///
    /// Requests complete in order, and errors always complete. Earlier unreported requests have
    /// therefore succeeded. A flush completion says nothing about earlier requests, so they count
    /// as flushed as well.
    pub(crate) fn complete(&mut self, sequence: u64, status: WcStatus, finished: &mut Finished) {
        let earlier = match status {
            WcStatus::WrFlushErr => WcStatus::WrFlushErr,
            _ => WcStatus::Success,
        };
        while self.first <= sequence {
            let Some(wr) = self.posted.pop_front() else { return };
            let own = if self.first == sequence { status } else { earlier };
            self.first += 1;
            finished.members.extend(self.members.drain(..wr.members));
            finished.wrs.push((wr, own));
        }
    }

    /// Returns true if a request of the ticket is posted here.
    pub(crate) fn holds(&self, ticket: &Arc<Ticket>) -> bool {
        self.members.iter().any(|member| Arc::ptr_eq(&member.ticket, ticket))
    }

    /// Returns the timeout that a request has exceeded.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Duration> {
        let mut members = self.members.iter();
        // In no order of time, because a repetition counts from its first post.
        self.posted.iter().find_map(|wr| {
            let waited = now.saturating_duration_since(wr.posted_at);
            let timeouts = members.by_ref().take(wr.members).map(|member| member.ticket.timeout());
            timeouts.filter(|timeout| waited >= *timeout).fold(None, |first, timeout| first.or(Some(timeout)))
        })
    }

    /// Moves all requests to `finished`, as flushed.
    pub(crate) fn flush(&mut self, finished: &mut Finished) {
        if !self.is_empty() {
            self.complete(self.next() - 1, WcStatus::WrFlushErr, finished);
        }
    }
}

#[cfg(test)]
pub(in crate::runtime::lane) mod tests {
    use super::*;

    pub(in crate::runtime::lane) fn entry() -> PostedWr {
        PostedWr {
            lane: 0,
            registrations: SmallVec::new(),
            staging: None,
            members: 0,
            kind: Kind::Write,
            len: 1,
            admitted: 0,
            in_flight: None,
            merged_at: None,
            is_repeat: false,
            posted_at: Instant::now(),
            traced_as: 0,
        }
    }

    /// Returns the statuses that a completion of the third of four requests gives.
    fn outcome(status: WcStatus) -> Vec<WcStatus> {
        let mut queue = LaneQueue::default();
        for _ in 0..4 {
            queue.push(entry(), std::iter::empty());
        }
        let mut finished = Finished::default();
        queue.complete(2, status, &mut finished);
        assert_eq!((queue.posted.len(), queue.next()), (1, 4));
        // A second report of the same request changes nothing.
        queue.complete(2, status, &mut finished);
        assert_eq!(queue.posted.len(), 1);
        finished.wrs.into_iter().map(|(_, status)| status).collect()
    }

    #[test]
    fn a_completion_determines_the_status_of_earlier_requests() {
        use WcStatus::*;
        assert_eq!(outcome(Success), [Success, Success, Success]);
        assert_eq!(outcome(RemAccessErr), [Success, Success, RemAccessErr]);
        assert_eq!(outcome(WrFlushErr), [WrFlushErr, WrFlushErr, WrFlushErr]);
    }

    #[test]
    fn members_leave_with_their_request() {
        let data = [0u8; 8];
        crate::memory::scope(|scope| {
            let mut queue = LaneQueue::default();
            let mut finished = Finished::default();
            for len in [1usize, 2, 3] {
                let members = (0..len)
                    .map(|_| Member { loan: scope.lend(&data[..len]), ticket: Ticket::of_this_thread(1) });
                queue.push(PostedWr { members: len, ..entry() }, members);
            }
            queue.complete(0, WcStatus::Success, &mut finished);
            assert_eq!((finished.wrs.len(), finished.members.len()), (1, 1));
            queue.complete(1, WcStatus::Success, &mut finished);
            assert_eq!((finished.wrs.len(), finished.members.len()), (2, 3));
            queue.flush(&mut finished);
            let lengths: Vec<usize> = finished.members.iter().map(|member| member.loan.len()).collect();
            assert_eq!(lengths, [1, 2, 2, 3, 3, 3]);
            assert_eq!(finished.wrs[2].1, WcStatus::WrFlushErr);
            queue.flush(&mut finished);
            assert_eq!((finished.wrs.len(), queue.next()), (3, 3));
        });
    }

    /// A repetition counts from its first post. Catches a check that stops at the first request
    /// that has time.
    #[test]
    fn an_overdue_request_is_found_behind_a_younger_one() {
        let data = [0u8; 8];
        crate::memory::scope(|scope| {
            let mut queue = LaneQueue::default();
            let (now, timeout) = (Instant::now(), Duration::from_secs(5));
            let mut push = |seconds| {
                let ticket = Ticket::of_this_thread_within(1, timeout);
                let member = Member { loan: scope.lend(&data), ticket };
                let posted_at = now - Duration::from_secs(seconds);
                queue.push(PostedWr { members: 1, posted_at, ..entry() }, std::iter::once(member));
                queue.overdue(now)
            };
            assert_eq!([1, 4, 5, 2].map(&mut push), [None, None, Some(timeout), Some(timeout)]);
            queue.flush(&mut Finished::default());
        });
    }

    #[test]
    fn ids_name_lane_and_sequence() {
        for (lane, sequence) in [(0, 0), (3, 77), (15, (1 << 56) - 1)] {
            assert_eq!(lane_of(wr_id(lane, sequence)), (lane, sequence));
        }
    }
}
