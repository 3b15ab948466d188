//! Models of a poller that goes to sleep while completions come.

use loom::sync::Notify;

use super::*;
use crate::sync::model::{check, go};

/// A queue, and the event that ends a sleep.
struct Queue {
    completions: Completions,
    event: Notify,
    /// In the place of the wish under the lock, if it is not to be there.
    wish: Option<AtomicBool>,
}

impl Queue {
    fn new(under_the_lock: bool) -> Arc<Queue> {
        let wish = (!under_the_lock).then(|| AtomicBool::new(false));
        Arc::new(Queue { completions: Completions::new(4), event: Notify::new(), wish })
    }

    fn add(&self) {
        let asked = self.completions.add(Cqe { wc: WorkCompletion::EMPTY, frees: 0, queue: 0 });
        let seen = |wish: &AtomicBool| wish.load(Ordering::SeqCst) && wish.swap(false, Ordering::SeqCst);
        if asked || self.wish.as_ref().is_some_and(seen) {
            self.event.notify();
        }
    }

    fn arm(&self) {
        match &self.wish {
            Some(wish) => wish.store(true, Ordering::SeqCst),
            None => self.completions.arm(),
        }
    }

    fn look(&self) -> bool {
        self.completions.take(&mut [WorkCompletion::EMPTY]).expect("there is room") == 1
    }

    /// As every poller does.
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

/// Each of `cards` completes a request, while one thread waits for all of them.
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

/// A completion that comes while the queue is armed is found by the look after that, or wakes. Catches a look that takes an
/// old state for the present one, and a wish that is seen too late.
#[test]
fn a_completion_is_found_or_wakes() {
    check(None, || all_are_found(&Queue::new(true), 1));
}

#[test]
#[should_panic = "deadlock"]
fn with_the_wish_outside_of_the_lock_it_may_do_neither() {
    check(None, || all_are_found(&Queue::new(false), 1));
}

/// Of two, one may be found and the other may have to wake. Catches a wish that is fulfilled too early.
#[test]
fn each_of_two_is_found_or_wakes() {
    check(Some(3), || all_are_found(&Queue::new(true), 2));
}
