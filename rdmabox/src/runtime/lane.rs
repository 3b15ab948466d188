//! A lane: one queue pair, its posted requests, and its up/down state.
//!
//! A failed queue pair is replaced while the other lanes carry on. Sequence numbers continue
//! across the replacement, and the queue is emptied first. A late completion of the old queue
//! pair therefore matches no entry.
//!
//! # Concurrency
//! Called from any thread. `queue` is locked before `qp`. `unsettled_writes` is a leaf.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::wait::Ticket;
use crate::{
    batch::InFlightHandle,
    memory::{Loan, PreMrBuf},
    stats::LaneStats,
    sync::{
        Mutex, ReaderLock, TryMutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    verbs::{DirectOp, MrHandle, QpState, QueuePair, RemoteAddr, SendOp, WcStatus},
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
    /// True if it repeats a part of a refused work request (`path::submit::repeats`).
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

/// Generation of a lane's queue pair. A failure report names the generation, so that a late
/// report cannot tear down the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpGeneration(u64);

impl QpGeneration {
    const FIRST: QpGeneration = QpGeneration(0);

    fn next(self) -> QpGeneration {
        QpGeneration(self.0 + 1)
    }

    /// Returns the lane state for this generation, up or down.
    fn state(self, down: bool) -> u64 {
        (self.0 << 1) | u64::from(down)
    }
}

/// A connected queue pair and its generation.
#[derive(Debug)]
struct ConnectedQp {
    qp: Arc<dyn QueuePair>,
    generation: QpGeneration,
}

#[derive(Debug)]
pub(crate) struct Lane {
    qp: ReaderLock<ConnectedQp>,
    /// Held during a post, so that no completion precedes its request, and during the replacement
    /// of the queue pair.
    pub queue: TryMutex<LaneQueue>,
    /// Index of the completion queue that reports its completions.
    pub cq_index: usize,
    depth: usize,
    /// Send queue entries that are used or reserved. Raised only under the runtime's gate.
    used: AtomicUsize,
    /// Entries that have to be released until no large request is outstanding. A hint.
    large: AtomicUsize,
    /// Generation and down bit ([`QpGeneration::state`]).
    state: AtomicU64,
    /// Failed writes that may still take effect at the peer, until the queue pair is replaced.
    unsettled_writes: Mutex<Vec<InFlightHandle>>,
}

impl Lane {
    pub(crate) fn new(qp: Arc<dyn QueuePair>, cq_index: usize) -> Lane {
        let depth = qp.caps().max_send_wr as usize;
        Lane {
            qp: ReaderLock::new(ConnectedQp { qp, generation: QpGeneration::FIRST }),
            queue: TryMutex::default(),
            cq_index,
            depth,
            used: AtomicUsize::new(0),
            large: AtomicUsize::new(0),
            state: AtomicU64::new(QpGeneration::FIRST.state(false)),
            unsettled_writes: Mutex::default(),
        }
    }

    /// Returns the current queue pair.
    pub(crate) fn qp(&self) -> Arc<dyn QueuePair> {
        self.qp_and_generation().0
    }

    /// Returns the current queue pair and its generation.
    pub(crate) fn qp_and_generation(&self) -> (Arc<dyn QueuePair>, QpGeneration) {
        let connected = self.qp.read();
        (Arc::clone(&connected.qp), connected.generation)
    }

    /// Returns the state of the current queue pair, and its generation.
    pub(crate) fn state_and_generation(&self) -> (QpState, QpGeneration) {
        let connected = self.qp.read();
        (connected.qp.state(), connected.generation)
    }

    /// Returns the current generation. It does not change while [`queue`](Self::queue) is locked.
    pub(crate) fn generation(&self) -> QpGeneration {
        QpGeneration(self.state.load(Ordering::SeqCst) >> 1)
    }

    /// Executes a request on mapped memory. Returns `None`, without any effect, if that is
    /// impossible now. An error carries the generation that failed.
    #[inline]
    pub(crate) fn execute_now(&self, op: &mut DirectOp<'_>) -> Option<Result<(), (WcStatus, QpGeneration)>> {
        let connected = self.qp.read();
        connected.qp.execute_now(op).map(|result| result.map_err(|status| (status, connected.generation)))
    }

    /// Returns the number of requests that may be posted; 0 while the lane is down. The value is
    /// reliable only under the runtime's gate.
    pub(crate) fn room(&self) -> usize {
        if self.is_down() { 0 } else { self.depth.saturating_sub(self.used.load(Ordering::Acquire)) }
    }

    /// Returns the number of outstanding requests, or `None` if no further one can be posted. As
    /// reliable as [`room`](Self::room).
    pub(crate) fn outstanding(&self) -> Option<usize> {
        (self.room() > 0).then(|| self.used.load(Ordering::Relaxed))
    }

    /// Returns true if no request is posted here or about to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.used.load(Ordering::SeqCst) == 0
    }

    /// Returns true if a small request would wait neither behind a large one nor behind `many`.
    pub(crate) fn takes_small(&self, many: usize) -> bool {
        self.is_idle() || !self.has_large() && self.used.load(Ordering::Relaxed) < many
    }

    /// Returns true if small requests are posted here, and no large one before them.
    pub(crate) fn is_busy_with_small(&self) -> bool {
        !self.is_idle() && !self.has_large()
    }

    fn has_large(&self) -> bool {
        self.large.load(Ordering::Relaxed) > 0
    }

    /// Notes that the next `count` entries are for large requests. Called before they are
    /// [reserved](Self::reserve).
    pub(crate) fn note_large(&self, count: usize) {
        self.large.store(self.used.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Reserves send queue entries. Called under the runtime's gate, within [`room`](Self::room).
    pub(crate) fn reserve(&self, count: usize) {
        self.used.fetch_add(count, Ordering::SeqCst);
    }

    /// Releases the entries of requests that were completed or refused. Requests complete in order,
    /// so the lane takes small ones again while others are outstanding behind the large ones.
    pub(crate) fn vacate(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::SeqCst);
        let large = self.large.load(Ordering::Relaxed);
        if large > 0 {
            // A hint: an update that another thread loses is made up for by later releases.
            self.large.store(large.saturating_sub(count), Ordering::Relaxed);
        }
    }

    /// Returns true from the failure of the queue pair to its replacement.
    pub(crate) fn is_down(&self) -> bool {
        self.state.load(Ordering::SeqCst) & 1 == 1
    }

    /// Takes the queue pair of this generation out of use, unless it was replaced. After the
    /// return, that queue pair accesses no memory of its requests. Returns true for the first
    /// caller.
    pub(crate) fn take_down(&self, generation: QpGeneration) -> bool {
        let (up, down) = (generation.state(false), generation.state(true));
        let first = self.state.compare_exchange(up, down, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let (qp, current) = self.qp_and_generation();
        if current == generation {
            qp.to_error();
        }
        first
    }

    /// Moves the requests posted on this generation to `finished`, as flushed, if it is down and
    /// not replaced.
    pub(crate) fn flush(&self, generation: QpGeneration, finished: &mut Finished) {
        let mut queue = self.queue.lock();
        if self.state.load(Ordering::SeqCst) == generation.state(true) {
            queue.flush(finished);
        }
    }

    /// Holds the range of a failed write until the queue pair is replaced. Returns the range if the
    /// lane is up again.
    pub(crate) fn hold_failed_write(&self, write: InFlightHandle) -> Option<InFlightHandle> {
        let mut unsettled_writes = self.unsettled_writes.lock();
        if !self.is_down() {
            return Some(write);
        }
        // `replace` takes the list after it has marked the lane as up.
        unsettled_writes.push(write);
        None
    }

    /// Installs a new queue pair, and moves the requests left on the old one to `finished`. Returns
    /// the ranges of failed writes: no write of the old queue pair can take effect any more.
    pub(crate) fn replace(&self, qp: Arc<dyn QueuePair>, finished: &mut Finished) -> Vec<InFlightHandle> {
        let old = {
            let mut queue = self.queue.lock();
            let mut connected = self.qp.write();
            // The thread that took the lane down may not have called `to_error` yet. The memory of
            // its requests is released here.
            connected.qp.to_error();
            queue.flush(finished);
            let generation = connected.generation.next();
            let old = std::mem::replace(&mut *connected, ConnectedQp { qp, generation });
            self.state.store(generation.state(false), Ordering::SeqCst);
            old
        };
        // Destroying a queue pair can be slow, so it happens without locks.
        drop(old);
        std::mem::take(&mut *self.unsettled_writes.lock())
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
    fn a_late_failure_report_does_not_end_the_replacement() {
        let device = SoftDevice::new().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4).unwrap();
        let queue_pair = || {
            let (send_cq, recv_cq, caps) = (Arc::clone(&cq), Arc::clone(&cq), QpCaps::default());
            pd.create_qp(QpInit { send_cq, recv_cq, caps, progress: Progress::Caller, maps: true }).unwrap()
        };
        let (old, new) = (queue_pair(), queue_pair());
        let lane = Lane::new(Arc::clone(&old), 0);
        let generation = lane.generation();
        assert!(lane.take_down(generation) && lane.is_down());
        assert!(!lane.take_down(generation));
        lane.queue.lock().push(entry(), std::iter::empty());
        let mut finished = Finished::default();
        lane.replace(Arc::clone(&new), &mut finished);
        assert_eq!((old.state(), finished.wrs.len(), lane.is_down()), (QpState::Err, 1, false));
        lane.queue.lock().push(entry(), std::iter::empty());
        assert!(!lane.take_down(generation));
        lane.flush(generation, &mut finished);
        assert_eq!((finished.wrs.len(), lane.is_down()), (1, false));
        assert_ne!(new.state(), QpState::Err);
        let next = lane.generation();
        assert_ne!(next, generation);
        // A queue pair that is up is not flushed either.
        lane.flush(next, &mut finished);
        assert!(finished.wrs.len() == 1 && lane.take_down(next));
        lane.flush(next, &mut finished);
        assert_eq!((finished.wrs.len(), new.state()), (2, QpState::Err));
    }

    #[test]
    fn ids_name_lane_and_sequence() {
        for (lane, sequence) in [(0, 0), (3, 77), (15, (1 << 56) - 1)] {
            assert_eq!(lane_of(wr_id(lane, sequence)), (lane, sequence));
        }
    }
}
