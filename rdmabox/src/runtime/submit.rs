//! What a combiner does: plan, admit, hand to the post (RDMAbox, section IV-A).
//!
//! A thread appends its requests to the merge queue of their direction, and one of the threads combines. It plans
//! everything that has gathered, lets through what the admission window takes, and posts it as one chain. What has to
//! wait, for the window or for a write in flight that it would overtake, stays in the queue and can still be merged.
//! Nothing waits in order to be batched.
//!
//! Locks: a direction's combiner, then the gate, or a lane's queue. The merge queue itself, the set of writes in flight and the
//! tickets are leaves.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Runtime, Ticket,
    lane::Lane,
    merge_queue::{MergeQueue, Turn},
    post::Batch,
};
use crate::{
    batch::{Item, Plan},
    memory::Loan,
    session::RequestError,
    sync::atomic::Ordering,
    verbs::{RemoteAddr, SendOp},
};

/// Up to so many bytes a request is small: others do not wait long for it.
const SMALL: u64 = 16 << 10;

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
    plan: Plan,
    taken: Vec<bool>,
    picked: Vec<Option<Pending>>,
    kept: Vec<Pending>,
}

/// The merge queue of one direction.
pub(super) type Direction = MergeQueue<Pending, Combiner>;

pub(super) const READ: usize = 0;
/// Ordered lists go this way, too.
pub(super) const WRITE: usize = 1;

impl Runtime {
    /// Runs requests of one direction and waits for all of them. `count` is how many there are.
    pub(crate) fn run(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
    ) -> Result<(), RequestError> {
        if count == 0 {
            return Ok(());
        }
        let ticket = Ticket::of_this_thread(count);
        self.start(write, count, requests, &ticket);
        self.wait(&ticket)
    }

    /// Submits requests of one direction for a ticket of `count` requests.
    pub(crate) fn start(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
        ticket: &Arc<Ticket>,
    ) {
        let direction = self.queue(write, count, requests, ticket);
        self.kick(direction);
    }

    /// Puts requests into the queue of their direction, which is to be kicked.
    pub(super) fn queue(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
        ticket: &Arc<Ticket>,
    ) -> usize {
        let (direction, counter) =
            if write { (WRITE, &self.stats.write_requests) } else { (READ, &self.stats.read_requests) };
        counter.add(count as u64);
        let pending = requests.map(|(remote, loan)| Pending {
            request: Request::Single { remote, loan },
            ticket: Arc::clone(ticket),
        });
        self.directions[direction].push(pending);
        direction
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
        let ticket = Ticket::of_this_thread(ops.len());
        let pending = Pending { request: Request::Group(ops), ticket: Arc::clone(&ticket) };
        self.directions[WRITE].push(std::iter::once(pending));
        self.kick(WRITE);
        self.wait(&ticket)
    }

    /// Sees to it that somebody looks at the queue after this call began.
    pub(super) fn kick(&self, direction: usize) {
        self.directions[direction].kick(|turn| {
            turn.collect(|combiner| &mut combiner.backlog);
            if self.is_dead() {
                let failed = std::mem::take(&mut turn.state().backlog);
                turn.unlocked(|| self.fail_pending(failed, &RequestError::Disconnected));
            } else {
                self.combine(direction, turn);
            }
        });
    }

    /// Takes what of a ticket is not being posted out of the queues, as timed out: it has had no effect.
    pub(super) fn withdraw(&self, ticket: &Arc<Ticket>) {
        for direction in [READ, WRITE] {
            let withdrawn = self.directions[direction].with(|turn| {
                turn.collect(|combiner| &mut combiner.backlog);
                let backlog = &mut turn.state().backlog;
                let (own, others) = std::mem::take(backlog)
                    .into_iter()
                    .partition(|pending| Arc::ptr_eq(&pending.ticket, ticket));
                *backlog = others;
                own
            });
            self.fail_pending(withdrawn, &RequestError::Timeout(self.timeout));
            self.kick(direction);
        }
    }

    fn fail_pending(&self, failed: Vec<Pending>, error: &RequestError) {
        for pending in failed {
            let parts = pending.parts();
            let Pending { request, ticket } = pending;
            drop(request);
            for _ in 0..parts {
                self.stats.errors.inc();
                self.complete_part(&ticket, None, Err(error.clone()));
            }
        }
    }

    /// Plans and posts what can go now.
    fn combine(&self, direction: usize, turn: &mut Turn<'_, Pending, Combiner>) {
        loop {
            if turn.state().backlog.is_empty() {
                turn.set_stalled(false);
                return;
            }
            // Set before looking at what is in flight: a completion after the look finds it set.
            turn.set_stalled(true);
            let combiner = turn.state();
            let batch = match &combiner.backlog[0].request {
                Request::Group(_) => self.take_group(combiner),
                Request::Single { .. } => self.take_singles(direction == WRITE, combiner),
            };
            let Some(batch) = batch else {
                // What holds the room may have been posted just now, for requests that nobody waits for.
                let awaited = |pending: &Pending| pending.ticket.has_thread() || pending.ticket.is_detached();
                if turn.state().backlog.iter().any(awaited) {
                    turn.unlocked(|| self.drive_what_was_started());
                }
                return;
            };
            if self.executes_at_post {
                turn.unlocked(|| self.post(batch));
            } else {
                self.post(batch);
            }
            turn.collect(|combiner| &mut combiner.backlog);
        }
    }

    /// An ordered list, if it can go now.
    fn take_group(&self, combiner: &mut Combiner) -> Option<Box<Batch>> {
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
            let lane = self.lane_with_room(count, bytes <= SMALL)?;
            if !self.admission.try_admit(bytes) {
                self.stats.window_waits.inc();
                return None;
            }
            self.lanes[lane].note_size(bytes <= SMALL);
            self.lanes[lane].reserve(count);
            lane
        };
        let Pending { request, ticket } = combiner.backlog.remove(0);
        let Request::Group(ops) = request else { return None };
        Some(Batch::group(self, lane, ops, &ticket, bytes))
    }

    /// The singles at the head of the backlog, as far as window, lanes and writes in flight allow.
    fn take_singles(&self, write: bool, combiner: &mut Combiner) -> Option<Box<Batch>> {
        combiner.items.clear();
        let small = combiner.backlog.iter().all(|pending| match &pending.request {
            Request::Single { loan, .. } => loan.len() as u64 <= SMALL,
            Request::Group(_) => true,
        });
        let lane = self.lane_with_room(1, small)?;
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
                combiner.items.push(Item {
                    remote: *remote,
                    len,
                    sges: 1,
                    stageable: self.is_stageable(loan),
                });
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
            if admitted > 0 {
                self.lanes[lane].note_size(small);
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

    /// A lane with room for `count` requests, by turns; one that nobody is posting on, if there is. Who asks one thing at a time stays on the lane
    /// of the last one, where the peer looks first, and so do small requests, as long as they need not wait there for others: they leave together, and come
    /// back together.
    fn lane_with_room(&self, count: usize, small: bool) -> Option<usize> {
        let stays = |lane: &Lane| if small { lane.takes_small() } else { lane.is_idle() };
        let has_room = |lane: &Lane| count <= lane.room();
        let is_free = |lane: &Lane| has_room(lane) && !lane.queue.is_locked();
        let last = self.last_lane.load(Ordering::Relaxed);
        let from = |first: usize| (0..self.lanes.len()).map(move |i| (first + i) % self.lanes.len());
        let find = |first: usize, fits: &dyn Fn(&Lane) -> bool| from(first).find(|at| fits(&self.lanes[*at]));
        let kept = self.lanes.get(last).is_some_and(|lane| is_free(lane) && stays(lane)).then_some(last);
        let chosen = kept.or_else(|| find(last + 1, &is_free)).or_else(|| find(last + 1, &has_room))?;
        self.last_lane.store(chosen, Ordering::Relaxed);
        Some(chosen)
    }
}

#[cfg(test)]
mod tests;
