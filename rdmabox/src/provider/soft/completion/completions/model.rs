//! Loom models of a poller that goes to sleep while completions arrive.

use loom::sync::Notify;

use super::*;
use crate::sync::model::{check, go};

/// A completion queue and the event that ends a sleep.
struct Queue {
    completions: Completions,
    event: Notify,
    /// Replaces the armed flag under the lock, to model a queue without it.
    armed_flag: Option<AtomicBool>,
}

impl Queue {
    fn new(under_the_lock: bool) -> Arc<Queue> {
        let armed_flag = (!under_the_lock).then(|| AtomicBool::new(false));
        Arc::new(Queue { completions: Completions::new(4), event: Notify::new(), armed_flag })
    }

    fn add(&self) {
        let asked = self.completions.add(Cqe { wc: WorkCompletion::EMPTY, frees: 0, queue: 0 });
        let seen = |armed_flag: &AtomicBool| {
            armed_flag.load(Ordering::SeqCst) && armed_flag.swap(false, Ordering::SeqCst)
        };
        if asked || self.armed_flag.as_ref().is_some_and(seen) {
            self.event.notify();
        }
    }

    fn arm(&self) {
        match &self.armed_flag {
            Some(armed_flag) => armed_flag.store(true, Ordering::SeqCst),
            None => self.completions.arm(),
        }
    }

    fn look(&self) -> bool {
        self.completions.take(&mut [WorkCompletion::EMPTY]).expect("there is room") == 1
    }

    /// Waits for one completion, in the order that every poller uses.
    fn wait(&self) {
        while !self.look() {
            self.arm();
            if self.look() {
                return;
            }
            self.event.wait();
        }
    }
}

/// Completes one request on each of `cards` threads while this thread waits for all completions.
fn all_are_found(queue: &Arc<Queue>, cards: usize) {
    let cards: Vec<_> = (0..cards)
        .map(|_| {
            let queue = Arc::clone(queue);
            go(move || queue.add())
        })
        .collect();
    cards.iter().for_each(|_| queue.wait());
    cards.into_iter().for_each(|card| card.join().unwrap());
    assert!(!queue.look());
}

/// The poll after arming finds a concurrent completion, or the completion wakes the poller. Fails
/// if a poll sees an old state, or if a completion sees the armed flag too late.
#[test]
fn a_completion_is_polled_or_wakes_the_poller() {
    check(None, || all_are_found(&Queue::new(true), 1));
}

#[test]
#[should_panic = "deadlock"]
fn arming_outside_of_the_lock_loses_a_wakeup() {
    check(None, || all_are_found(&Queue::new(false), 1));
}

/// The first completion may be polled and the second may have to wake the poller. Fails if the
/// first clears the armed flag too early.
#[test]
fn each_of_two_completions_is_polled_or_wakes_the_poller() {
    check(Some(3), || all_are_found(&Queue::new(true), 2));
}
