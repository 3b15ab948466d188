//! From completions to callers: waiting, handing out, and the end of a session's data path.
//!
//! Runs on the threads of callers, and on pollers where there are any. The lock of a lane's queue is held to take
//! requests out of it and for nothing else: memory is given back and callers are told without any lock.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    Runtime, Ticket,
    attend::Waited,
    lane::{Incarnation, Kind, Member, Over, PostedWr, lane_of},
    submit::{READ, WRITE},
    ticket::Notice,
};
use crate::{
    failure::contain,
    session::RequestError,
    sync::{atomic::Ordering, now, park_timeout, thread_local},
    verbs::{WcStatus, WorkCompletion},
};

thread_local! {
    /// True while this thread runs a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// True while this thread runs a callback: it may hold up everybody's completions, so that it must not wait for any.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

/// Runs a caller's code, on a thread that may serve others as well.
pub(crate) fn as_callback(callback: impl FnOnce()) {
    let outer = IN_CALLBACK.with(|inside| inside.replace(true));
    if let Err(panic) = contain(callback) {
        log::error!("a callback panicked: {panic}");
    }
    IN_CALLBACK.with(|inside| inside.set(outer));
}

impl Runtime {
    /// Waits for a ticket that the calling thread owns. When its time is over, what of it is posted is ended with its
    /// lane, so that no memory stays in use, and the rest is withdrawn.
    pub(super) fn wait(&self, ticket: &Arc<Ticket>) -> Result<(), RequestError> {
        let mut deadline = now() + self.timeout;
        let mut timed_out = false;
        while !ticket.is_done() {
            let waited = match ticket.unsettled_lane() {
                Some(index) => {
                    let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
                    self.attendances[index].wait(ticket, deadline, &self.stats, &dispatch)
                }
                // Not posted: whoever posts it wakes this thread or serves it.
                None => {
                    self.drive_what_was_started();
                    match deadline.checked_duration_since(now()) {
                        Some(left) if !left.is_zero() => {
                            park_timeout(left);
                            Waited::Done
                        }
                        _ => Waited::TimedOut,
                    }
                }
            };
            match waited {
                Waited::Done => {}
                Waited::TimedOut => {
                    timed_out = true;
                    self.give_up(ticket);
                    // What was being posted meanwhile is ended in the next round.
                    deadline = now() + Duration::from_millis(10);
                }
                Waited::Broken(e) => {
                    // The completions are lost for good, and with them the knowledge that the memory is free: but
                    // a queue pair in Err touches nothing any more, so that its requests can be closed by hand.
                    log::error!("{e}");
                    self.fail();
                }
            }
        }
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(self.timeout)),
            other => other,
        }
    }

    /// Ends what a ticket still has under way.
    fn give_up(&self, ticket: &Arc<Ticket>) {
        for (index, lane) in self.lanes.iter().enumerate() {
            if super::ticket::Attendee::is_settled_on(&**ticket, lane.attended_by) {
                continue;
            }
            let queue = lane.queue.lock();
            let which = queue.holds(ticket).then(|| lane.incarnation());
            drop(queue);
            if let Some(which) = which {
                log::warn!("lane {index}: no completion within {:?}", self.timeout);
                self.lane_failed(index, which);
            }
        }
        self.withdraw(ticket);
    }

    /// Serves completions.
    pub(super) fn dispatch(&self, wcs: &[WorkCompletion]) {
        if wcs.is_empty() {
            return;
        }
        self.finish_what(|over| self.take_completed(wcs, over));
        self.resume();
    }

    /// Takes what completions say is over.
    fn take_completed(&self, wcs: &[WorkCompletion], over: &mut Over) {
        let mut broken: SmallVec<[(usize, Incarnation); 4]> = SmallVec::new();
        for wc in wcs {
            let (index, sequence) = lane_of(wc.wr_id);
            // Only what this side posted completes here; an id that names nothing is a provider's mistake.
            let Some(lane) = self.lanes.get(index) else { continue };
            let before = over.wrs.len();
            let mut queue = lane.queue.lock();
            queue.complete(sequence, wc.status, over);
            if wc.status != WcStatus::Success && over.wrs.len() > before {
                broken.push((index, lane.incarnation()));
            }
        }
        for (index, which) in broken {
            // Those behind the one that failed are flushed.
            self.take_down(index, which, over);
        }
    }

    /// Lets what has waited for room, for the window or for a write in flight have another try.
    pub(super) fn resume(&self) {
        for direction in [READ, WRITE] {
            if self.directions[direction].is_stalled() {
                self.kick(direction);
            }
        }
    }

    /// Ends a lane's queue pair: what is posted on it fails, now, and a new one takes its place in the background. When it
    /// returns, no memory of a request that was posted on it is touched any more. Nothing happens to its successor, if there
    /// is one already.
    pub(super) fn lane_failed(&self, index: usize, which: Incarnation) {
        self.finish_what(|over| self.take_down(index, which, over));
        self.after_flush(index);
    }

    /// Requests of a lane were ended without a completion: who sleeps for one of them has to look, and who waits for
    /// their room has to try.
    pub(super) fn after_flush(&self, index: usize) {
        self.attendances[self.lanes[index].attended_by].wake();
        self.resume();
    }

    /// Ends what is posted on a lane, if it is down.
    pub(super) fn flush_if_down(&self, index: usize) {
        let lane = &self.lanes[index];
        self.finish_what(|over| {
            let mut queue = lane.queue.lock();
            if lane.is_down() {
                // Whoever took it down may not have come to this yet.
                lane.qp().to_error();
                queue.flush(over);
            }
        });
        self.after_flush(index);
    }

    /// Takes a lane's queue pair out of use, and what was posted on it as flushed.
    pub(super) fn take_down(&self, index: usize, which: Incarnation, over: &mut Over) {
        let first = self.lanes[index].take_down(which);
        self.lanes[index].flush(which, over);
        if first && !self.is_dead() {
            self.stats.lane_failures.inc();
            self.mend();
        }
    }

    /// Finishes the work requests that `take` takes out of the lanes.
    pub(super) fn finish_what(&self, take: impl FnOnce(&mut Over)) {
        let mut over = self.overs.take();
        take(&mut over);
        self.finish_all(&mut over);
        self.overs.put(over);
    }

    /// Gives everything back that work requests held, and reports them.
    pub(super) fn finish_all(&self, over: &mut Over) {
        let now = now();
        let Over { wrs, members } = over;
        for (wr, status) in wrs.drain(..) {
            let count = wr.members;
            self.finish(wr, status, now, members.drain(..count));
        }
    }

    fn finish(&self, wr: PostedWr, status: WcStatus, now: Instant, members: impl Iterator<Item = Member>) {
        let PostedWr { lane, registrations, staging, kind, len, admitted, in_flight, posted_at, .. } = wr;
        let lane = &self.lanes[lane];
        lane.vacate(1);
        drop(registrations);
        let ok = status == WcStatus::Success;
        if ok {
            match kind {
                Kind::Read => self.stats.bytes_read.add(len),
                Kind::Write => self.stats.bytes_written.add(len),
                Kind::Atomic => {}
            }
            self.admission.complete(admitted, now.saturating_duration_since(posted_at));
        } else {
            self.admission.release(admitted);
        }
        if let Some(write) = if ok { in_flight } else { in_flight.and_then(|write| lane.doubt(write)) } {
            self.writes.lock().remove(write);
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
            // The caller may return as soon as it is told: the loan goes first.
            drop(loan);
            let latency = now.saturating_duration_since(ticket.started());
            let result = if ok { Ok(()) } else { Err(self.failure(status, latency)) };
            // Before the owner is told, where it is certain: he may look at the counters then.
            let counted = ticket.has_one_part_left();
            if counted {
                self.count_latency(kind, latency);
            }
            if self.complete_part(&ticket, Some(lane.attended_by), result) && !counted {
                self.count_latency(kind, latency);
            }
        }
    }

    /// A request of a ticket is done: posted for `attendance`, or never posted. Tells the owner. True if it was the last.
    pub(super) fn complete_part(
        &self,
        ticket: &Ticket,
        attendance: Option<usize>,
        result: Result<(), RequestError>,
    ) -> bool {
        let (notice, last) = ticket.complete_one(attendance, result);
        let started = last && ticket.outlives_call();
        if started {
            self.queued.fetch_sub(1, Ordering::SeqCst);
        }
        self.tell(notice);
        if started {
            self.told_one();
        }
        last
    }

    pub(super) fn count_latency(&self, kind: Kind, latency: Duration) {
        match kind {
            Kind::Read => self.stats.read_latency.record(latency),
            Kind::Write => self.stats.write_latency.record(latency),
            Kind::Atomic => self.stats.atomic_latency.record(latency),
        }
    }

    /// What a request's caller hears.
    pub(super) fn failure(&self, status: WcStatus, waited: Duration) -> RequestError {
        self.stats.errors.inc();
        match status {
            WcStatus::RetryExcErr | WcStatus::WrFlushErr if self.is_dead() => RequestError::Disconnected,
            // Its lane was ended because of it, or would have been.
            WcStatus::WrFlushErr if waited >= self.timeout => RequestError::Timeout(self.timeout),
            WcStatus::WrFlushErr => RequestError::Flushed,
            status => RequestError::Completion(status),
        }
    }

    /// Tells the owner of a ticket.
    pub(super) fn tell(&self, notice: Notice) {
        match notice {
            Notice::Nothing => {}
            Notice::Unpark(thread) => {
                self.stats.wakeups.inc();
                thread.unpark();
            }
            Notice::Wake(waker) => {
                self.stats.wakeups.inc();
                // An executor's code, which may run the task here: it holds up others, as a callback does.
                as_callback(|| waker.wake());
            }
            Notice::Run(callback, result) => self.call_back(|| callback(result)),
        }
    }

    /// Runs a caller's callback.
    pub(crate) fn call_back(&self, callback: impl FnOnce()) {
        self.stats.callbacks.inc();
        as_callback(callback);
    }

    /// Ends the session's data path: every request fails, now and from now on. When it returns, no memory of a
    /// request that was posted is touched any more, whoever called it first.
    pub(crate) fn fail(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for (index, lane) in self.lanes.iter().enumerate() {
            self.lane_failed(index, lane.incarnation());
        }
        for direction in [READ, WRITE] {
            self.kick(direction);
        }
        self.stop_pollers();
    }
}
