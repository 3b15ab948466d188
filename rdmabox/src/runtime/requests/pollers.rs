//! Pollers: threads that poll a completion queue for requests that no thread waits for.
//!
//! Blocking callers poll for themselves. A callback, a task that awaits, or a shared completion
//! queue (SCQ(M) of the paper) starts the queue's poller. The poller polls while requests are
//! outstanding there, and parks otherwise. While no lane is up, it ends the requests that wait for
//! one for too long.
//!
//! # Concurrency
//! Any thread may wake a poller. `wanted` is set after a post and cleared before the last check, so
//! no request is missed. `handle` is a leaf. A poller takes the locks of `requests::completion`,
//! and those of lanes' queues and of the combiners to look for overdue requests.

use std::{sync::Arc, time::Duration};

use crate::{
    runtime::{
        lane::Lane,
        poller_state::PollerState,
        queue::{READ, WRITE},
        state::Runtime,
        wait::{CqWaiter, Ticket},
    },
    sync::{atomic::Ordering, current, now, park, park_timeout, spawn},
    verbs::WorkCompletion,
};

impl Runtime {
    /// Makes sure that the poller of a completion queue polls, unless a thread serves all started
    /// requests.
    pub(crate) fn wake_poller(&self, cq_index: usize) {
        if self.is_served() {
            return;
        }
        let poller = &self.pollers[cq_index];
        if poller.wanted.swap(true, Ordering::SeqCst) {
            return;
        }
        if poller.thread.get().is_some() {
            return poller.wake();
        }
        let mut handle = poller.handle.lock();
        if handle.is_some() || self.stopping.load(Ordering::SeqCst) {
            return poller.wake();
        }
        let Some(me) = self.me.upgrade() else { return };
        let own = Arc::clone(poller);
        let thread = spawn(format!("rdmabox-poll-{cq_index}"), move || me.run_poller(cq_index, &own));
        match thread {
            Ok(started) => {
                let _ = poller.thread.set(started.thread().clone());
                *handle = Some(started);
            }
            Err(e) => {
                drop(handle);
                log::error!("cannot start a poller thread: {e}");
                self.fail();
            }
        }
    }

    /// Wakes the pollers of all busy completion queues, if started requests are unfinished. A
    /// request may be waiting for room that started requests hold. Wakes one poller if no lane is
    /// up, so that it ends overdue requests.
    pub(crate) fn wake_pollers_for_started(&self) {
        if self.queued.load(Ordering::SeqCst) == 0 {
            return;
        }
        for cq_index in 0..self.cq_waiters.len() {
            if !self.pollers[cq_index].is_idle(cq_index) || cq_index == 0 && self.has_no_lane() {
                self.wake_poller(cq_index);
            }
        }
    }

    /// Returns true if no lane is up, so that no request can be posted.
    fn has_no_lane(&self) -> bool {
        self.lanes.iter().all(Lane::is_down)
    }

    fn run_poller(&self, index: usize, poller: &Arc<PollerState>) {
        // The starting thread may not have set this yet, and from now on other threads may have to
        // wake this one.
        let _ = poller.thread.set(current());
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        while !self.stopping.load(Ordering::SeqCst) {
            if !poller.wanted.load(Ordering::SeqCst) {
                // A request that is posted later wakes the poller of its lane.
                if self.has_no_lane() && self.queued.load(Ordering::SeqCst) > 0 {
                    park_timeout(self.shortest_timeout.check_interval());
                    self.end_overdue_backlog();
                } else {
                    park();
                }
                continue;
            }
            poller.interruption.clear();
            if self.stopping.load(Ordering::SeqCst) {
                break;
            }
            // No other thread checks these requests for timeouts.
            let deadline = now() + self.shortest_timeout.check_interval();
            match self.cq_waiters[index].wait_as(poller, deadline, &self.stats, &dispatch) {
                crate::runtime::wait::WaitOutcome::Done => {}
                crate::runtime::wait::WaitOutcome::TimedOut => {
                    self.fail_overdue_lanes(index);
                    self.end_overdue_backlog();
                }
                crate::runtime::wait::WaitOutcome::Broken(e) => {
                    log::error!("completion queue: {e}");
                    self.fail();
                }
            }
        }
    }

    /// Records an operation timeout that requests may have from now on. Pollers that sleep until a
    /// later check of overdue requests sleep anew.
    pub(crate) fn note_timeout(&self, timeout: Duration) {
        if !self.shortest_timeout.note(timeout) {
            return;
        }
        for (poller, cq_waiters) in self.pollers.iter().zip(&self.cq_waiters) {
            poller.interruption.set();
            cq_waiters.wake();
            // Waits for a thread that is starting the poller, so that the wake reaches it.
            drop(poller.handle.lock());
            poller.wake();
        }
    }

    /// Fails the lanes that hold a request which has exceeded its timeout.
    pub(crate) fn fail_overdue_lanes(&self, cq_index: usize) {
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.cq_index == cq_index) {
            let queue = lane.queue.lock();
            let overdue = queue.overdue(now());
            let generation = lane.generation();
            drop(queue);
            if let Some(timeout) = overdue {
                log::warn!("lane {index}: no completion within {timeout:?}");
                self.fail_lane(index, generation);
            }
        }
    }

    /// Ends requests that wait for room, without a waiting thread, and have exceeded their timeout.
    /// Only a silent peer counts: while requests complete, a long queue is no failure.
    pub(crate) fn end_overdue_backlog(&self) {
        let now = now();
        let silence = self.silence.length(now);
        if silence < self.shortest_timeout.get() {
            return;
        }
        let mut overdue: Vec<Arc<Ticket>> = Vec::new();
        for direction in [READ, WRITE] {
            self.directions[direction].with(|guard| {
                guard.collect(|combiner| &mut combiner.backlog);
                for ticket in guard.state().tickets() {
                    let waited = silence.min(now.saturating_duration_since(ticket.started()));
                    let is_ownerless = ticket.is_detached() && !ticket.has_thread();
                    if is_ownerless && waited >= ticket.timeout() {
                        overdue.push(Arc::clone(ticket));
                    }
                }
            });
            self.flush(direction);
        }
        // A ticket with several requests has ended after the first time. Requests that have been
        // posted since are left to `fail_overdue_lanes`: their lane may just have come back.
        overdue.iter().filter(|ticket| !ticket.is_done()).for_each(|ticket| self.withdraw(ticket));
    }

    /// Makes all pollers stop.
    pub(crate) fn stop_pollers(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for (poller, cq_waiters) in self.pollers.iter().zip(&self.cq_waiters) {
            // A poller clears this before it reads `stopping` for the last time.
            poller.dismiss();
            cq_waiters.wake();
            // Waits for a thread that is starting the poller, so that the wake reaches it.
            drop(poller.handle.lock());
            poller.wake();
        }
        if let Some(ticker) = &*self.ticker.lock() {
            ticker.thread().unpark();
        }
    }

    /// Waits until the pollers have stopped, after [`fail`](Self::fail). A poller does not wait for
    /// itself.
    #[cfg(all(loom, test))]
    pub(crate) fn join_pollers(&self) {
        let handles = self.pollers.iter().map(|poller| &poller.handle).chain([&self.ticker]);
        for handle in handles {
            let handle = handle.lock().take();
            if let Some(handle) = handle
                && handle.thread().id() != current().id()
                && !crate::runtime::wait::in_callback()
            {
                let _ = handle.join();
            }
        }
    }
}
