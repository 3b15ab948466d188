//! Waiting on a completion queue by turns.
//!
//! Of the threads that wait for completions of one queue, one holds the token: it polls, arms and sleeps, and
//! hands out everybody's completions. The others are parked. A thread that is served leaves, and hands the token
//! on to one that is not. So a lone caller polls its own completion and wakes nobody, and no completion waits for
//! a thread that has gone. Where a queue has a poller of its own (shared completion queues), callers never take the
//! token.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Ticket, ticket::Attendee};
use crate::{
    polling::{Poller, PollingMode, Retry, Step},
    stats::Stats,
    sync::{Mutex, TryMutex, now, park_timeout, spin_loop, yield_now},
    verbs::{CompletionQueue, VerbsError, WorkCompletion},
};

/// Completions per poll.
const BATCH: usize = 32;
/// Polls in a row that find nothing before the poller offers its core to others: on few cores the peer, or the
/// provider's engine, may need it to bring the completion.
const POLLS_PER_YIELD: u32 = 64;

#[derive(Debug)]
struct Leader {
    poller: Poller,
    batch: [WorkCompletion; BATCH],
}

/// Who may be asked to take the token.
#[derive(Debug, Default)]
struct Waiters {
    /// Their owners are parked here, or about to be.
    parked: Vec<Arc<dyn Attendee>>,
    /// Their owners do not know yet that they have to wait here; they may wait elsewhere, and cannot be relied on.
    expected: Vec<Arc<dyn Attendee>>,
}

/// A completion queue and those who wait on it.
#[derive(Debug)]
pub(crate) struct Attendance {
    index: usize,
    cq: Arc<dyn CompletionQueue>,
    leader: TryMutex<Leader>,
    waiters: Mutex<Waiters>,
    /// Only its poller takes the token.
    has_poller: bool,
}

/// How a wait ended.
#[derive(Debug)]
pub(crate) enum Waited {
    Done,
    TimedOut,
    /// The completion queue is unusable.
    Broken(VerbsError),
}

impl Attendance {
    pub(crate) fn new(
        index: usize,
        cq: Arc<dyn CompletionQueue>,
        mode: PollingMode,
        retry: Retry,
    ) -> Attendance {
        let leader =
            Leader { poller: Poller::new(mode, retry, BATCH), batch: [WorkCompletion::EMPTY; BATCH] };
        Attendance {
            index,
            cq,
            leader: TryMutex::new(leader),
            waiters: Mutex::default(),
            has_poller: mode.shared_queues().is_some(),
        }
    }

    /// The completion queue.
    pub(crate) fn cq(&self) -> &Arc<dyn CompletionQueue> {
        &self.cq
    }

    /// True if a thread does nothing but poll here, while there is something to come.
    pub(crate) fn has_poller(&self) -> bool {
        self.has_poller
    }

    /// Waits until nothing of the ticket is outstanding here, serving others meanwhile: `dispatch` gets every completion.
    pub(crate) fn wait(
        &self,
        ticket: &Arc<Ticket>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Waited {
        if self.has_poller {
            // The poller reports to the ticket, and that unparks this thread.
            while !ticket.is_settled_on(self.index) {
                let Some(left) = remaining(deadline) else { return Waited::TimedOut };
                park_timeout(left);
            }
            return Waited::Done;
        }
        self.attend(ticket, deadline, stats, dispatch)
    }

    /// As [`wait`](Self::wait), for anybody, the poller included.
    pub(crate) fn attend<A: Attendee + 'static>(
        &self,
        who: &Arc<A>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Waited {
        let waited = self.by_turns(who, deadline, stats, dispatch);
        self.hand_on();
        waited
    }

    fn by_turns<A: Attendee + 'static>(
        &self,
        who: &Arc<A>,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Waited {
        let mut registered = false;
        let waited = loop {
            if who.is_settled_on(self.index) {
                break Waited::Done;
            }
            if let Some(mut leader) = self.leader.try_lock() {
                break self.lead(&mut leader, &**who, deadline, stats, dispatch);
            }
            if !registered {
                // Before the last look at the token. A leader that has given it up looks here, under the same lock: either
                // it finds this entry, or that look finds the token free.
                self.waiters.lock().parked.push(Arc::<A>::clone(who));
                registered = true;
                continue;
            }
            let Some(left) = remaining(deadline) else { break Waited::TimedOut };
            park_timeout(left);
        };
        if registered {
            self.waiters.lock().parked.retain(|other| !is_same(other, who));
        }
        waited
    }

    fn lead(
        &self,
        leader: &mut Leader,
        who: &dyn Attendee,
        deadline: Instant,
        stats: &Stats,
        dispatch: &dyn Fn(&[WorkCompletion]),
    ) -> Waited {
        leader.poller.after_wake();
        let mut empty = 0u32;
        loop {
            let batch = leader.poller.batch_size().min(BATCH);
            let found = match self.cq.poll(&mut leader.batch[..batch]) {
                Ok(found) => found,
                Err(e) => return Waited::Broken(e),
            };
            stats.count_poll(found);
            dispatch(&leader.batch[..found]);
            // Also the last poll teaches it something.
            let step = leader.poller.after_poll(found);
            if who.is_settled_on(self.index) {
                return Waited::Done;
            }
            match step {
                Step::Poll => {
                    empty = if found == 0 { empty + 1 } else { 0 };
                    if empty == POLLS_PER_YIELD {
                        empty = 0;
                        if remaining(deadline).is_none() {
                            return Waited::TimedOut;
                        }
                        yield_now();
                    } else if empty > 0 {
                        spin_loop();
                    }
                }
                Step::Arm => {
                    if let Err(e) = self.cq.arm() {
                        return Waited::Broken(e);
                    }
                }
                Step::Sleep => {
                    let Some(left) = remaining(deadline) else { return Waited::TimedOut };
                    stats.sleeps.inc();
                    match self.cq.wait(Some(left)) {
                        Ok(true) => stats.events.inc(),
                        Ok(false) => {}
                        Err(e) => return Waited::Broken(e),
                    }
                    leader.poller.after_wake();
                }
            }
        }
    }

    /// Serves what has completed, without waiting; nothing, and false, if somebody else is at it, who will serve it.
    pub(crate) fn glance(&self, stats: &Stats, dispatch: &dyn Fn(&[WorkCompletion])) -> bool {
        let Some(mut leader) = self.leader.try_lock() else { return false };
        loop {
            // An error is for somebody who waits.
            let found = self.cq.poll(&mut leader.batch).unwrap_or(0);
            if found == 0 {
                break;
            }
            stats.count_poll(found);
            dispatch(&leader.batch[..found]);
        }
        drop(leader);
        self.hand_on();
        true
    }

    /// Serves what one poll finds, without waiting, and tells how much that is; none if somebody else is at it, who will serve it.
    ///
    /// # Errors
    /// The completion queue is unusable.
    pub(crate) fn look(
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
        self.hand_on();
        polled.map(Some)
    }

    /// Registers a ticket whose owner does not wait here yet, and sees to it that somebody attends.
    pub(crate) fn expect(&self, ticket: &Arc<Ticket>) {
        self.waiters.lock().expected.push(Arc::<Ticket>::clone(ticket));
        self.hand_on();
    }

    /// Makes a leader that sleeps look again: its ticket may have been settled without a completion.
    pub(crate) fn wake(&self) {
        self.cq.wake();
    }

    /// Wakes somebody who waits, unless somebody is polling. One that waits here takes the token for certain, or
    /// hands it on; of those that are expected each may be busy elsewhere, so that all of them are told.
    fn hand_on(&self) {
        // Whoever polls hands on when it leaves, after a look at the entries.
        if self.leader.is_locked() {
            return;
        }
        let mut waiters = self.waiters.lock();
        let open = |who: &Arc<dyn Attendee>| !who.is_settled_on(self.index);
        waiters.expected.retain(open);
        match waiters.parked.iter().rev().find(|who| open(who)) {
            Some(who) => who.wake(),
            None => waiters.expected.iter().for_each(|who| who.wake()),
        }
    }
}

fn is_same<A>(one: &Arc<dyn Attendee>, other: &Arc<A>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

fn remaining(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(now()).filter(|left| !left.is_zero())
}

#[cfg(all(loom, test))]
pub(super) mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        provider::soft::SoftDevice,
        verbs::{Device, WcStatus},
    };

    fn attendance() -> Attendance {
        let cq = SoftDevice::new().unwrap().create_cq(4).unwrap();
        Attendance::new(0, cq, PollingMode::Adaptive, Retry::Fixed(1))
    }

    fn ticket() -> Arc<Ticket> {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(0);
        ticket
    }

    /// Returns when this thread is woken, or was before; a test that nobody wakes hangs.
    fn until_woken() {
        std::thread::park();
    }

    #[test]
    fn one_who_waits_here_is_woken_although_others_are_expected() {
        let attendance = attendance();
        let waiting = ticket();
        attendance.waiters.lock().parked.push(Arc::<Ticket>::clone(&waiting));
        // Later, and busy elsewhere.
        let other = std::thread::spawn(ticket).join().unwrap();
        attendance.expect(&other);
        until_woken();
    }

    #[test]
    fn without_one_who_waits_all_that_are_expected_are_woken() {
        let attendance = attendance();
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
                let leader = attendance.leader.lock();
                // Somebody polls: nobody has to be woken.
                tickets.iter().for_each(|ticket| attendance.expect(ticket));
                drop(leader);
            }
            attendance.hand_on();
        });
    }

    #[test]
    fn a_ticket_that_is_settled_by_hand_ends_a_leaders_sleep() {
        let attendance = attendance();
        let stats = Stats::default();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let attendance = &attendance;
            let stats = &stats;
            let sleeper = scope.spawn(move || {
                let ticket = ticket();
                send.send(Arc::clone(&ticket)).unwrap();
                let deadline = Instant::now() + Duration::from_secs(3600);
                attendance.wait(&ticket, deadline, stats, &|_| {})
            });
            let ticket = receive.recv().unwrap();
            while stats.sleeps.get() == 0 {
                std::thread::yield_now();
            }
            let refused = crate::session::RequestError::Completion(WcStatus::WrFlushErr);
            let _ = ticket.complete_one(Some(0), Err(refused));
            attendance.wake();
            assert!(matches!(sleeper.join().unwrap(), Waited::Done));
        });
    }
}
