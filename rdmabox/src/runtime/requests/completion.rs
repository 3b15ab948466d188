//! The way from completions to callers: waits, dispatches completions, and ends the data path.
//!
//! A completed work request releases its resources and then completes a part of each member's
//! ticket. The members of a merged one that was refused are repeated alone instead
//! (`requests::submit::repeats`).
//!
//! # Concurrency
//! Runs on callers' threads and on pollers. A lane's queue is locked to take requests out of it.
//! Memory is released and owners are notified without any lock, except for the leader lock of
//! `cq_wait`. Then `dispatch` posts the requests that the merge queues still hold. Under the leader
//! lock it tries the combiners, and takes the locks of a post below them. It blocks for a
//! combiner's lock only to queue the parts of a refused request.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use crate::{
    error::RequestError,
    runtime::{
        lane::{Finished, Kind, Member, PostedWr, QpGeneration, lane_of},
        queue::{CopyBudget, READ, WRITE},
        state::Runtime,
        wait::{CqWaiter, Notice, Ticket, WaitOutcome, as_callback},
    },
    sync::{atomic::Ordering, now, park_timeout},
    verbs::{WcStatus, WorkCompletion},
};

impl Runtime {
    /// Waits for a ticket that the calling thread owns, until its timeout. Then it fails the lanes
    /// that hold requests of the ticket, so that their memory is free. It withdraws the unposted
    /// requests.
    pub(crate) fn wait(&self, ticket: &Arc<Ticket>) -> Result<(), RequestError> {
        match self.wait_until(ticket, ticket.started() + ticket.timeout()) {
            true => ticket.result(),
            false => self.time_out(ticket),
        }
    }

    /// Waits for a ticket that the calling thread owns, until `deadline`. Returns true if the
    /// ticket is done.
    pub(crate) fn wait_until(&self, ticket: &Arc<Ticket>, deadline: Instant) -> bool {
        while !ticket.is_done() {
            let waited = match ticket.unsettled_cq() {
                Some(index) => {
                    let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
                    self.cq_waiters[index].wait(ticket, deadline, &self.stats, &dispatch)
                }
                // Not posted. The thread that posts it either wakes this thread or completes the
                // ticket.
                None => {
                    self.wake_pollers_for_started();
                    match deadline.checked_duration_since(now()) {
                        Some(left) if !left.is_zero() => {
                            park_timeout(left);
                            WaitOutcome::Done
                        }
                        _ => WaitOutcome::TimedOut,
                    }
                }
            };
            match waited {
                WaitOutcome::Done => {}
                WaitOutcome::TimedOut => return ticket.is_done(),
                WaitOutcome::Broken(e) => {
                    // The completions are lost, and with them the proof that memory is free. A
                    // queue pair in Err accesses no memory, so failing the lanes frees it.
                    log::error!("completion queue: {e}");
                    self.fail();
                }
            }
        }
        true
    }

    /// Ends the requests of a ticket, which the calling thread owns, after the timeout.
    pub(crate) fn time_out(&self, ticket: &Arc<Ticket>) -> Result<(), RequestError> {
        loop {
            self.abandon(ticket);
            // Requests that were being posted during `abandon` are failed in the next round.
            if self.wait_until(ticket, now() + Duration::from_millis(10)) {
                break;
            }
        }
        match ticket.result() {
            Err(_) => Err(RequestError::Timeout(ticket.timeout())),
            Ok(()) => Ok(()),
        }
    }

    /// Fails the posted requests of a ticket with their lanes, and withdraws the others.
    pub(crate) fn abandon(&self, ticket: &Arc<Ticket>) {
        for (index, lane) in self.lanes.iter().enumerate() {
            if CqWaiter::is_settled_on(&**ticket, lane.cq_index) {
                continue;
            }
            let queue = lane.queue.lock();
            let generation = queue.holds(ticket).then(|| lane.generation());
            drop(queue);
            if let Some(generation) = generation {
                log::warn!("lane {index}: no completion within {:?}", ticket.timeout());
                self.fail_lane(index, generation);
            }
        }
        self.withdraw(ticket);
    }

    /// Finishes the requests that the completions report, and posts the requests that were left in
    /// the merge queue. Called in every poll, and once more by a thread that stops to poll. A
    /// thread that polls leaves a part of long copies to its next poll, because completions of
    /// other threads' requests wait for that.
    pub(crate) fn dispatch(&self, wcs: &[WorkCompletion]) {
        let copies = CopyBudget::of_a_poll();
        if wcs.is_empty() {
            return self.drain_within(&copies);
        }
        // Requests that callbacks start leave as one list.
        self.together_within(&copies, || self.finish_taken(|finished| self.take_completed(wcs, finished)));
        self.resume_within(&copies);
        self.drain_within(&copies);
    }

    /// Takes the finished requests out of the lanes' queues.
    fn take_completed(&self, wcs: &[WorkCompletion], finished: &mut Finished) {
        let mut broken: SmallVec<[(usize, QpGeneration); 4]> = SmallVec::new();
        for wc in wcs {
            let (index, sequence) = lane_of(wc.wr_id);
            // Only requests of this side complete here. An unknown lane is a provider bug.
            let Some(lane) = self.lanes.get(index) else { continue };
            let before = finished.wrs.len();
            let mut queue = lane.queue.lock();
            queue.complete(sequence, wc.status, finished);
            if wc.status != WcStatus::Success && finished.wrs.len() > before {
                broken.push((index, lane.generation()));
            }
        }
        for (index, generation) in broken {
            // Flushes the requests behind the failed one.
            self.take_down(index, generation, finished);
        }
    }

    /// Retries the requests that wait for room, for the window or for a write in flight.
    pub(crate) fn resume(&self) {
        self.resume_within(&CopyBudget::unlimited());
    }

    /// Retries requests as [`resume`](Self::resume) does, within a budget.
    fn resume_within(&self, copies: &CopyBudget) {
        let stalled = [READ, WRITE].map(|direction| self.directions[direction].is_stalled());
        for direction in [READ, WRITE] {
            if stalled[direction] {
                self.flush_within(direction, copies);
            }
        }
    }

    /// Fails a lane's queue pair: its posted requests fail now, and a thread replaces it. After the
    /// return, that queue pair accesses no memory of its requests. A replacement that exists
    /// already is not affected.
    pub(crate) fn fail_lane(&self, index: usize, generation: QpGeneration) {
        self.finish_taken(|finished| self.take_down(index, generation, finished));
        self.after_flush(index);
    }

    /// Wakes the waiters of requests that ended without a completion, and retries the requests that
    /// wait for their room.
    pub(crate) fn after_flush(&self, index: usize) {
        self.cq_waiters[self.lanes[index].cq_index].wake();
        self.resume();
    }

    /// Fails the posted requests of a lane that is down.
    pub(crate) fn flush_if_down(&self, index: usize) {
        let lane = &self.lanes[index];
        self.finish_taken(|finished| {
            let mut queue = lane.queue.lock();
            if lane.is_down() {
                // The thread that took the lane down may not have called `to_error` yet.
                lane.qp().to_error();
                queue.flush(finished);
            }
        });
        self.after_flush(index);
    }

    /// Takes a lane's queue pair out of use, and moves its posted requests to `finished`, as
    /// flushed.
    pub(crate) fn take_down(&self, index: usize, generation: QpGeneration, finished: &mut Finished) {
        let first = self.lanes[index].take_down(generation);
        self.lanes[index].flush(generation, finished);
        if first && !self.is_dead() {
            self.stats.lane_failures.inc();
            self.start_recovery();
        }
    }

    /// Finishes the work requests that `take` takes out of the lanes.
    pub(crate) fn finish_taken(&self, take: impl FnOnce(&mut Finished)) {
        let mut finished = self.finished_pool.take();
        take(&mut finished);
        self.finish_all(&mut finished);
        self.finished_pool.put(finished);
    }

    /// Releases the resources of finished work requests, and completes their tickets.
    pub(crate) fn finish_all(&self, finished: &mut Finished) {
        let now = now();
        let Finished { wrs, members } = finished;
        if wrs.iter().any(|(_, status)| *status == WcStatus::Success) {
            self.silence.end(now);
        }
        for (mut wr, status) in wrs.drain(..) {
            let traced = self.trace_completion(&wr, members, status);
            let mut own = members.drain(..wr.members);
            wr.registrations.clear();
            self.lanes[wr.lane].vacate(1);
            let repeated = self.repeat_if_refused(&wr, status, &mut own);
            self.release(&mut wr, status, now);
            if !repeated {
                self.finish(wr, status, now, own);
            }
            drop(traced);
        }
    }

    /// Returns the room of a finished work request, and the range that it has in flight.
    fn release(&self, wr: &mut PostedWr, status: WcStatus, now: Instant) {
        let PostedWr { lane, kind, len, admitted, is_repeat, posted_at, .. } = *wr;
        let ok = status == WcStatus::Success;
        if ok {
            match kind {
                Kind::Read => self.stats.bytes_read.add(len),
                Kind::Write => self.stats.bytes_written.add(len),
                Kind::Atomic => {}
            }
        }
        // The time of a repetition counts from its first post.
        if ok && !is_repeat {
            self.admission.complete(admitted, now.saturating_duration_since(posted_at));
        } else {
            self.admission.release(admitted);
        }
        let in_flight = wr.in_flight.take();
        let lane = &self.lanes[lane];
        if let Some(write) =
            if ok { in_flight } else { in_flight.and_then(|write| lane.hold_failed_write(write)) }
        {
            self.writes.lock().remove(write);
        }
        if is_repeat {
            self.end_repeat(kind);
        }
    }

    /// Completes the parts of a work request.
    fn finish(&self, wr: PostedWr, status: WcStatus, now: Instant, members: impl Iterator<Item = Member>) {
        let PostedWr { lane, staging, kind, .. } = wr;
        let lane = &self.lanes[lane];
        let ok = status == WcStatus::Success;
        #[cfg(feature = "model")]
        if ok && kind != Kind::Write && staging.is_some() {
            self.pd.copied(wr.len);
        }
        let mut at = 0;
        for Member { mut loan, ticket } in members {
            let len = loan.len();
            if ok
                && kind != Kind::Write
                && let Some(staging) = &staging
            {
                loan.unstage(staging, at);
            }
            at += len;
            // The loan is dropped first: the owner may return as soon as it is notified.
            drop(loan);
            let latency = now.saturating_duration_since(ticket.started());
            let result = if ok { Ok(()) } else { Err(self.failure(status, latency, ticket.timeout())) };
            // A known last part is counted before the owner is notified, because the owner may then
            // read the counters.
            let counted = ticket.has_one_part_left();
            if counted {
                self.count_latency(kind, latency);
            }
            if self.complete_part(&ticket, Some(lane.cq_index), result) && !counted {
                self.count_latency(kind, latency);
            }
        }
    }

    /// Completes one request of a ticket, posted on completion queue `cq_index` or never posted.
    /// Notifies the owner. Returns true if this was the last request.
    pub(crate) fn complete_part(
        &self,
        ticket: &Ticket,
        cq_index: Option<usize>,
        result: Result<(), RequestError>,
    ) -> bool {
        let (notice, last) = ticket.complete_one(cq_index, result);
        let started = last && ticket.outlives_call();
        if started {
            self.queued.fetch_sub(1, Ordering::SeqCst);
        }
        self.notify_owner(notice);
        if started {
            self.count_notified();
        }
        last
    }

    pub(crate) fn count_latency(&self, kind: Kind, latency: Duration) {
        match kind {
            Kind::Read => self.stats.read_latency.record(latency),
            Kind::Write => self.stats.write_latency.record(latency),
            Kind::Atomic => self.stats.atomic_latency.record(latency),
        }
    }

    /// Returns the error that the caller gets for a failed work request.
    pub(crate) fn failure(&self, status: WcStatus, waited: Duration, timeout: Duration) -> RequestError {
        self.stats.errors.inc();
        match status {
            WcStatus::RetryExcErr | WcStatus::WrFlushErr if self.is_dead() => RequestError::Disconnected,
            // The lane was failed because of this request, or would have been.
            WcStatus::WrFlushErr if waited >= timeout => RequestError::Timeout(timeout),
            WcStatus::WrFlushErr => RequestError::Flushed,
            status => RequestError::Completion(status),
        }
    }

    /// Delivers a notification to the owner of a ticket.
    pub(crate) fn notify_owner(&self, notice: Notice) {
        match notice {
            Notice::Nothing => {}
            Notice::Unpark(thread) => {
                self.stats.wakeups.inc();
                thread.unpark();
            }
            Notice::Wake(waker) => {
                self.stats.wakeups.inc();
                // A waker runs executor code, possibly the task itself, so it counts as a callback.
                as_callback(|| waker.wake());
            }
            Notice::Run(callback, result) => self.call_back(|| callback(result)),
        }
    }

    /// Runs a caller's callback.
    pub(crate) fn call_back(&self, callback: impl FnOnce()) {
        self.stats.callbacks.inc();
        // The requests that it starts leave as one list.
        self.plugged(|| as_callback(callback));
    }

    /// Ends the session's data path: all requests fail, now and later. After the return of any such
    /// call, the session accesses no memory of posted requests.
    pub(crate) fn fail(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for (index, lane) in self.lanes.iter().enumerate() {
            self.fail_lane(index, lane.generation());
        }
        for direction in [READ, WRITE] {
            self.flush(direction);
        }
        self.stop_pollers();
    }
}
