//! Lets started requests leave together: those that are started while others are under way.
//!
//! Posting each started request at once would cost a doorbell each. A small request that finds
//! the lane of small requests busy is therefore left in the merge queue, if a thread will drain it.
//! The thread that polls completions drains the queue in every poll, and a thread that waits for a
//! started request drains it first. If no thread polls, a thread of the session ticks. Ticks end
//! when nothing is left for some time. If requests are left for too long several times in a row,
//! further ones are posted at once for a while. The ticking thread also relieves combiners: a
//! thread that posts for others for a whole `Shift` hands the queue over to it.
//!
//! # Concurrency
//! Any thread may call these methods. `gathering` makes sure that no request is stranded. The
//! handle of the ticking thread is a leaf lock.

use std::time::Duration;

use crate::{
    runtime::{
        queue::{CopyBudget, READ, WRITE},
        state::Runtime,
        wait::CqWaiters,
    },
    sync::{atomic::Ordering, park, park_timeout, spawn},
};

/// Interval of the ticks. A request is left for at most two of them.
const TICK: Duration = Duration::from_micros(200);
/// Ticks without a left request after which they end.
const MAX_IDLE_TICKS: u32 = 8;
/// Requests in the merge queue from which on none is left there: a longer list saves little.
const MAX_GATHERED: usize = 16;

/// The thread that will wait for a started request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitedBy {
    /// The caller, sooner or later.
    Caller,
    /// The thread that polls.
    Poller,
}

impl Runtime {
    /// Posts the queued requests of a direction, or leaves them to a thread that will drain the
    /// queue. `bytes` is the length of the new ones, and `queued` the number of queued requests.
    /// Returns true if they were posted.
    pub(super) fn flush_or_leave(
        &self,
        direction: usize,
        bytes: u64,
        queued: usize,
        waited_by: WaitedBy,
    ) -> bool {
        if queued >= MAX_GATHERED || !self.may_gather(bytes) {
            self.gathering.take(direction);
            self.flush(direction);
            return true;
        }
        let left = self.gathering.leave(direction, || self.is_polled())
            || waited_by == WaitedBy::Caller && self.tick();
        if left {
            self.stats.gathered.inc();
        } else if self.gathering.take(direction) {
            self.flush(direction);
        }
        !left
    }

    /// Returns true if a request may wait for its neighbours: it is small, requests like it are
    /// under way, and posting does not execute it.
    fn may_gather(&self, bytes: u64) -> bool {
        let lane = self.lanes.get(self.last_lane.load(Ordering::Relaxed));
        bytes <= super::submit::SMALL
            && !self.executes_at_post
            && self.limits.mode != crate::batch::BatchMode::Single
            && lane.is_some_and(|lane| lane.is_busy_with_small())
            && !self.is_dead()
    }

    /// Returns true if a thread polls, and drains the queue in every poll.
    pub(super) fn is_polled(&self) -> bool {
        self.busy_poll.polls.load(Ordering::SeqCst) || self.cq_waiters.iter().any(CqWaiters::is_polled)
    }

    /// Posts the requests that were left in the merge queues.
    pub(crate) fn drain(&self) {
        self.drain_within(&CopyBudget::unlimited());
    }

    /// Posts the requests that were left in the merge queues, within a budget
    /// ([`flush_within`](Self::flush_within)).
    pub(crate) fn drain_within(&self, copies: &CopyBudget) {
        let mut any = false;
        for direction in [READ, WRITE] {
            if self.gathering.take(direction) {
                any = true;
                self.flush_within(direction, copies);
            }
        }
        if any {
            self.gather_backoff.record(true);
        }
    }

    /// Posts the requests that were left, unless a thread polls and does so.
    pub(crate) fn drain_unless_polled(&self) {
        if self.gathering.has_left() && !self.is_polled() {
            self.drain();
        }
    }

    /// Makes sure that a thread ticks. Returns false if that does not pay at present, or if the
    /// session ends.
    fn tick(&self) -> bool {
        if !self.may_tick.load(Ordering::Relaxed) || !self.gather_backoff.should_poll() {
            return false;
        }
        if !self.gathering.start_ticking() {
            return true;
        }
        if self.wake_ticker() {
            return true;
        }
        self.gathering.stop_ticking();
        self.drain();
        false
    }

    /// Wakes the ticking thread, or starts it. Returns false if that is impossible.
    fn wake_ticker(&self) -> bool {
        let mut handle = self.ticker.lock();
        if self.stopping.load(Ordering::SeqCst) {
            return false;
        }
        if let Some(handle) = &*handle {
            handle.thread().unpark();
            return true;
        }
        let Some(me) = self.me.upgrade() else { return false };
        match spawn("rdmabox-gather".to_owned(), move || me.run_ticker()) {
            Ok(started) => {
                *handle = Some(started);
                true
            }
            Err(e) => {
                // One attempt: the session works without this thread.
                self.may_tick.store(false, Ordering::Relaxed);
                log::warn!("cannot start the thread rdmabox-gather: {e}");
                false
            }
        }
    }

    /// Hands the queue of a direction over to the ticking thread, which combines instead of this
    /// one. Returns false if no thread can be woken.
    pub(super) fn hand_over(&self, direction: usize) -> bool {
        if !self.may_tick.load(Ordering::Relaxed) {
            return false;
        }
        self.gathering.hand_over(direction);
        let woken = self.wake_ticker();
        if !woken {
            self.gathering.take_over(direction);
        }
        woken
    }

    /// Combines the queues that were handed over. Returns true if there were any. Also posts
    /// requests that was left then: a busy direction must not keep the other one waiting.
    fn combine_handed_over(&self) -> bool {
        let mut any = false;
        for direction in [READ, WRITE] {
            if self.gathering.take_over(direction) {
                any = true;
                self.flush(direction);
            }
        }
        if any {
            self.drain();
        }
        any
    }

    fn run_ticker(&self) {
        let mut idle = 0;
        while !self.stopping.load(Ordering::SeqCst) {
            if self.combine_handed_over() {
                continue;
            }
            if !self.gathering.is_ticking() {
                park();
                continue;
            }
            let before = [READ, WRITE].map(|direction| self.gathering.taken(direction));
            park_timeout(TICK);
            if self.combine_handed_over() {
                continue;
            }
            let mut any = false;
            for direction in [READ, WRITE] {
                if self.gathering.taken(direction) != before[direction] {
                    any = true;
                } else if self.gathering.take(direction) {
                    any = true;
                    self.flush(direction);
                    self.gather_backoff.record(false);
                }
            }
            idle = if any { 0 } else { idle + 1 };
            if idle > MAX_IDLE_TICKS {
                idle = 0;
                self.gathering.stop_ticking();
                self.drain();
            }
        }
        self.gathering.stop_ticking();
        self.drain();
        self.combine_handed_over();
    }
}
