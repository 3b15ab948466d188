//! Models of the turns at a completion queue.

use std::{collections::VecDeque, sync::LazyLock};

use loom::sync::Notify;

use super::*;
use crate::sync::model::{check, go};

/// A completion queue of a model. Sleeping there ends by an event or a wake.
#[derive(Debug)]
pub(in crate::runtime) struct ModelCq {
    ring: Mutex<Ring>,
    event: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    completed: VecDeque<u64>,
    armed: bool,
}

impl ModelCq {
    pub(in crate::runtime) fn new() -> Arc<ModelCq> {
        Arc::new(ModelCq { ring: Mutex::default(), event: Notify::new() })
    }

    /// Completes a work request.
    pub(in crate::runtime) fn push(&self, wr_id: u64) {
        let mut ring = self.ring.lock();
        ring.completed.push_back(wr_id);
        let armed = std::mem::take(&mut ring.armed);
        drop(ring);
        if armed {
            self.event.notify();
        }
    }
}

impl CompletionQueue for ModelCq {
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize, VerbsError> {
        let completed = &mut self.ring.lock().completed;
        let count = completed.len().min(out.len());
        for (place, wr_id) in out.iter_mut().zip(completed.drain(..count)) {
            *place = WorkCompletion { wr_id, ..WorkCompletion::EMPTY };
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

/// Made by a thread with a stack of its own: a model's has no room for so many counters.
static STATS: LazyLock<&'static Stats> = LazyLock::new(|| {
    std::thread::spawn(|| &*Box::leak(Box::default())).join().expect("a thread that makes counters")
});

/// What the threads of a model share: the tickets, whose places are the `wr_id`s of their requests.
#[derive(Debug)]
struct Shared {
    cq: Arc<ModelCq>,
    attendance: Attendance,
    tickets: Mutex<Vec<Arc<Ticket>>>,
    stats: &'static Stats,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let cq = ModelCq::new();
        // The mode that goes to sleep soonest.
        let attendance = Attendance::new(0, cq.clone(), PollingMode::EventBatch, Retry::Fixed(0));
        Arc::new(Shared { cq, attendance, tickets: Mutex::default(), stats: *STATS })
    }

    /// A request of this thread, posted. Its `wr_id`, too.
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
        if let super::super::Notice::Unpark(thread) = notice {
            thread.unpark();
        }
    }

    fn wait(&self, ticket: &Arc<Ticket>, deadline: Instant) -> Waited {
        let dispatch = |wcs: &[WorkCompletion]| wcs.iter().for_each(|wc| self.finish(wc.wr_id));
        self.attendance.wait(ticket, deadline, self.stats, &dispatch)
    }

    /// Waits for as long as it takes.
    fn wait_done(&self, ticket: &Arc<Ticket>) {
        let waited = self.wait(ticket, later());
        assert!(matches!(waited, Waited::Done) && ticket.is_done(), "{waited:?}");
    }

    fn assert_left(&self) {
        let waiters = self.attendance.waiters.lock();
        assert!(waiters.parked.is_empty() && !self.attendance.leader.is_locked());
    }
}

fn later() -> Instant {
    now() + Duration::from_secs(1)
}

/// Each of the threads that wait is served, by itself or by another, and whoever leaves hands the token on. Catches a
/// thread that parks although nobody polls: the entry or the token not seen in time, or the wrong one woken.
fn all_that_wait_are_served(waiting: usize) {
    let shared = Shared::new();
    let run = |shared: Arc<Shared>| {
        move || {
            let (ticket, wr_id) = shared.post();
            shared.cq.push(wr_id);
            shared.wait_done(&ticket);
        }
    };
    let others: Vec<_> = (1..waiting).map(|_| go(run(Arc::clone(&shared)))).collect();
    run(Arc::clone(&shared))();
    others.into_iter().for_each(|other| other.join().unwrap());
    shared.assert_left();
}

#[test]
fn two_that_wait_are_served() {
    check(Some(3), || all_that_wait_are_served(2));
}

#[test]
fn three_that_wait_are_served() {
    check(Some(1), || all_that_wait_are_served(3));
}

/// Completions that come from outside while one thread sleeps and the other is parked reach both. Catches a sleep that
/// misses an event, and a served leader that leaves the other parked.
#[test]
fn completions_that_come_late_reach_everybody() {
    check(Some(2), || {
        let shared = Shared::new();
        let (own, first) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let (ticket, wr_id) = shared.post();
                shared.cq.push(wr_id);
                shared.wait_done(&ticket);
            }
        });
        let card = go({
            let shared = Arc::clone(&shared);
            move || shared.cq.push(first)
        });
        shared.wait_done(&own);
        [other, card].into_iter().for_each(|thread| thread.join().unwrap());
        shared.assert_left();
    });
}

/// A leader whose time is over leaves, and another that waits takes over. Catches a token that is given up and not handed on.
#[test]
fn a_leader_that_times_out_hands_on() {
    check(Some(3), || {
        let shared = Shared::new();
        // Never completed by the card.
        let (own, never) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let (ticket, wr_id) = shared.post();
                shared.cq.push(wr_id);
                shared.wait_done(&ticket);
            }
        });
        assert!(matches!(shared.wait(&own, now()), Waited::TimedOut));
        shared.finish(never);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// A request that is ended by hand, as with its lane, ends its owner's wait wherever that sleeps. Catches a wake that comes
/// before the sleep and is forgotten.
#[test]
fn a_request_ended_by_hand_ends_the_wait() {
    check(None, || {
        let shared = Shared::new();
        let (own, wr_id) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                shared.finish(wr_id);
                shared.attendance.wake();
            }
        });
        shared.wait_done(&own);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// A glance serves what it finds or leaves it to whoever has the token; one that parked meanwhile gets the token. Catches a
/// glance that does not hand on.
#[test]
fn a_glance_leaves_nobody_parked() {
    check(Some(3), || {
        let shared = Shared::new();
        let (own, wr_id) = shared.post();
        let other = go({
            let shared = Arc::clone(&shared);
            move || {
                let dispatch = |wcs: &[WorkCompletion]| wcs.iter().for_each(|wc| shared.finish(wc.wr_id));
                shared.attendance.glance(shared.stats, &dispatch);
                shared.cq.push(wr_id);
            }
        });
        shared.wait_done(&own);
        other.join().unwrap();
        shared.assert_left();
    });
}

/// One whose request was posted by another thread comes to know of it in time: it is told to look while it waits
/// elsewhere. Catches an expected one that nobody tells, or that is entered too late.
#[test]
fn one_that_is_expected_is_told() {
    check(Some(3), || {
        let shared = Shared::new();
        let own = Ticket::of_this_thread(1);
        let poster = go({
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&own));
            move || {
                own.posted_on(0);
                shared.tickets.lock().push(Arc::clone(&own));
                shared.cq.push(0);
                shared.attendance.expect(&own);
            }
        });
        // As `Runtime::wait` does.
        while !own.is_done() {
            match own.unsettled_lane() {
                Some(_) => assert!(matches!(shared.wait(&own, later()), Waited::Done)),
                None => crate::sync::park(),
            }
        }
        poster.join().unwrap();
        shared.assert_left();
    });
}
