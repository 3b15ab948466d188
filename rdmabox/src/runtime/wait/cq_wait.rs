//! Waits for completions on a completion queue, leader/follower style.
//!
//! Of the threads that wait on one queue, one holds the lead (the `leader` lock). The leader polls,
//! arms and sleeps, and dispatches the completions of all threads. The other threads are parked. A
//! thread whose own requests are settled leaves and passes the lead to a waiter that is not. A lone
//! caller therefore polls for itself and wakes no other thread. If a queue has a dedicated poller
//! (shared completion queues), callers never take the lead.
//!
//! # Concurrency
//! Called from any thread. The leader lock is only tried, and is released before `waiters` is
//! locked. `dispatch` runs under the leader lock.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::ticket::{CqWaiter, Ticket};
use crate::{
    polling::{Poller, PollingMode, Retry, Step},
    stats::Stats,
    sync::{
        Mutex, TryMutex, TryMutexGuard,
        atomic::{AtomicBool, Ordering},
        now, park_timeout, spin_loop, yield_now,
    },
    verbs::{CompletionQueue, VerbsError, WorkCompletion},
};

/// Completions per poll.
const BATCH: usize = 32;
/// Empty polls in a row before the leader yields its core. With few cores, the peer or the
/// provider's engine may need the core to produce the completion.
pub(super) const POLLS_PER_YIELD: u32 = 64;

#[derive(Debug)]
struct Leader {
    poller: Poller,
    batch: [WorkCompletion; BATCH],
}

/// Waiters that may be asked to take the lead.
#[derive(Debug, Default)]
struct Waiters {
    /// Waiters whose threads are parked here, or are about to park.
    parked: Vec<Arc<dyn CqWaiter>>,
    /// Waiters whose threads do not know yet that they have to wait here. They may be busy
    /// elsewhere, so they cannot be relied on.
    expected: Vec<Arc<dyn CqWaiter>>,
}

/// The lead of a completion queue, for a thread that polls several queues in turn. Dropping it
/// passes the lead.
pub(crate) struct Lead<'a> {
    cq_waiters: &'a CqWaiters,
    /// `None` only during the drop.
    leader: Option<TryMutexGuard<'a, Leader>>,
    /// The poller's step was to sleep, and the queue is armed.
    is_armed: bool,
}

impl<'a> Lead<'a> {
    /// Polls once and dispatches the completions. Returns their number.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub(crate) fn poll(
        &mut self,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Result<usize, VerbsError> {
        let Some(leader) = self.leader.as_deref_mut() else { return Ok(0) };
        let batch = leader.poller.batch_size().min(BATCH);
        let found = self.cq_waiters.cq.poll(&mut leader.batch[..batch])?;
        stats.count_poll(found);
        dispatch(&leader.batch[..found]);
        // An armed queue stays armed while it is empty.
        if found > 0 || !self.is_armed {
            match leader.poller.after_poll(found) {
                Step::Poll => self.is_armed = false,
                Step::Arm => self.cq_waiters.cq.arm()?,
                Step::Sleep => self.is_armed = true,
            }
        }
        Ok(found)
    }

    /// Returns true if the next step is to sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.is_armed
    }

    /// Starts polling again after a sleep.
    pub(crate) fn after_wake(&mut self) {
        self.is_armed = false;
        if let Some(leader) = self.leader.as_deref_mut() {
            leader.poller.after_wake();
        }
    }

    pub(crate) fn cq(&self) -> &'a dyn CompletionQueue {
        &*self.cq_waiters.cq
    }

    /// Returns true if this is the lead of `cq_waiters`.
    pub(crate) fn is_of(&self, cq_waiters: &CqWaiters) -> bool {
        std::ptr::eq(self.cq_waiters, cq_waiters)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.leader = None;
        self.cq_waiters.pass_lead();
    }
}

/// A completion queue and its waiters.
#[derive(Debug)]
pub(crate) struct CqWaiters {
    index: usize,
    cq: Arc<dyn CompletionQueue>,
    leader: TryMutex<Leader>,
    waiters: Mutex<Waiters>,
    /// True if only the queue's poller takes the lead.
    has_poller: bool,
    /// True while the leader polls, and does not sleep. It calls `dispatch` in every poll then.
    polled: AtomicBool,
}

/// The outcome of a wait.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    Done,
    TimedOut,
    /// The completion queue is unusable.
    Broken(VerbsError),
}

impl CqWaiters {
    pub(crate) fn new(
        index: usize,
        cq: Arc<dyn CompletionQueue>,
        mode: PollingMode,
        retry: Retry,
    ) -> CqWaiters {
        let leader =
            Leader { poller: Poller::new(mode, retry, BATCH), batch: [WorkCompletion::EMPTY; BATCH] };
        CqWaiters {
            index,
            cq,
            leader: TryMutex::new(leader),
            waiters: Mutex::default(),
            has_poller: mode.shared_queues().is_some(),
            polled: AtomicBool::new(false),
        }
    }

    /// Returns true if a thread polls here, without sleeping. That thread calls `dispatch` after
    /// the end of this state.
    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::SeqCst)
    }

    /// Ends the state in which this thread polls.
    fn stop_polling(&self, dispatch: &dyn Fn(&[WorkCompletion])) {
        // A thread that saw the flag set has left work to this thread, which finds it now.
        self.polled.swap(false, Ordering::SeqCst);
        dispatch(&[]);
    }

    pub(crate) fn cq(&self) -> &Arc<dyn CompletionQueue> {
        &self.cq
    }

    /// Returns true if a dedicated thread polls here while requests are outstanding.
    pub(crate) fn has_poller(&self) -> bool {
        self.has_poller
    }

    /// Blocks until no request of the ticket is outstanding on this queue. Passes every completion
    /// polled meanwhile, of any thread, to `dispatch`.
    pub(crate) fn wait(
        &self,
        ticket: &Arc<Ticket>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> WaitOutcome {
        if self.has_poller {
            // The poller completes the ticket, which unparks this thread.
            while !ticket.is_settled_on(self.index) {
                let Some(left) = remaining(deadline) else { return WaitOutcome::TimedOut };
                park_timeout(left);
            }
            return WaitOutcome::Done;
        }
        self.wait_as(ticket, deadline, stats, dispatch)
    }

    /// Waits as [`wait`](Self::wait) does, for any kind of waiter, including the poller.
    pub(crate) fn wait_as<A: CqWaiter + 'static>(
        &self,
        waiter: &Arc<A>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> WaitOutcome {
        let waited = self.lead_or_park(waiter, deadline, stats, dispatch);
        self.pass_lead();
        waited
    }

    fn lead_or_park<A: CqWaiter + 'static>(
        &self,
        waiter: &Arc<A>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> WaitOutcome {
        let mut registered = false;
        let waited = loop {
            if waiter.is_settled_on(self.index) {
                break WaitOutcome::Done;
            }
            if let Some(mut leader) = self.leader.try_lock() {
                self.polled.store(true, Ordering::Relaxed);
                let waited = self.poll_as_leader(&mut leader, &**waiter, deadline, stats, dispatch);
                self.stop_polling(dispatch);
                break waited;
            }
            if !registered {
                // Registers before it tries the lead for the last time. A leader scans the waiters
                // after it released the lead. Either the leader finds this entry, or the last try
                // finds the lead free.
                self.waiters.lock().parked.push(Arc::<A>::clone(waiter));
                registered = true;
                continue;
            }
            let Some(left) = remaining(deadline) else { break WaitOutcome::TimedOut };
            park_timeout(left);
        };
        if registered {
            self.waiters.lock().parked.retain(|other| !is_same_waiter(other, waiter));
        }
        waited
    }

    fn poll_as_leader(
        &self,
        leader: &mut Leader,
        waiter: &dyn CqWaiter,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> WaitOutcome {
        leader.poller.after_wake();
        let mut empty = 0u32;
        loop {
            let batch = leader.poller.batch_size().min(BATCH);
            let found = match self.cq.poll(&mut leader.batch[..batch]) {
                Ok(found) => found,
                Err(e) => return WaitOutcome::Broken(e),
            };
            stats.count_poll(found);
            dispatch(&leader.batch[..found]);
            // The poller adapts also to the last poll.
            let step = leader.poller.after_poll(found);
            if waiter.is_settled_on(self.index) {
                return WaitOutcome::Done;
            }
            match step {
                Step::Poll => {
                    empty = if found == 0 { empty + 1 } else { 0 };
                    if empty == POLLS_PER_YIELD {
                        empty = 0;
                        if remaining(deadline).is_none() {
                            return WaitOutcome::TimedOut;
                        }
                        yield_now();
                    } else if empty > 0 {
                        spin_loop();
                    }
                }
                Step::Arm => {
                    if let Err(e) = self.cq.arm() {
                        return WaitOutcome::Broken(e);
                    }
                }
                Step::Sleep => {
                    let Some(left) = remaining(deadline) else { return WaitOutcome::TimedOut };
                    stats.sleeps.inc();
                    self.stop_polling(dispatch);
                    match self.cq.wait(Some(left)) {
                        Ok(true) => stats.events.inc(),
                        Ok(false) => {}
                        Err(e) => return WaitOutcome::Broken(e),
                    }
                    self.polled.store(true, Ordering::Relaxed);
                    leader.poller.after_wake();
                }
            }
        }
    }

    /// Polls and dispatches until the queue is empty, without blocking. Returns false, without
    /// polling, if another thread is the leader.
    pub(crate) fn poll_until_empty(&self, stats: &Stats, dispatch: &dyn Fn(&[WorkCompletion])) -> bool {
        let Some(mut leader) = self.leader.try_lock() else { return false };
        loop {
            // Errors are left to a thread that waits.
            let found = self.cq.poll(&mut leader.batch).unwrap_or(0);
            if found == 0 {
                break;
            }
            stats.count_poll(found);
            dispatch(&leader.batch[..found]);
        }
        drop(leader);
        self.pass_lead();
        true
    }

    /// Polls once and dispatches the completions, without blocking. Returns their number, or `None`
    /// if another thread is the leader.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub(crate) fn poll_once(
        &self,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Result<Option<usize>, VerbsError> {
        let Some(mut leader) = self.leader.try_lock() else { return Ok(None) };
        let polled = self.cq.poll(&mut leader.batch);
        if let Ok(found) = polled {
            stats.count_poll(found);
            dispatch(&leader.batch[..found]);
        }
        drop(leader);
        self.pass_lead();
        polled.map(Some)
    }

    /// Takes the lead, unless another thread has it or a dedicated thread polls.
    pub(crate) fn try_lead(&self) -> Option<Lead<'_>> {
        if self.has_poller {
            return None;
        }
        let mut leader = self.leader.try_lock()?;
        leader.poller.after_wake();
        Some(Lead { cq_waiters: self, leader: Some(leader), is_armed: false })
    }

    /// Registers a ticket whose thread does not wait here yet, and makes sure that a waiter takes
    /// the lead.
    pub(crate) fn register_expected(&self, ticket: &Arc<Ticket>) {
        self.waiters.lock().expected.push(Arc::<Ticket>::clone(ticket));
        self.pass_lead();
    }

    /// Wakes a sleeping leader, so that it checks its ticket. A ticket may be settled without a
    /// completion.
    pub(crate) fn wake(&self) {
        self.cq.wake();
    }

    /// Wakes a waiter if no thread polls. A parked waiter is certain to take or pass the lead, so
    /// waking one is enough. Expected waiters may be busy elsewhere, so all of them are woken.
    fn pass_lead(&self) {
        // The current leader passes the lead itself when it leaves, and scans the entries then.
        if self.leader.is_locked() {
            return;
        }
        let mut waiters = self.waiters.lock();
        let open = |waiter: &Arc<dyn CqWaiter>| !waiter.is_settled_on(self.index);
        waiters.expected.retain(open);
        match waiters.parked.iter().rev().find(|waiter| open(waiter)) {
            Some(waiter) => waiter.wake(),
            None => waiters.expected.iter().for_each(|waiter| waiter.wake()),
        }
    }
}

fn is_same_waiter<A>(one: &Arc<dyn CqWaiter>, other: &Arc<A>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

pub(super) fn remaining(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(now()).filter(|left| !left.is_zero())
}

#[cfg(all(loom, test))]
pub(crate) mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::soft::SoftDevice,
        verbs::{Device, WcStatus},
    };

    fn cq_waiters() -> CqWaiters {
        let cq = SoftDevice::new().unwrap().create_cq(4).unwrap();
        CqWaiters::new(0, cq, PollingMode::Adaptive, Retry::Fixed(1))
    }

    fn ticket() -> Arc<Ticket> {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(0);
        ticket
    }

    /// Blocks until this thread has been unparked. The test hangs if no thread does so.
    fn until_woken() {
        std::thread::park();
    }

    #[test]
    fn a_parked_waiter_is_woken_before_expected_waiters() {
        let cq_waiters = cq_waiters();
        let waiting = ticket();
        cq_waiters.waiters.lock().parked.push(Arc::<Ticket>::clone(&waiting));
        // Registered later, and busy elsewhere.
        let other = std::thread::spawn(ticket).join().unwrap();
        cq_waiters.register_expected(&other);
        until_woken();
    }

    #[test]
    fn all_expected_waiters_are_woken_if_none_is_parked() {
        let cq_waiters = cq_waiters();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let send = send.clone();
                scope.spawn(move || {
                    send.send(ticket()).unwrap();
                    until_woken();
                });
            }
            let tickets: Vec<_> = receive.iter().take(2).collect();
            {
                let leader = cq_waiters.leader.lock();
                // A leader polls: no thread has to be woken.
                tickets.iter().for_each(|ticket| cq_waiters.register_expected(ticket));
                drop(leader);
            }
            cq_waiters.pass_lead();
        });
    }

    #[test]
    fn a_leader_wakes_when_its_ticket_is_settled_without_a_completion() {
        let cq_waiters = cq_waiters();
        let stats = Stats::default();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let cq_waiters = &cq_waiters;
            let stats = &stats;
            let sleeper = scope.spawn(move || {
                let ticket = ticket();
                send.send(Arc::clone(&ticket)).unwrap();
                let deadline = Instant::now() + Duration::from_secs(3600);
                cq_waiters.wait(&ticket, deadline, stats, &|_| {})
            });
            let ticket = receive.recv().unwrap();
            while stats.sleeps.get() == 0 {
                std::thread::yield_now();
            }
            let refused = crate::error::RequestError::Completion(WcStatus::WrFlushErr);
            let _ = ticket.complete_one(Some(0), Err(refused));
            cq_waiters.wake();
            assert!(matches!(sleeper.join().unwrap(), WaitOutcome::Done));
        });
    }
}
