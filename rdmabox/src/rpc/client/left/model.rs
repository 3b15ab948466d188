//! Every interleaving of one who leaves a call and one who waits for all calls: somebody rings for it, once.

use std::sync::Arc;

use super::*;
use crate::sync::{
    Mutex,
    model::{check, go},
};

/// A session in which calls are under way, and somebody waits or not.
#[derive(Default)]
struct Session {
    /// What the book of started calls says: of a call under way, and of one who waits.
    book: Mutex<(bool, bool)>,
    left: Left,
    rung: AtomicU32,
}

impl Session {
    fn gather(&self) {
        self.left.look(true, |_| {
            self.rung.fetch_add(1, Ordering::Relaxed);
            true
        });
    }

    fn start(&self) {
        self.book.lock().0 = true;
        if self.left.leave(3, || self.book.lock().1) {
            self.gather();
        }
    }

    /// True if there is something to wait for.
    fn finish(&self) -> bool {
        let waits = {
            let mut book = self.book.lock();
            book.1 = book.0;
            book.0
        };
        if waits {
            self.gather();
        }
        waits
    }
}

/// Catches who asks whether somebody waits before the call is written down, and who gathers before he says that he waits.
#[test]
fn a_call_that_somebody_waits_for_is_rung_for() {
    check(None, || {
        let session = Arc::new(Session::default());
        let starter = Arc::clone(&session);
        let starter = go(move || starter.start());
        let waits = session.finish();
        starter.join().unwrap();
        let left = session.left.count();
        assert_eq!(session.rung.load(Ordering::Relaxed), u32::from(waits));
        assert_eq!(left, usize::from(!waits));
    });
}

/// Catches two who both find an answer.
#[test]
fn an_answer_is_taken_once() {
    check(None, || {
        let session = Arc::new(Session::default());
        session.left.leave(0, || false);
        session.left.leave(5, || false);
        let other = Arc::clone(&session);
        let look = |session: &Session| {
            session.left.look(false, |_| {
                session.rung.fetch_add(1, Ordering::Relaxed);
                true
            })
        };
        let other = go(move || look(&other));
        look(&session);
        other.join().unwrap();
        assert_eq!((session.rung.load(Ordering::Relaxed), session.left.count()), (2, 0));
    });
}
