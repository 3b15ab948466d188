//! The merge queues and the combiner (RDMAbox, section IV-A).
//!
//! A thread appends its requests to the queue of their direction and then tries to become the combiner. If another
//! thread is, that one will take the requests along: the later thread goes to wait for its completion. The
//! combiner plans everything that has gathered, lets through what the admission window takes, and posts it as one
//! chain. What has to wait, for the window or for a write in flight that it would overtake, stays in the queue and
//! can still be merged. Nothing waits in order to be batched.
//!
//! Locks: a direction's combiner, then the gate, or a lane's queue. The merge queue itself, the set of writes in flight and the
//! tickets are leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Attendance, Ticket, lane::Lane, post::Batch, ticket::MAX_LANES};
use crate::{
    admission::Admission,
    batch::{BatchMode, InFlight, Item, Plan, PlanLimits},
    memory::{Loan, PreMrPool},
    polling::PollingMode,
    session::RequestError,
    stats::Stats,
    verbs::{CompletionQueue, MrHandle, ProtectionDomain, QpState, QueuePair, RemoteAddr, SendOp},
};

/// A request of a caller: one READ or WRITE, or the steps of an ordered list.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Moved a few times; a box would be an allocation per list.
pub(crate) enum Request {
    Single { remote: RemoteAddr, loan: Loan },
    Group(SmallVec<[GroupOp; 4]>),
}

/// A step of an ordered list.
#[derive(Debug)]
pub(crate) struct GroupOp {
    pub op: SendOp,
    pub loan: Loan,
}

impl GroupOp {
    /// The remote range that it changes.
    pub(crate) fn changes(&self) -> Option<(RemoteAddr, u64)> {
        match self.op {
            SendOp::Write { remote, .. } => Some((remote, self.loan.len() as u64)),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some((remote, 8)),
            SendOp::Read { .. } | SendOp::Send { .. } => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pending {
    pub request: Request,
    pub ticket: Arc<Ticket>,
}

impl Pending {
    fn parts(&self) -> usize {
        match &self.request {
            Request::Single { .. } => 1,
            Request::Group(ops) => ops.len(),
        }
    }
}

/// What a combiner works with; reused.
#[derive(Debug, Default)]
pub(crate) struct Combiner {
    /// Taken from the queue, in order of arrival, not posted yet.
    backlog: Vec<Pending>,
    items: Vec<Item>,
    pub(crate) plan: Plan,
    taken: Vec<bool>,
    picked: Vec<Option<Pending>>,
    kept: Vec<Pending>,
}

#[derive(Debug, Default)]
pub(super) struct Direction {
    queue: Mutex<Vec<Pending>>,
    combiner: Mutex<Combiner>,
    /// Counts reasons to look at the queue; a combiner that sees it change looks again.
    events: AtomicU64,
    /// Something waits for the window, for room on a lane, or for a write in flight.
    pub(super) stalled: AtomicBool,
}

/// What a runtime is made of.
pub(crate) struct RuntimeInit {
    pub pd: Arc<dyn ProtectionDomain>,
    pub lanes: Vec<(Arc<dyn QueuePair>, Arc<dyn CompletionQueue>)>,
    pub pool: Arc<PreMrPool>,
    pub pool_mr: MrHandle,
    pub admission: Admission,
    pub stats: Arc<Stats>,
    pub batch: BatchMode,
    pub stage_threshold: u64,
    pub max_msg_sz: u64,
    pub polling: PollingMode,
    pub max_retry: u32,
    pub timeout: Duration,
}

#[derive(Debug)]
pub(crate) struct Runtime {
    pub(super) pd: Arc<dyn ProtectionDomain>,
    pub(super) lanes: Vec<Lane>,
    pub(super) pool: Arc<PreMrPool>,
    pub(super) pool_mr: MrHandle,
    pub(super) admission: Admission,
    pub(super) stats: Arc<Stats>,
    pub(super) limits: PlanLimits,
    pub(super) max_inline: u32,
    pub(super) writes: Mutex<InFlight>,
    pub(super) directions: [Direction; 2],
    /// Held while room on a lane and the window are looked at and taken: the two directions do not see each other's
    /// attempts, and whoever finds no room can rely on a completion to come.
    gate: Mutex<()>,
    next_lane: AtomicUsize,
    pub(super) dead: AtomicBool,
    pub(super) timeout: Duration,
    /// Posting executes: done outside of the combiner, so that copies of several threads run side by side.
    pub(super) executes_at_post: bool,
}

pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;

impl Runtime {
    pub(crate) fn new(init: RuntimeInit) -> Runtime {
        let caps = init.lanes.first().map(|(qp, _)| qp.caps()).unwrap_or_default();
        let executes_at_post = init.lanes.iter().all(|(qp, _)| qp.executes_at_post());
        let lanes = init.lanes.into_iter().take(MAX_LANES).enumerate();
        Runtime {
            pd: init.pd,
            lanes: lanes
                .map(|(index, (qp, cq))| {
                    Lane::new(qp, Attendance::new(index, cq, init.polling, init.max_retry))
                })
                .collect(),
            limits: PlanLimits {
                mode: init.batch,
                max_msg_sz: init.max_msg_sz,
                max_sge: caps.max_send_sge,
                max_chain: caps.max_send_wr / 2,
                // What is longer than any block could never be staged.
                stage_threshold: init.stage_threshold.min(init.pool.max_block() as u64),
            },
            pool: init.pool,
            pool_mr: init.pool_mr,
            admission: init.admission,
            stats: init.stats,
            max_inline: caps.max_inline_data,
            writes: Mutex::new(InFlight::new()),
            directions: Default::default(),
            gate: Mutex::new(()),
            next_lane: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            timeout: init.timeout,
            executes_at_post,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// True while every queue pair is connected.
    pub(crate) fn is_alive(&self) -> bool {
        !self.is_dead() && self.lanes.iter().all(|lane| lane.qp.state() == QpState::Rts)
    }

    /// Longest message, for callers that split.
    pub(crate) fn max_message(&self) -> u64 {
        self.limits.max_msg_sz
    }

    /// Runs requests of one direction and waits for all of them.
    pub(crate) fn run(
        &self,
        write: bool,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
    ) -> Result<(), RequestError> {
        let mut singles: SmallVec<[(RemoteAddr, Loan); 4]> = requests.collect();
        if singles.is_empty() {
            return Ok(());
        }
        let counter = if write { &self.stats.write_requests } else { &self.stats.read_requests };
        counter.add(singles.len() as u64);
        let ticket = Ticket::new(singles.len());
        let pending = singles.drain(..).map(|(remote, loan)| Pending {
            request: Request::Single { remote, loan },
            ticket: Arc::clone(&ticket),
        });
        self.submit(if write { WRITE } else { READ }, pending);
        self.wait(&ticket)
    }

    /// Runs an ordered list on one lane and waits for all of it.
    pub(crate) fn run_group(&self, ops: SmallVec<[GroupOp; 4]>) -> Result<(), RequestError> {
        if ops.is_empty() {
            return Ok(());
        }
        for op in &ops {
            match op.op {
                SendOp::Read { .. } => self.stats.read_requests.inc(),
                SendOp::Write { .. } | SendOp::Send { .. } => self.stats.write_requests.inc(),
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.stats.atomic_requests.inc(),
            }
        }
        let ticket = Ticket::new(ops.len());
        let pending = Pending { request: Request::Group(ops), ticket: Arc::clone(&ticket) };
        self.submit(WRITE, std::iter::once(pending));
        self.wait(&ticket)
    }

    fn submit(&self, direction: usize, pending: impl Iterator<Item = Pending>) {
        self.directions[direction].queue.lock().extend(pending);
        self.kick(direction);
    }

    /// Sees to it that somebody looks at the queue after this call began.
    pub(super) fn kick(&self, direction: usize) {
        let dir = &self.directions[direction];
        dir.events.fetch_add(1, Ordering::AcqRel);
        // Counted before the look at the lock, as a combiner gives up the lock before it looks at the count: one of the
        // two sees the other.
        fence(Ordering::SeqCst);
        loop {
            let Some(mut combiner) = dir.combiner.try_lock() else { return };
            let seen = dir.events.load(Ordering::Acquire);
            combiner.backlog.append(&mut dir.queue.lock());
            if self.is_dead() {
                let failed = std::mem::take(&mut combiner.backlog);
                drop(combiner);
                self.fail_pending(failed);
            } else {
                self.combine(direction, combiner);
            }
            // Whoever came while the lock was held has left its work to this thread.
            fence(Ordering::SeqCst);
            if dir.events.load(Ordering::Acquire) == seen {
                return;
            }
        }
    }

    fn fail_pending(&self, failed: Vec<Pending>) {
        for pending in failed {
            let parts = pending.parts();
            let Pending { request, ticket } = pending;
            drop(request);
            for _ in 0..parts {
                self.stats.errors.inc();
                if ticket.complete_one(None, Err(RequestError::Disconnected)) {
                    ticket.unpark();
                }
            }
        }
    }

    /// Plans and posts what can go now.
    fn combine(&self, direction: usize, mut guard: parking_lot::MutexGuard<'_, Combiner>) {
        let dir = &self.directions[direction];
        loop {
            let combiner = &mut *guard;
            if combiner.backlog.is_empty() {
                dir.stalled.store(false, Ordering::Release);
                return;
            }
            // Set before looking at what is in flight: a completion after the look finds it set.
            dir.stalled.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let batch = match &combiner.backlog[0].request {
                Request::Group(_) => self.take_group(combiner),
                Request::Single { .. } => self.take_singles(direction == WRITE, combiner),
            };
            let Some(batch) = batch else { return };
            if self.executes_at_post {
                parking_lot::MutexGuard::unlocked(&mut guard, || self.post(batch));
            } else {
                self.post(batch);
            }
            let mut queue = dir.queue.lock();
            guard.backlog.append(&mut queue);
        }
    }

    /// An ordered list, if it can go now.
    fn take_group(&self, combiner: &mut Combiner) -> Option<Batch> {
        let Request::Group(ops) = &combiner.backlog[0].request else { return None };
        {
            let writes = self.writes.lock();
            if ops.iter().filter_map(GroupOp::changes).any(|(remote, len)| writes.overlaps(remote, len)) {
                self.stats.overlap_waits.inc();
                return None;
            }
        }
        let bytes: u64 = ops.iter().map(|op| op.loan.len() as u64).sum();
        let count = ops.len();
        let lane = {
            let _gate = self.gate.lock();
            let lane = self.lane_with_room(count)?;
            if !self.admission.try_admit(bytes) {
                self.stats.window_waits.inc();
                return None;
            }
            self.lanes[lane].reserve(count);
            lane
        };
        let Pending { request, ticket } = combiner.backlog.remove(0);
        let Request::Group(ops) = request else { return None };
        Some(Batch::group(self, lane, ops, &ticket, bytes))
    }

    /// The singles at the head of the backlog, as far as window, lanes and writes in flight allow.
    fn take_singles(&self, write: bool, combiner: &mut Combiner) -> Option<Batch> {
        combiner.items.clear();
        let lane = self.lane_with_room(1)?;
        // More cannot be posted now; what is left is planned when it is its turn.
        let most = self.lanes[lane].room().max(1).saturating_mul(self.limits.max_sge.max(1) as usize);
        {
            let writes = self.writes.lock();
            for pending in combiner.backlog.iter().take(most) {
                let Request::Single { remote, loan } = &pending.request else { break };
                let len = loan.len() as u64;
                if write && writes.overlaps(*remote, len) {
                    // Later ones may not overtake it either: they might overlap it.
                    self.stats.overlap_waits.inc();
                    break;
                }
                combiner.items.push(Item { remote: *remote, len, sges: 1, stageable: true });
            }
        }
        if combiner.items.is_empty() {
            return None;
        }
        crate::batch::plan(&combiner.items, &self.limits, &mut combiner.plan);
        let mut admitted = 0;
        {
            let _gate = self.gate.lock();
            for wr in combiner.plan.wrs.iter().take(self.lanes[lane].room()) {
                if !self.admission.try_admit(wr.len) {
                    self.stats.window_waits.inc();
                    break;
                }
                admitted += 1;
            }
            self.lanes[lane].reserve(admitted);
        }
        if admitted == 0 {
            return None;
        }
        let planned = combiner.items.len();
        combiner.taken.clear();
        combiner.taken.resize(planned, false);
        for wr in &combiner.plan.wrs[..admitted] {
            for member in combiner.plan.members_of(wr) {
                combiner.taken[*member as usize] = true;
            }
        }
        let Combiner { backlog, taken, picked, kept, plan, .. } = combiner;
        for (taken, pending) in taken.iter().zip(backlog.drain(..planned)) {
            if *taken {
                picked.push(Some(pending));
            } else {
                picked.push(None);
                kept.push(pending);
            }
        }
        if !kept.is_empty() {
            // Back to the head of the queue.
            kept.append(backlog);
            std::mem::swap(kept, backlog);
        }
        let batch = Batch::singles(self, lane, write, plan, admitted, picked);
        picked.clear();
        Some(batch)
    }

    /// A lane with room for `count` requests, by turns; one that nobody is posting on, if there is.
    fn lane_with_room(&self, count: usize) -> Option<usize> {
        let start = self.next_lane.fetch_add(1, Ordering::Relaxed);
        let order = || (0..self.lanes.len()).map(|i| (start + i) % self.lanes.len());
        let idle = order().find(|lane| {
            let lane = &self.lanes[*lane];
            count <= lane.room() && !lane.queue.is_locked()
        });
        idle.or_else(|| order().find(|lane| count <= self.lanes[*lane].room()))
    }
}

impl Runtime {
    /// The peer's memory in place.
    pub(crate) fn map(
        &self,
        remote: RemoteAddr,
        len: u64,
        needs: crate::verbs::Access,
    ) -> Option<(Arc<crate::memory::Memory>, usize)> {
        if self.is_dead() {
            return None;
        }
        self.lanes.first()?.qp.map_remote(remote, len, needs)
    }
}
