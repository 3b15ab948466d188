//! A lane: one queue pair, what is posted on it, and whether it is up.
//!
//! A queue pair that has failed is replaced while the other lanes carry on. Sequence numbers go on over such a change,
//! and a new queue pair comes only when nothing of the old one is left in the queue: a late completion of the old one
//! names nothing.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::Ticket;
use crate::{
    batch::InFlightHandle,
    memory::{Loan, PreMrBuf},
    sync::{
        Mutex, ReaderLock, TryMutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    verbs::{DirectOp, MrHandle, QpState, QueuePair, WcStatus},
};

/// So many requests on a lane are enough for a small one to go elsewhere.
const MANY: usize = 16;

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

/// A posted work request. Fields are dropped in this order: registrations, then the memory they describe; loans, which are
/// its members', go last.
#[derive(Debug)]
pub(crate) struct PostedWr {
    pub lane: usize,
    pub registrations: SmallVec<[MrHandle; 4]>,
    pub staging: Option<PreMrBuf>,
    /// How many members it has.
    pub members: usize,
    pub kind: Kind,
    pub len: u64,
    /// Bytes counted in the admission window.
    pub admitted: u64,
    pub in_flight: Option<InFlightHandle>,
    pub posted_at: Instant,
}

/// Work requests that are over, in order, and all their members, in the same order.
#[derive(Debug, Default)]
pub(crate) struct Over {
    pub wrs: Vec<(PostedWr, WcStatus)>,
    pub members: VecDeque<Member>,
}

#[derive(Debug, Default)]
pub(crate) struct LaneQueue {
    /// Sequence number of the first entry.
    first: u64,
    posted: VecDeque<PostedWr>,
    /// Those of the posted requests, in order. One queue for all, so that no request needs a list of its own.
    members: VecDeque<Member>,
}

/// Bits of a `wr_id` that hold the sequence number; the lane's number is above.
const SEQUENCE_BITS: u32 = 56;

/// The `wr_id` of a request on a lane. Lanes may share a completion queue.
pub(crate) fn wr_id(lane: usize, sequence: u64) -> u64 {
    ((lane as u64) << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// Lane and sequence number of a `wr_id`.
pub(crate) fn lane_of(wr_id: u64) -> (usize, u64) {
    ((wr_id >> SEQUENCE_BITS) as usize, wr_id & ((1 << SEQUENCE_BITS) - 1))
}

impl LaneQueue {
    /// The sequence number of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    /// Appends a request with as many members as it says.
    pub(crate) fn push(&mut self, wr: PostedWr, members: impl Iterator<Item = Member>) {
        let before = self.members.len();
        self.members.extend(members);
        debug_assert_eq!(self.members.len() - before, wr.members);
        self.posted.push_back(wr);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Takes everything that a completion of `sequence` says is over.
    ///
    /// Requests complete in order and errors are always reported, so that whatever was posted before it and has not
    /// been reported succeeded. A flushed request says nothing about those before it: they count as flushed, too.
    pub(crate) fn complete(&mut self, sequence: u64, status: WcStatus, over: &mut Over) {
        let earlier = match status {
            WcStatus::WrFlushErr => WcStatus::WrFlushErr,
            _ => WcStatus::Success,
        };
        while self.first <= sequence {
            let Some(wr) = self.posted.pop_front() else { return };
            let own = if self.first == sequence { status } else { earlier };
            self.first += 1;
            over.members.extend(self.members.drain(..wr.members));
            over.wrs.push((wr, own));
        }
    }

    /// True if something of the ticket is posted here.
    pub(crate) fn holds(&self, ticket: &Arc<Ticket>) -> bool {
        self.members.iter().any(|member| Arc::ptr_eq(&member.ticket, ticket))
    }

    /// When the oldest request was posted.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.posted.front().map(|wr| wr.posted_at)
    }

    /// Takes everything, as flushed.
    pub(crate) fn flush(&mut self, over: &mut Over) {
        if !self.is_empty() {
            self.complete(self.next() - 1, WcStatus::WrFlushErr, over);
        }
    }
}

/// Which of the queue pairs that a lane has had, one after the other. Whoever saw one fail says which, so that a thread that is
/// late to say so ends nothing but that one: its replacement may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Incarnation(u64);

impl Incarnation {
    const FIRST: Incarnation = Incarnation(0);

    fn next(self) -> Incarnation {
        Incarnation(self.0 + 1)
    }

    /// A lane's state with this one up, or taken down.
    fn state(self, down: bool) -> u64 {
        (self.0 << 1) | u64::from(down)
    }
}

/// A queue pair in its lane.
#[derive(Debug)]
struct Joined {
    qp: Arc<dyn QueuePair>,
    incarnation: Incarnation,
}

#[derive(Debug)]
pub(crate) struct Lane {
    qp: ReaderLock<Joined>,
    /// Held over a post, so that a completion cannot come before its request is here; and over the change of the
    /// queue pair.
    pub queue: TryMutex<LaneQueue>,
    /// Which of the runtime's attendances sees its completions.
    pub attended_by: usize,
    depth: usize,
    /// Places of the send queue that are taken or promised. Raised under the runtime's gate only.
    used: AtomicUsize,
    /// Whether something large was posted since it was idle; a hint.
    has_large: AtomicBool,
    /// The incarnation, and whether it is down ([`Incarnation::state`]).
    state: AtomicU64,
    /// Writes that failed with the queue pair: until it has been replaced they may still take effect at the peer.
    doubtful: Mutex<Vec<InFlightHandle>>,
}

impl Lane {
    pub(crate) fn new(qp: Arc<dyn QueuePair>, attended_by: usize) -> Lane {
        let depth = qp.caps().max_send_wr as usize;
        Lane {
            qp: ReaderLock::new(Joined { qp, incarnation: Incarnation::FIRST }),
            queue: TryMutex::default(),
            attended_by,
            depth,
            used: AtomicUsize::new(0),
            has_large: AtomicBool::new(false),
            state: AtomicU64::new(Incarnation::FIRST.state(false)),
            doubtful: Mutex::default(),
        }
    }

    /// Its queue pair now.
    pub(crate) fn qp(&self) -> Arc<dyn QueuePair> {
        self.joined().0
    }

    /// Its queue pair now, and which one that is.
    pub(crate) fn joined(&self) -> (Arc<dyn QueuePair>, Incarnation) {
        let joined = self.qp.read();
        (Arc::clone(&joined.qp), joined.incarnation)
    }

    /// The state of its queue pair now, and which one that is.
    pub(crate) fn condition(&self) -> (QpState, Incarnation) {
        let joined = self.qp.read();
        (joined.qp.state(), joined.incarnation)
    }

    /// Which queue pair it has. It stays while [`queue`](Self::queue) is locked.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.state.load(Ordering::SeqCst) >> 1)
    }

    /// Carries a request out on mapped memory. `None` if it cannot be had now, and nothing has happened. A failure says whose.
    #[inline]
    pub(crate) fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), (WcStatus, Incarnation)>> {
        let joined = self.qp.read();
        joined.qp.execute_now(op).map(|result| result.map_err(|status| (status, joined.incarnation)))
    }

    /// Requests that may be posted; none while it is down. Only the holder of the runtime's gate can rely on it.
    pub(crate) fn room(&self) -> usize {
        if self.is_down() { 0 } else { self.depth.saturating_sub(self.used.load(Ordering::Acquire)) }
    }

    /// True if nothing is posted on it or about to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.load(Ordering::SeqCst) == 0
    }

    /// True if a small request would not have to wait behind a large one, nor behind many.
    pub(crate) fn takes_small(&self) -> bool {
        self.is_idle() || !self.has_large.load(Ordering::Relaxed) && self.used.load(Ordering::Relaxed) < MANY
    }

    /// Something is going to be posted on it, for which no place is [reserved](Self::reserve) yet.
    pub(crate) fn note_size(&self, small: bool) {
        if !small || self.is_idle() {
            self.has_large.store(!small, Ordering::Relaxed);
        }
    }

    /// Promises places to requests that are about to be posted. Under the runtime's gate, within [`room`](Self::room).
    pub(crate) fn reserve(&self, count: usize) {
        self.used.fetch_add(count, Ordering::SeqCst);
    }

    /// Gives places back, of requests that were polled or refused.
    pub(crate) fn vacate(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::SeqCst);
    }

    /// True from the failure of its queue pair to its replacement.
    pub(crate) fn is_down(&self) -> bool {
        self.state.load(Ordering::SeqCst) & 1 == 1
    }

    /// Takes one queue pair out of use, unless it has been replaced. When it returns, no memory of what was posted on that one is
    /// touched any more. True for the first to do so.
    pub(crate) fn take_down(&self, which: Incarnation) -> bool {
        let (up, down) = (which.state(false), which.state(true));
        let first = self.state.compare_exchange(up, down, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let (qp, incarnation) = self.joined();
        if incarnation == which {
            qp.to_error();
        }
        first
    }

    /// Takes what is posted on one queue pair, as flushed, if it is down and has not been replaced.
    pub(crate) fn flush(&self, which: Incarnation, over: &mut Over) {
        let mut queue = self.queue.lock();
        if self.state.load(Ordering::SeqCst) == which.state(true) {
            queue.flush(over);
        }
    }

    /// Keeps the range of a write that failed while it may still take effect. Gives it back if that is over.
    pub(crate) fn doubt(&self, write: InFlightHandle) -> Option<InFlightHandle> {
        let mut doubtful = self.doubtful.lock();
        if !self.is_down() {
            return Some(write);
        }
        // The replacement takes the list after it has ended the state.
        doubtful.push(write);
        None
    }

    /// Puts a new queue pair in the place of one that was taken down, and takes what is left of the old one's requests.
    /// Gives the ranges of writes that have been in doubt: nothing of the old queue pair's takes effect any more.
    pub(crate) fn replace(&self, qp: Arc<dyn QueuePair>, over: &mut Over) -> Vec<InFlightHandle> {
        let old = {
            let mut queue = self.queue.lock();
            let mut joined = self.qp.write();
            // Whoever took it down may not have come to this yet, and what it posted gives its memory back here.
            joined.qp.to_error();
            queue.flush(over);
            let incarnation = joined.incarnation.next();
            let old = std::mem::replace(&mut *joined, Joined { qp, incarnation });
            self.state.store(incarnation.state(false), Ordering::SeqCst);
            old
        };
        // A device may take its time to destroy one: nobody waits for that.
        drop(old);
        std::mem::take(&mut *self.doubtful.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::soft::SoftDevice,
        verbs::{Device, Progress, QpCaps, QpInit},
    };

    fn entry() -> PostedWr {
        PostedWr {
            lane: 0,
            registrations: SmallVec::new(),
            staging: None,
            members: 0,
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
            queue.push(entry(), std::iter::empty());
        }
        let mut over = Over::default();
        queue.complete(2, status, &mut over);
        assert_eq!((queue.posted.len(), queue.next()), (1, 4));
        // A second report of the same changes nothing.
        queue.complete(2, status, &mut over);
        assert_eq!(queue.posted.len(), 1);
        over.wrs.into_iter().map(|(_, status)| status).collect()
    }

    #[test]
    fn what_a_completion_says_about_earlier_requests() {
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
            let mut over = Over::default();
            for len in [1usize, 2, 3] {
                let members = (0..len)
                    .map(|_| Member { loan: scope.lend(&data[..len]), ticket: Ticket::of_this_thread(1) });
                queue.push(PostedWr { members: len, ..entry() }, members);
            }
            queue.complete(0, WcStatus::Success, &mut over);
            assert_eq!((over.wrs.len(), over.members.len()), (1, 1));
            queue.complete(1, WcStatus::Success, &mut over);
            assert_eq!((over.wrs.len(), over.members.len()), (2, 3));
            queue.flush(&mut over);
            let lengths: Vec<usize> = over.members.iter().map(|member| member.loan.len()).collect();
            assert_eq!(lengths, [1, 2, 2, 3, 3, 3]);
            assert_eq!(over.wrs[2].1, WcStatus::WrFlushErr);
            queue.flush(&mut over);
            assert_eq!((over.wrs.len(), queue.next()), (3, 3));
        });
    }

    #[test]
    fn who_is_late_to_say_that_one_failed_does_not_end_its_replacement() {
        let device = SoftDevice::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4).unwrap();
        let queue_pair = || {
            let (send_cq, recv_cq, caps) = (Arc::clone(&cq), Arc::clone(&cq), QpCaps::default());
            pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true }).unwrap()
        };
        let (old, new) = (queue_pair(), queue_pair());
        let lane = Lane::new(Arc::clone(&old), 0);
        let which = lane.incarnation();
        assert!(lane.take_down(which) && lane.is_down());
        assert!(!lane.take_down(which));
        lane.queue.lock().push(entry(), std::iter::empty());
        let mut over = Over::default();
        lane.replace(Arc::clone(&new), &mut over);
        assert_eq!((old.state(), over.wrs.len(), lane.is_down()), (QpState::Err, 1, false));
        lane.queue.lock().push(entry(), std::iter::empty());
        assert!(!lane.take_down(which));
        lane.flush(which, &mut over);
        assert_eq!((over.wrs.len(), lane.is_down()), (1, false));
        assert_ne!(new.state(), QpState::Err);
        let next = lane.incarnation();
        assert_ne!(next, which);
        // One that is up is not flushed either.
        lane.flush(next, &mut over);
        assert!(over.wrs.len() == 1 && lane.take_down(next));
        lane.flush(next, &mut over);
        assert_eq!((over.wrs.len(), new.state()), (2, QpState::Err));
    }

    #[test]
    fn ids_name_lane_and_sequence() {
        for (lane, sequence) in [(0, 0), (3, 77), (15, (1 << 56) - 1)] {
            assert_eq!(lane_of(wr_id(lane, sequence)), (lane, sequence));
        }
    }
}
