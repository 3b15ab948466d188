//! The combiner: plans, admits and posts the queued requests (RDMAbox, section IV-A).
//!
//! A thread appends its requests to the merge queue of their direction, and one of the threads
//! combines. The combiner plans all queued requests, and admits as many as the window allows. It
//! posts them as one chain, or a large batch as a chain for each lane (`singles`). Requests that
//! have to wait stay in the queue and can still be merged. They wait for room, which is places of a
//! lane and bytes of the window, or for an overlapping write in flight. Parts of a refused work
//! request go first (`repeats`). Only small started requests may wait for their neighbours
//! (`gathering`). The oldest request is posted first, and directions that wait for room take turns,
//! so none starves. An ordered list gets all of its places at once, so it holds none while it
//! waits. A thread combines for others for a [`Shift`], then another one takes over.
//!
//! # Concurrency
//! Called from any thread. Lock order: a direction's combiner, then the admission lock or a lane's
//! queue. The locks of the merge queue, the writes in flight and the tickets are leaves.

mod repeats;
mod singles;

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    batch::MIN_SHARE,
    error::RequestError,
    memory::Loan,
    runtime::{
        lane::{Kind, Lane},
        queue::{Batch, Combiner, CombinerGuard, CopyBudget, GroupOp, Pending, READ, Request, Shift, WRITE},
        requests::post::tracing::trace_queued,
        state::Runtime,
        wait::Ticket,
    },
    sync::{atomic::Ordering, now},
    verbs::RemoteAddr,
};

/// Length in bytes up to which a request is small: it delays other requests little.
pub(super) const SMALL: u64 = 16 << 10;

/// Outstanding requests with which a lane leaves further small ones to the next lane, if lanes do
/// not work side by side.
const MAX_SMALL: usize = 16;

/// The outcome of a combiner's attempt to post requests.
#[derive(Default)]
struct Attempt {
    /// True if it got as far as asking for room on a lane and in the window.
    asked: bool,
    /// True if the turn to take room has passed to the other direction.
    passed: bool,
    /// True if it has to wait for the window, at least with a part.
    waits_for_window: bool,
    /// True if it has to wait for an overlapping write, at least with a part.
    waits_for_overlap: bool,
    batch: Option<Box<Batch>>,
}

/// The room that a list or a single request got, all of it or nothing.
struct Reserved {
    lane: Option<usize>,
    waits_for_window: bool,
    /// True if the turn to take room has passed to the other direction.
    passed: bool,
}

impl Reserved {
    /// Returns the attempt that got the room, without its batch.
    fn attempt(&self) -> Attempt {
        let Reserved { waits_for_window, passed, .. } = *self;
        Attempt { asked: true, passed, waits_for_window, ..Attempt::default() }
    }
}

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
        self.flush_plug();
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
        let (direction, _) = self.queue(write, count, requests, ticket);
        self.flush(direction);
    }

    /// Queues requests. Returns their direction, and the number of requests in its queue. The
    /// caller has to flush that direction.
    pub(crate) fn queue(
        &self,
        write: bool,
        count: usize,
        requests: impl Iterator<Item = (RemoteAddr, Loan)>,
        ticket: &Arc<Ticket>,
    ) -> (usize, usize) {
        let (direction, counter) =
            if write { (WRITE, &self.stats.write_requests) } else { (READ, &self.stats.read_requests) };
        counter.add(count as u64);
        let tracer = self.active_tracer();
        let pending = requests.map(|(remote, loan)| {
            if let Some(tracer) = tracer {
                let kind = if write { Kind::Write } else { Kind::Read };
                trace_queued(tracer, ticket, kind, &loan);
            }
            Pending { request: Request::Single { remote, loan }, ticket: Arc::clone(ticket) }
        });
        (direction, self.directions[direction].push(pending))
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
        self.flush_plug();
        self.wait(&ticket)
    }

    /// Queues an ordered list, which must not be empty, and returns its direction. The caller has
    /// to flush that direction.
    pub(crate) fn queue_group(&self, ops: SmallVec<[GroupOp; 4]>, ticket: &Arc<Ticket>) -> usize {
        for op in &ops {
            let kind = Kind::of(&op.op);
            match kind {
                Kind::Read => self.stats.read_requests.inc(),
                Kind::Write => self.stats.write_requests.inc(),
                Kind::Atomic => self.stats.atomic_requests.inc(),
            }
            if let Some(tracer) = self.active_tracer() {
                trace_queued(tracer, ticket, kind, &op.loan);
            }
        }
        let pending = Pending { request: Request::Group(ops), ticket: Arc::clone(ticket) };
        self.directions[WRITE].push(std::iter::once(pending));
        WRITE
    }

    /// Makes sure that the queue is combined after this call began, by this thread or by the
    /// current combiner. If the turn to take room passes, the other direction is combined as well.
    pub(crate) fn flush(&self, direction: usize) {
        self.flush_within(direction, &CopyBudget::unlimited());
    }

    /// Combines as [`flush`](Self::flush) does. If the budget is used up, it leaves the rest to the
    /// thread that polls. If no thread polls, it goes on without a budget.
    pub(crate) fn flush_within(&self, direction: usize, copies: &CopyBudget) {
        let (mut next, mut shift, mut passed) = (direction, Shift::default(), false);
        loop {
            // Requests that were left in the queue leave now.
            self.gathering.take(next);
            let has_rest = self.directions[next].flush_or_break(|guard| {
                guard.collect(|combiner| &mut combiner.backlog);
                // READs are copied when they complete.
                guard.state().copies_left = if next == WRITE { copies.left() } else { u64::MAX };
                if self.is_dead() {
                    let failed = guard.state().take(&self.writes, |_| true);
                    guard.unlocked(|| self.fail_pending(failed, &RequestError::Disconnected));
                    passed |= self.leave_window(next, guard.state());
                } else if !self.ends_shift(next, &mut shift) {
                    passed |= self.combine(next, guard, &mut shift);
                }
                if next == WRITE {
                    copies.set(guard.state().copies_left);
                }
                if guard.state().has_rest() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if has_rest && !self.gathering.leave(next, || self.is_polled()) {
                copies.set(u64::MAX);
                continue;
            }
            if !std::mem::take(&mut passed) {
                return;
            }
            next = 1 - next;
        }
    }

    /// Removes the unposted requests of a ticket from the queues. They time out, without any
    /// effect.
    pub(crate) fn withdraw(&self, ticket: &Arc<Ticket>) {
        for direction in [READ, WRITE] {
            let withdrawn = self.directions[direction].with(|guard| {
                guard.collect(|combiner| &mut combiner.backlog);
                guard.state().take(&self.writes, |other| Arc::ptr_eq(other, ticket))
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

    /// Plans and posts the requests that can be posted now. Returns true if the turn to take room
    /// has passed to the other direction, which has to be combined then.
    fn combine(
        &self,
        direction: usize,
        guard: &mut CombinerGuard<'_, Pending, Combiner>,
        shift: &mut Shift,
    ) -> bool {
        let mut passed = false;
        loop {
            if guard.state().is_empty() {
                guard.end_stall();
                return passed | self.leave_window(direction, guard.state());
            }
            let mut attempt = self.attempt(direction, guard.state());
            if attempt.batch.is_none() && guard.begin_stall() {
                // The combiner checks the requests in flight once more. A completion after that
                // check finds the stall.
                passed |= attempt.passed;
                attempt = self.attempt(direction, guard.state());
            }
            passed |= attempt.passed;
            self.count_waits(&attempt);
            let Some(batch) = attempt.batch else {
                // Started requests without a waiting thread may hold the room. Pollers have to
                // complete them.
                let awaited = |ticket: &Arc<Ticket>| ticket.has_thread() || ticket.is_detached();
                if guard.state().tickets().any(awaited) {
                    guard.unlocked(|| self.wake_pollers_for_started());
                }
                return passed;
            };
            if self.executes_at_post {
                guard.unlocked(|| self.post(batch));
            } else {
                self.post(batch);
            }
            guard.collect(|combiner| &mut combiner.backlog);
            if guard.state().has_rest() {
                return passed;
            }
            if shift.count_post(now) && !guard.state().is_empty() {
                // A thread that waits for its own requests gains nothing.
                if guard.state().tickets().any(|ticket| ticket.is_owned_by_current_thread()) {
                    *shift = Shift::default();
                } else if self.ends_shift(direction, shift) {
                    return passed;
                }
            }
        }
    }

    /// Hands the queue of a direction over if the shift is over. Returns false if this thread has
    /// to go on.
    fn ends_shift(&self, direction: usize, shift: &mut Shift) -> bool {
        if !shift.is_over() {
            return false;
        }
        let handed_over = self.hand_over(direction);
        if !handed_over {
            *shift = Shift::default();
        }
        handed_over
    }

    /// Takes requests off the head of the backlog, if some can be posted now.
    fn attempt(&self, direction: usize, combiner: &mut Combiner) -> Attempt {
        if combiner.waits && !self.admission_lock.lock().may_take(direction) {
            return Attempt { waits_for_window: true, ..Attempt::default() };
        }
        let attempt = self.take_repeat(direction, combiner).unwrap_or_else(|| {
            match combiner.backlog.first().map(|pending| &pending.request) {
                Some(Request::Group(_)) => self.take_groups(direction, combiner),
                Some(Request::Single { .. }) => self.take_singles(direction, combiner),
                // A repetition waits for the one that is under way.
                None => Attempt::default(),
            }
        });
        // A direction that waits for something else must not keep the room for itself.
        let passed = if attempt.asked { attempt.passed } else { self.leave_window(direction, combiner) };
        Attempt { passed, ..attempt }
    }

    fn count_waits(&self, attempt: &Attempt) {
        if attempt.waits_for_window {
            self.stats.window_waits.inc();
        }
        if attempt.waits_for_overlap {
            self.stats.overlap_waits.inc();
        }
    }

    /// Notes that a direction does not wait for room any more. Returns true if the turn has
    /// passed to the other direction.
    fn leave_window(&self, direction: usize, combiner: &mut Combiner) -> bool {
        std::mem::take(&mut combiner.waits) && self.admission_lock.lock().end_attempt(direction, false, false)
    }

    /// Takes ordered lists off the head of the backlog, if the first one can be posted now. The
    /// next ones follow it on its lane, in the same chain, if the batch mode chains. As with
    /// singles, the requests of a chain end together.
    fn take_groups(&self, direction: usize, combiner: &mut Combiner) -> Attempt {
        let mut attempt = Attempt::default();
        while let Some((count, bytes)) = self.next_group(&attempt, combiner) {
            if self.has_write_under_way(combiner) {
                attempt.waits_for_overlap |= attempt.batch.is_none();
                break;
            }
            // All places of the list at once. Two lists never hold a part each.
            let reserved = match &attempt.batch {
                None => self.reserve(direction, combiner, (count, bytes), || {
                    self.lane_with_room(count, bytes <= SMALL)
                }),
                // Another direction may have taken the places since the look at them.
                Some(batch) => self.reserve(direction, combiner, (count, bytes), || {
                    (count <= self.lanes[batch.lane].room()).then_some(batch.lane)
                }),
            };
            attempt.asked = true;
            attempt.passed |= reserved.passed;
            attempt.waits_for_window |= reserved.waits_for_window;
            let Some(lane) = reserved.lane else { break };
            let Pending { request, ticket } = combiner.backlog.remove(0);
            let Request::Group(ops) = request else { break };
            let lens = ops.iter().map(|op| op.loan.len() as u64);
            let copied: u64 = lens.filter(|len| *len <= self.limits.stage_threshold).sum();
            combiner.copies_left = combiner.copies_left.saturating_sub(copied);
            let batch = attempt.batch.get_or_insert_with(|| Batch::of_groups(self, lane));
            batch.add_group(self, ops, &ticket, bytes);
            if combiner.copies_left == 0 {
                break;
            }
        }
        attempt
    }

    /// Returns the number of steps, and the bytes, of the ordered list at the head of the backlog.
    /// Returns `None` if the list may not join the lists of the attempt.
    fn next_group(&self, attempt: &Attempt, combiner: &Combiner) -> Option<(usize, u64)> {
        let Request::Group(ops) = &combiner.backlog.first()?.request else { return None };
        let (count, bytes) = (ops.len(), ops.iter().map(|op| op.loan.len() as u64).sum::<u64>());
        let joins = attempt.batch.as_ref().is_none_or(|batch| {
            let chained: u64 = batch.ready.iter().map(|wr| wr.posted.len).sum();
            // A share of the lists for each lane, as with singles.
            let is_share = self.lanes.len() > 1
                && (self.spreads && batch.ready.len() >= MIN_SHARE
                    || chained.saturating_add(bytes) > self.limits.max_merge);
            let fits = batch.ready.len() + count <= self.limits.max_chain as usize
                && count <= self.lanes[batch.lane].room();
            self.limits.mode.chains() && !is_share && fits
        });
        joins.then_some((count, bytes))
    }

    /// Returns true if the ordered list at the head of the backlog changes bytes that a request in
    /// flight changes as well.
    fn has_write_under_way(&self, combiner: &Combiner) -> bool {
        let Some(Pending { request: Request::Group(ops), .. }) = combiner.backlog.first() else {
            return false;
        };
        let writes = self.writes.lock();
        ops.iter().filter_map(GroupOp::changes).any(|(remote, len)| writes.overlaps(remote, len))
    }

    /// Reserves `count` places of the lane that `choose` chooses, and `bytes` of the window.
    fn reserve(
        &self,
        direction: usize,
        combiner: &mut Combiner,
        (count, bytes): (usize, u64),
        choose: impl FnOnce() -> Option<usize>,
    ) -> Reserved {
        let mut turns = self.admission_lock.lock();
        let chosen = choose();
        let lane = chosen.filter(|_| turns.may_take(direction) && self.admission.try_admit(bytes));
        if let Some(lane) = lane {
            if bytes > SMALL {
                self.lanes[lane].note_large(count);
            }
            self.lanes[lane].reserve(count);
        }
        combiner.waits = lane.is_none();
        let passed = turns.end_attempt(direction, lane.is_some(), lane.is_none());
        Reserved { lane, waits_for_window: chosen.is_some() && lane.is_none(), passed }
    }

    /// Chooses a lane with room for `count` requests, round robin. Prefers lanes that no thread is
    /// posting on.
    ///
    /// A thread with one request at a time stays on the last lane, which the peer polls first.
    /// Small requests stay there too, until they would have to wait behind others, so that they
    /// share doorbells and completions.
    fn lane_with_room(&self, count: usize, small: bool) -> Option<usize> {
        let many = if self.spreads { MIN_SHARE } else { MAX_SMALL };
        let stays = |lane: &Lane| if small { lane.takes_small(many) } else { lane.is_idle() };
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
