//! A lane: one queue pair, its posted requests, and its up/down state.
//!
//! A failed queue pair is replaced while the other lanes carry on. Sequence numbers continue
//! across the replacement, and the queue is emptied first. A late completion of the old queue
//! pair therefore matches no entry.
//!
//! # Concurrency
//! Called from any thread. `queue` is locked before `qp`. `unsettled_writes` is a leaf.

mod queue;

use std::sync::Arc;

pub(crate) use queue::{Finished, Kind, LaneQueue, Member, PostedWr, lane_of, wr_id};

use crate::{
    batch::InFlightHandle,
    sync::{
        Mutex, ReaderLock, TryMutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    verbs::{DirectOp, QpState, QueuePair, WcStatus},
};

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
    /// Send queue entries that are used or reserved. Raised only under the admission lock.
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
    /// reliable only under the runtime's admission lock.
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
    /// [reserved](Self::reserve). Changes nothing if none of them got room.
    pub(crate) fn note_large(&self, count: usize) {
        if count == 0 {
            return;
        }
        self.large.store(self.used.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Reserves send queue entries. Called under the admission lock, within [`room`](Self::room).
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
    use super::{queue::tests::entry, *};
    use crate::{
        provider::soft::SoftDevice,
        verbs::{Device, Progress, QpCaps, QpInit},
    };

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
}
