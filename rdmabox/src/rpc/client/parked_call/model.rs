//! Loom models of parking and waiting: exactly one notification of the host for each parked call
//! that a thread waits for.

use std::sync::Arc;

use super::*;
use crate::sync::{
    Mutex,
    model::{check, go},
};

/// A session with calls in flight and possibly a waiter.
#[derive(Default)]
struct Session {
    /// State of the call table: a call is in flight, a thread waits.
    book: Mutex<(bool, bool)>,
    parked: ParkedCalls,
    notifications: AtomicU32,
}

impl Session {
    fn collect_parked(&self) {
        self.parked.scan(true, |_| {
            self.notifications.fetch_add(1, Ordering::Relaxed);
            true
        });
    }

    fn start(&self) {
        self.book.lock().0 = true;
        if self.parked.park(3, || self.book.lock().1) {
            self.collect_parked();
        }
    }

    /// Returns true if there is a call to wait for.
    fn finish(&self) -> bool {
        let waits = {
            let mut book = self.book.lock();
            book.1 = book.0;
            book.0
        };
        if waits {
            self.collect_parked();
        }
        waits
    }
}

/// Catches a parker that checks for waiters before it records the call, and a waiter that scans
/// before it registers.
#[test]
fn the_host_is_notified_once_of_a_parked_call_with_a_waiter() {
    check(None, || {
        let session = Arc::new(Session::default());
        let starter = Arc::clone(&session);
        let starter = go(move || starter.start());
        let waits = session.finish();
        starter.join().unwrap();
        let parked = session.parked.count();
        assert_eq!(session.notifications.load(Ordering::Relaxed), u32::from(waits));
        assert_eq!(parked, usize::from(!waits));
    });
}

/// Catches two threads that both collect an answer.
#[test]
fn an_answer_is_taken_once() {
    check(None, || {
        let session = Arc::new(Session::default());
        session.parked.park(0, || false);
        session.parked.park(5, || false);
        let other = Arc::clone(&session);
        let scan = |session: &Session| {
            session.parked.scan(false, |_| {
                session.notifications.fetch_add(1, Ordering::Relaxed);
                true
            })
        };
        let other = go(move || scan(&other));
        scan(&session);
        other.join().unwrap();
        assert_eq!((session.notifications.load(Ordering::Relaxed), session.parked.count()), (2, 0));
    });
}
