//! Loom models of the lead of a completion queue.

use std::{collections::VecDeque, sync::LazyLock};

use loom::sync::Notify;

use super::*;
use crate::{
    sync::model::{check, go},
    verbs::WcStatus,
};

/// A modelled completion queue. An event or a wake ends a wait on it.
#[derive(Debug)]
pub(in crate::runtime) struct ModelCq {
    ring: Mutex<Ring>,
    event: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    completed: VecDeque<(u64, WcStatus)>,
    armed: bool,
}

impl ModelCq {
    pub(in crate::runtime) fn new() -> Arc<ModelCq> {
        Arc::new(ModelCq { ring: Mutex::default(), event: Notify::new() })
    }

    /// Completes a work request.
    pub(in crate::runtime) fn push(&self, wr_id: u64, status: WcStatus) {
        let mut ring = self.ring.lock();
        ring.completed.push_back((wr_id, status));
        let armed = std::mem::take(&mut ring.armed);
        drop(ring);
        if armed {
            self.event.notify();
        }
    }
}

impl crate::verbs::Sealed for ModelCq {}

impl CompletionQueue for ModelCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let completed = &mut self.ring.lock().completed;
        let count = completed.len().min(out.len());
        for (place, (wr_id, status)) in out.iter_mut().zip(completed.drain(..count)) {
            *place = WorkCompletion { wr_id, status, ..WorkCompletion::EMPTY };
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.ring.lock().armed = true;
        Ok(())
    }

    fn wait(&self, _: Option<Duration>) -> Result<bool, VerbsError> {
        self.event.wait();
        Ok(true)
    }

    fn wake(&self) {
        self.event.notify();
    }

    fn depth(&self) -> usize {
        64
    }
}

/// Made on a thread of its own, because the stack of a model's thread is too small for the
/// counters.
static STATS: LazyLock<&'static Stats> = LazyLock::new(|| {
    std::thread::spawn(|| &*Box::leak(Box::default())).join().expect("a thread that makes counters")
});

/// State shared by the threads of a model. The index of a ticket is the `wr_id` of its request.
#[derive(Debug)]
struct Shared {
    cq: Arc<ModelCq>,
    cq_waiters: CqWaiters,
    tickets: Mutex<Vec<Arc<Ticket>>>,
    stats: &'static Stats,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let cq = ModelCq::new();
        // The mode that sleeps soonest.
        let cq_waiters = CqWaiters::new(0, cq.clone(), PollingMode::EventBatch, Retry::Fixed(0));
        Arc::new(Shared { cq, cq_waiters, tickets: Mutex::default(), stats: *STATS })
    }

    /// Posts a request of this thread. Returns its ticket and its `wr_id`.
    fn post(&self) -> (Arc<Ticket>, u64) {
        let ticket = Ticket::of_this_thread(1);
        ticket.posted_on(0);
        let mut tickets = self.tickets.lock();
        tickets.push(Arc::clone(&ticket));
        (ticket, tickets.len() as u64 - 1)
    }

    fn finish(&self, wr_id: u64) {
        let ticket = Arc::clone(&self.tickets.lock()[wr_id as usize]);
        let (notice, last) = ticket.complete_one(Some(0), Ok(()));
        assert!(last, "finished twice");
        if let crate::runtime::wait::ticket::Notice::Unpark(thread) = notice {
            thread.unpark();
        }
    }

    fn wait(&self, ticket: &Arc<Ticket>, deadline: Instant) -> WaitOutcome {
        let dispatch = |wcs: &[WorkCompletion]| wcs.iter().for_each(|wc| self.finish(wc.wr_id));
        self.cq_waiters.wait(ticket, deadline, self.stats, &dispatch)
    }

    /// Waits without a limit.
    fn wait_done(&self, ticket: &Arc<Ticket>) {
        let waited = self.wait(ticket, later());
        assert!(matches!(waited, WaitOutcome::Done) && ticket.is_done(), "{waited:?}");
    }

    fn assert_left(&self) {
        let waiters = self.cq_waiters.waiters.lock();
        assert!(waiters.parked.is_empty() && !self.cq_waiters.leader.is_locked());
    }
}

fn later() -> Instant {
    now() + Duration::from_secs(1)
}

/// Checks that every waiting thread is served, by itself or by another, and that each leader passes
/// the lead. Catches a thread that parks although no thread polls: a missed entry, a missed lead,
/// or a wrong choice of waiter.
fn all_waiters_are_served(waiting: usize) {
    let shared = Shared::new();
    let run = |shared: Arc<Shared>| {
        move || {
            let (ticket, wr_id) = shared.post();
            shared.cq.push(wr_id, WcStatus::Success);
            shared.wait_done(&ticket);
        }
    };
    let others: Vec<_> = (1..waiting).map(|_| go(run(Arc::clone(&shared)))).collect();
    run(Arc::clone(&shared))();
    others.into_iter().for_each(|other| other.join().unwrap());
    shared.assert_left();
}

#[test]
fn two_waiters_are_served() {
    check(Some(3), || all_waiters_are_served(2));
}

#[test]
fn three_waiters_are_served() {
    check(Some(1), || all_waiters_are_served(3));
}

/// Late completions reach both a sleeping leader and a parked waiter. Catches a sleep that misses
/// an event, and a served leader that leaves the waiter parked.
#[test]
fn late_completions_reach_all_waiters() {
    check(Some(2), || {
        let shared = Shared::new();
        let (own, first) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let (ticket, wr_id) = shared.post();
                shared.cq.push(wr_id, WcStatus::Success);
                shared.wait_done(&ticket);
            }
        });
        let card = go({
            let shared = Arc::clone(&shared);
            move || shared.cq.push(first, WcStatus::Success)
        });
        shared.wait_done(&own);
        [other, card].into_iter().for_each(|thread| thread.join().unwrap());
        shared.assert_left();
    });
}

/// A leader that times out leaves, and another waiter takes over. Catches a lead that is released
/// but not passed.
#[test]
fn a_leader_that_times_out_passes_the_lead() {
    check(Some(3), || {
        let shared = Shared::new();
        // The card never completes this one.
        let (own, never) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let (ticket, wr_id) = shared.post();
                shared.cq.push(wr_id, WcStatus::Success);
                shared.wait_done(&ticket);
            }
        });
        assert!(matches!(shared.wait(&own, now()), WaitOutcome::TimedOut));
        shared.finish(never);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// A request that is failed with its lane ends its owner's wait, wherever the owner sleeps.
/// Catches a wake that comes before the sleep and is lost.
#[test]
fn a_request_failed_without_a_completion_ends_the_wait() {
    check(None, || {
        let shared = Shared::new();
        let (own, wr_id) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                shared.finish(wr_id);
                shared.cq_waiters.wake();
            }
        });
        shared.wait_done(&own);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// `poll_until_empty` serves the requests that it finds, or leaves it to the leader. A thread that
/// parked meanwhile gets the lead. Catches a missing pass of the lead.
#[test]
fn poll_until_empty_leaves_no_waiter_parked() {
    check(Some(3), || {
        let shared = Shared::new();
        let (own, wr_id) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let dispatch = |wcs: &[WorkCompletion]| wcs.iter().for_each(|wc| shared.finish(wc.wr_id));
                shared.cq_waiters.poll_until_empty(shared.stats, &dispatch);
                shared.cq.push(wr_id, WcStatus::Success);
            }
        });
        shared.wait_done(&own);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// A thread whose request was posted by another thread learns of it while it waits elsewhere.
/// Catches an expected waiter that is not woken, or is registered too late.
#[test]
fn an_expected_waiter_is_woken() {
    check(Some(3), || {
        let shared = Shared::new();
        let own = Ticket::of_this_thread(1);
        let poster = go({
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&own));
            move || {
                own.posted_on(0);
                shared.tickets.lock().push(Arc::clone(&own));
                shared.cq.push(0, WcStatus::Success);
                shared.cq_waiters.register_expected(&own);
            }
        });
        // The same loop as `Runtime::wait`.
        while !own.is_done() {
            match own.unsettled_cq() {
                Some(_) => assert!(matches!(shared.wait(&own, later()), WaitOutcome::Done)),
                None => crate::sync::park(),
            }
        }
        poster.join().unwrap();
        shared.assert_left();
    });
}
