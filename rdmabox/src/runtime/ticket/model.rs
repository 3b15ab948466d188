//! Models of a ticket's end: completions on some threads, an owner that arrives on another.

use std::task::Wake;

use super::*;
use crate::sync::{
    model::{JoinHandle, check, go},
    park,
};

/// Counts how often the owner is told, by whatever way.
#[derive(Debug, Default)]
struct Told(AtomicUsize);

impl Told {
    fn tell(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.tell();
    }
}

const FLUSHED: RequestError = RequestError::Flushed;

/// Completes a request of a ticket, which is posted on a lane or was withdrawn, on a thread of its own, and does what it is
/// told. True if it was the last.
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

/// A ticket of two requests, one posted and one withdrawn: both end on other threads.
fn two_that_complete() -> (Arc<Ticket>, [JoinHandle<bool>; 2]) {
    let ticket = Ticket::of_nobody(2, None);
    ticket.posted_on(0);
    let completing =
        [complete_elsewhere(&ticket, Some(0), Ok(())), complete_elsewhere(&ticket, None, Err(FLUSHED))];
    (ticket, completing)
}

/// One of them was the last, and the outcome is the error.
fn assert_over(ticket: &Ticket, completing: [JoinHandle<bool>; 2]) {
    let last = completing.map(|thread| thread.join().unwrap());
    assert_eq!(last.iter().filter(|last| **last).count(), 1);
    assert!(ticket.is_done());
    assert_eq!(ticket.result(), Err(FLUSHED));
}

/// A task that finds its ticket open is woken, once. Catches an owner that is entered after the look, and an end that is
/// told twice.
#[test]
fn a_task_sees_the_end_or_is_woken() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        let told = Arc::new(Told::default());
        let seen = ticket.own_by_task(&Waker::from(Arc::clone(&told)));
        if seen {
            assert_eq!(ticket.result(), Err(FLUSHED), "done, and its error not to be seen");
        }
        assert_over(&ticket, completing);
        assert!(seen || told.times() == 1, "never told");
        assert!(told.times() <= 1, "told twice");
    });
}

/// A callback is run once, with the error of whichever request failed. Catches one that is left behind, and an outcome that
/// is read before the error of another thread is there.
#[test]
fn a_callback_is_run_once_with_the_outcome() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        let told = Arc::new(Told::default());
        let callback: Callback = Box::new({
            let told = Arc::clone(&told);
            move |result| {
                assert_eq!(result, Err(FLUSHED));
                told.tell();
            }
        });
        if let Err(callback) = ticket.own_by_callback(callback) {
            callback(ticket.result());
        }
        assert_over(&ticket, completing);
        assert_eq!(told.times(), 1);
    });
}

/// A thread that takes a ticket which others complete, and parks, is woken. Catches an owner that the last completion does
/// not see.
#[test]
fn a_thread_that_parks_is_woken() {
    check(Some(3), || {
        let (ticket, completing) = two_that_complete();
        ticket.own();
        while !ticket.is_done() {
            park();
        }
        assert_eq!(ticket.result(), Err(FLUSHED), "done, and its error not to be seen");
        assert_over(&ticket, completing);
    });
}
