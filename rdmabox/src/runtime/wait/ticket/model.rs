//! Loom models of a ticket's end: requests complete on some threads, and the owner is set on
//! another.

use std::task::Wake;

use super::*;
use crate::sync::{
    model::{JoinHandle, check, go},
    park,
};

/// Counts the notifications of the owner.
#[derive(Debug, Default)]
struct Told(AtomicUsize);

impl Told {
    fn notify_owner(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.notify_owner();
    }
}

const FLUSHED: RequestError = RequestError::Flushed;

/// Completes a posted or withdrawn request on a new thread, and delivers the notification.
/// Returns true if it was the last request.
fn complete_elsewhere(
    ticket: &Arc<Ticket>,
    lane: Option<usize>,
    result: Result<(), RequestError>,
) -> JoinHandle<bool> {
    let ticket = Arc::clone(ticket);
    go(move || {
        let (notice, last) = ticket.complete_one(lane, result);
        match notice {
            Notice::Nothing => {}
            Notice::Unpark(thread) => thread.unpark(),
            Notice::Wake(waker) => waker.wake(),
            Notice::Run(callback, result) => callback(result),
        }
        last
    })
}

/// Returns a ticket of one posted and one withdrawn request. Both end on other threads.
fn two_that_complete() -> (Arc<Ticket>, [JoinHandle<bool>; 2]) {
    let ticket = Ticket::unowned(2, std::time::Duration::ZERO, None);
    ticket.posted_on(0);
    let completing =
        [complete_elsewhere(&ticket, Some(0), Ok(())), complete_elsewhere(&ticket, None, Err(FLUSHED))];
    (ticket, completing)
}

/// Asserts that one request was the last, and that the outcome is the error.
fn assert_over(ticket: &Ticket, completing: [JoinHandle<bool>; 2]) {
    let last = completing.map(|thread| thread.join().unwrap());
    assert_eq!(last.iter().filter(|last| **last).count(), 1);
    assert!(ticket.is_done());
    assert_eq!(ticket.result(), Err(FLUSHED));
}

/// A task that finds its ticket unfinished is woken once. Catches an owner that is set after the
/// check, and a second notification.
#[test]
fn a_task_sees_the_end_or_is_woken() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        let notified = Arc::new(Told::default());
        let seen = ticket.set_owner_task(&Waker::from(Arc::clone(&notified)));
        if seen {
            assert_eq!(ticket.result(), Err(FLUSHED), "done, and its error not to be seen");
        }
        assert_over(&ticket, completing);
        assert!(seen || notified.times() == 1, "never notified");
        assert!(notified.times() <= 1, "notified twice");
    });
}

/// A callback runs once, with the error of the failed request. Catches a lost callback, and an
/// outcome that is read before another thread has stored its error.
#[test]
fn a_callback_is_run_once_with_the_outcome() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        let notified = Arc::new(Told::default());
        let callback: Callback = Box::new({
            let notified = Arc::clone(&notified);
            move |result| {
                assert_eq!(result, Err(FLUSHED));
                notified.notify_owner();
            }
        });
        if let Err(callback) = ticket.set_owner_callback(callback) {
            callback(ticket.result());
        }
        assert_over(&ticket, completing);
        assert_eq!(notified.times(), 1);
    });
}

/// A thread that takes over a ticket and parks is woken. Catches an owner that the last
/// completion does not see.
#[test]
fn a_thread_that_parks_is_woken() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        ticket.set_owner_thread();
        while !ticket.is_done() {
            park();
        }
        assert_eq!(ticket.result(), Err(FLUSHED), "done, and its error not to be seen");
        assert_over(&ticket, completing);
    });
}

/// A thread that leaves a ticket unfinished hands it to a task, which sees the end or is woken
/// once. Catches a completion that still takes the thread for the owner.
#[test]
fn a_thread_that_leaves_hands_over_to_a_task() {
    check(Some(2), || {
        let (ticket, completing) = two_that_complete();
        ticket.set_owner_thread();
        ticket.clear_owner();
        let notified = Arc::new(Told::default());
        let seen = ticket.set_owner_task(&Waker::from(Arc::clone(&notified)));
        assert_over(&ticket, completing);
        assert!(seen || notified.times() == 1, "never notified");
        assert!(notified.times() <= 1, "notified twice");
    });
}
