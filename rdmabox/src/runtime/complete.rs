//! From completions to callers: waiting, handing out, and the end of a session's data path.
//!
//! Runs on the threads of callers. The lock of a lane's queue is held to take requests out of it and for nothing else:
//! memory is given back and callers are told without any lock.

use std::{
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::Instant,
};

use smallvec::SmallVec;

use super::{
    Runtime, Ticket,
    attend::Waited,
    lane::{Kind, PostedWr},
    submit::{READ, WRITE},
};
use crate::{
    session::RequestError,
    verbs::{WcStatus, WorkCompletion},
};

impl Runtime {
    /// Waits for a ticket; on the deadline the session ends, so that no memory stays in use.
    pub(super) fn wait(&self, ticket: &Arc<Ticket>) -> Result<(), RequestError> {
        let mut deadline = Instant::now() + self.timeout;
        let mut timed_out = false;
        while !ticket.is_done() {
            let waited = match ticket.unsettled_lane() {
                Some(index) => {
                    let lane = &self.lanes[index];
                    let dispatch = |wcs: &[WorkCompletion]| self.dispatch(index, wcs);
                    lane.attendance.wait(ticket, deadline, &self.stats, &dispatch)
                }
                // Not posted: whoever posts it wakes this thread or serves it.
                None => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => {
                        std::thread::park_timeout(left);
                        Waited::Done
                    }
                    _ => Waited::TimedOut,
                },
            };
            match waited {
                Waited::Done => {}
                Waited::TimedOut => {
                    if timed_out {
                        // Flushed long ago, yet not reported: nothing will come any more.
                        self.abandon();
                    }
                    timed_out = true;
                    self.fail();
                    deadline = Instant::now() + self.timeout;
                }
                Waited::Broken(e) => {
                    log::error!("{e}");
                    self.fail();
                    // The completions are lost for good, and with them the knowledge that the memory is free: but
                    // a queue pair in Err touches nothing any more, so that its requests can be closed by hand.
                    self.abandon();
                }
            }
        }
        match ticket.result() {
            Err(_) if timed_out => Err(RequestError::Timeout(self.timeout)),
            other => other,
        }
    }

    /// Serves completions of a lane.
    fn dispatch(&self, index: usize, wcs: &[WorkCompletion]) {
        if wcs.is_empty() {
            return;
        }
        let mut over: SmallVec<[(PostedWr, WcStatus); 8]> = SmallVec::new();
        {
            let mut queue = self.lanes[index].queue.lock();
            for wc in wcs {
                queue.complete(wc.wr_id, wc.status, &mut over);
            }
        }
        self.lanes[index].vacate(over.len());
        let mut broken = false;
        for (wr, status) in over {
            broken |= status != WcStatus::Success;
            self.finish(index, wr, status);
        }
        if broken {
            self.fail();
        }
        // Room and window are given back before the look at who waits for them.
        fence(Ordering::SeqCst);
        for direction in [READ, WRITE] {
            if self.directions[direction].stalled.load(Ordering::SeqCst) {
                self.kick(direction);
            }
        }
    }

    /// Gives everything back that a work request held, and reports it.
    pub(super) fn finish(&self, lane: usize, wr: PostedWr, status: WcStatus) {
        let PostedWr { registrations, staging, members, kind, len, admitted, in_flight, posted_at } = wr;
        drop(registrations);
        let ok = status == WcStatus::Success;
        if ok {
            match kind {
                Kind::Read => self.stats.bytes_read.add(len),
                Kind::Write => self.stats.bytes_written.add(len),
                Kind::Atomic => {}
            }
            self.admission.complete(admitted, posted_at.elapsed());
        } else {
            self.admission.release(admitted);
        }
        if let Some(handle) = in_flight {
            self.writes.lock().remove(handle);
        }
        let mut at = 0;
        for member in members {
            let super::lane::Member { mut loan, ticket } = member;
            let len = loan.len();
            if ok
                && kind == Kind::Read
                && let Some(staging) = &staging
            {
                loan.unstage(staging, at);
            }
            at += len;
            // The caller may return as soon as it is told: the loan goes first.
            drop(loan);
            let result = if ok {
                Ok(())
            } else {
                self.stats.errors.inc();
                Err(match status {
                    WcStatus::RetryExcErr | WcStatus::WrFlushErr => RequestError::Disconnected,
                    status => RequestError::Completion(status),
                })
            };
            if ticket.complete_one(Some(lane), result) {
                self.stats.wakeups.inc();
                ticket.unpark();
            }
        }
    }

    /// Ends the session's data path: every request fails, now and from now on. When it returns, no memory of a
    /// request that was posted is touched any more, whoever called it first.
    pub(crate) fn fail(&self) {
        self.dead.store(true, Ordering::SeqCst);
        for lane in &self.lanes {
            lane.qp.to_error();
            lane.attendance.wake();
        }
        for direction in [READ, WRITE] {
            self.kick(direction);
        }
    }

    /// Closes what is still posted, without its completions.
    fn abandon(&self) {
        self.fail();
        for index in 0..self.lanes.len() {
            self.close_lane(index);
        }
    }

    /// Closes what is posted on a lane, without its completions. After [`fail`](Self::fail) only.
    pub(super) fn close_lane(&self, index: usize) {
        let lane = &self.lanes[index];
        let mut over = SmallVec::new();
        {
            let mut queue = lane.queue.lock();
            if queue.len() > 0 {
                let last = queue.next_id() - 1;
                queue.complete(last, WcStatus::WrFlushErr, &mut over);
            }
        }
        lane.vacate(over.len());
        for (wr, status) in over {
            self.finish(index, wr, status);
        }
        // Whoever sleeps for one of them.
        lane.attendance.wake();
    }
}
