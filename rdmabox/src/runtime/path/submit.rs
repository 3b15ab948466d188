//! The combiner: plans, admits and posts the queued requests (RDMAbox, section IV-A).
//!
//! A thread appends its requests to the merge queue of their direction, and one of the threads
//! combines. The combiner plans all queued requests, admits as many as the window allows, and
//! posts them as one chain. Requests that have to wait stay in the queue and can still be merged.
//! They wait for the window, or for an overlapping write in flight. No request waits for the sake
//! of batching.
//!
//! # Concurrency
//! Called from any thread. Lock order: a direction's combiner, then the gate or a lane's queue.
//! The locks of the merge queue, the writes in flight and the tickets are leaves.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    batch::{Item, Plan},
    error::RequestError,
    memory::Loan,
    runtime::{
        lane::Lane,
        queue::{Batch, Combiner, CombinerGuard, GroupOp, Pending, READ, Request, WRITE},
        state::Runtime,
        wait::Ticket,
    },
    sync::atomic::Ordering,
    verbs::{RemoteAddr, SendOp},
};

/// Length in bytes up to which a request is small: it delays other requests little.
const SMALL: u64 = 16 << 10;

impl Runtime {
    /// Runs `count` requests of one direction and waits for all of them.
    pub(crate) fn run(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        if count == 0 {
            return Ok(());
        }
        let ticket = Ticket::of_this_thread_within(count, timeout);
        self.start(write, count, requests, &ticket);
        self.wait(&ticket)
    }

    /// Submits `count` requests of one direction for a ticket.
    pub(crate) fn start(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
        ticket: &Arc<Ticket>,
    ) {
        let direction = self.queue(write, count, requests, ticket);
        self.flush(direction);
    }

    /// Queues requests and returns their direction. The caller has to flush that direction.
    pub(crate) fn queue(
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
    pub(crate) fn run_group(
        &self,
        ops: SmallVec<[GroupOp; 4]>,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        if ops.is_empty() {
            return Ok(());
        }
        let ticket = Ticket::of_this_thread_within(ops.len(), timeout);
        let direction = self.queue_group(ops, &ticket);
        self.flush(direction);
        self.wait(&ticket)
    }

    /// Queues an ordered list, which must not be empty, and returns its direction. The caller has
    /// to flush that direction.
    pub(crate) fn queue_group(&self, ops: SmallVec<[GroupOp; 4]>, ticket: &Arc<Ticket>) -> usize {
        for op in &ops {
            match op.op {
                SendOp::Read { .. } => self.stats.read_requests.inc(),
                SendOp::Write { .. } | SendOp::Send { .. } => self.stats.write_requests.inc(),
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => self.stats.atomic_requests.inc(),
            }
        }
        let pending = Pending { request: Request::Group(ops), ticket: Arc::clone(ticket) };
        self.directions[WRITE].push(std::iter::once(pending));
        WRITE
    }

    /// Makes sure that the queue is combined after this call began, by this thread or by the
    /// current combiner.
    pub(crate) fn flush(&self, direction: usize) {
        self.directions[direction].flush(|guard| {
            guard.collect(|combiner| &mut combiner.backlog);
            if self.is_dead() {
                let failed = std::mem::take(&mut guard.state().backlog);
                guard.unlocked(|| self.fail_pending(failed, &RequestError::Disconnected));
            } else {
                self.combine(direction, guard);
            }
        });
    }

    /// Removes the unposted requests of a ticket from the queues. They time out, without any
    /// effect.
    pub(crate) fn withdraw(&self, ticket: &Arc<Ticket>) {
        for direction in [READ, WRITE] {
            let withdrawn = self.directions[direction].with(|guard| {
                guard.collect(|combiner| &mut combiner.backlog);
                let backlog = &mut guard.state().backlog;
                let (own, others) = std::mem::take(backlog)
                    .into_iter()
                    .partition(|pending| Arc::ptr_eq(&pending.ticket, ticket));
                *backlog = others;
                own
            });
            self.fail_pending(withdrawn, &RequestError::Timeout(ticket.timeout()));
            self.flush(direction);
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

    /// Plans and posts the requests that can be posted now.
    fn combine(&self, direction: usize, guard: &mut CombinerGuard<'_, Pending, Combiner>) {
        loop {
            if guard.state().backlog.is_empty() {
                guard.set_stalled(false);
                return;
            }
            // Set before the combiner checks the requests in flight. A completion after that check
            // finds the flag set.
            guard.set_stalled(true);
            let combiner = guard.state();
            let batch = match &combiner.backlog[0].request {
                Request::Group(_) => self.take_group(combiner),
                Request::Single { .. } => self.take_singles(direction == WRITE, combiner),
            };
            let Some(batch) = batch else {
                // Started requests without a waiting thread may hold the room. Pollers have to
                // complete them.
                let awaited = |pending: &Pending| pending.ticket.has_thread() || pending.ticket.is_detached();
                if guard.state().backlog.iter().any(awaited) {
                    guard.unlocked(|| self.wake_pollers_for_started());
                }
                return;
            };
            if self.executes_at_post {
                guard.unlocked(|| self.post(batch));
            } else {
                self.post(batch);
            }
            guard.collect(|combiner| &mut combiner.backlog);
        }
    }

    /// Takes an ordered list off the backlog, if it can be posted now.
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

    /// Reserves room on a lane and in the admission window for the first work requests of a plan.
    /// Returns their number.
    #[inline]
    fn admit(&self, lane: usize, plan: &Plan, small: bool) -> usize {
        let lane = &self.lanes[lane];
        let mut admitted = 0;
        let _gate = self.gate.lock();
        for wr in plan.wrs.iter().take(lane.room()) {
            if !self.admission.try_admit(wr.len) {
                self.stats.window_waits.inc();
                break;
            }
            admitted += 1;
        }
        if admitted > 0 {
            lane.note_size(small);
        }
        lane.reserve(admitted);
        admitted
    }

    /// Takes singles off the head of the backlog, as far as window, lanes and writes in flight
    /// allow.
    fn take_singles(&self, write: bool, combiner: &mut Combiner) -> Option<Box<Batch>> {
        combiner.items.clear();
        let small = combiner.backlog.iter().all(|pending| match &pending.request {
            Request::Single { loan, .. } => loan.len() as u64 <= SMALL,
            Request::Group(_) => true,
        });
        let lane = self.lane_with_room(1, small)?;
        // More requests cannot be posted now. The rest is planned in a later round.
        let most = self.lanes[lane].room().max(1).saturating_mul(self.limits.max_sge.max(1) as usize);
        {
            let writes = self.writes.lock();
            for pending in combiner.backlog.iter().take(most) {
                let Request::Single { remote, loan } = &pending.request else { break };
                let len = loan.len() as u64;
                if write && writes.overlaps(*remote, len) {
                    // Later writes may not overtake this one: they might overlap it.
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
        let admitted = self.admit(lane, &combiner.plan, small);
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
            // The kept requests return to the head of the queue.
            kept.append(backlog);
            std::mem::swap(kept, backlog);
        }
        let batch = Batch::singles(self, lane, write, plan, admitted, picked);
        picked.clear();
        Some(batch)
    }

    /// Chooses a lane with room for `count` requests, round robin. Prefers lanes that no thread is
    /// posting on.
    ///
    /// A thread with one request at a time stays on the last lane, which the peer polls first.
    /// Small requests stay there too, until they would have to wait behind others, so that they
    /// share doorbells and completions.
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
