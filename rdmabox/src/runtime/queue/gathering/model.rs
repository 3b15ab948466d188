//! Loom models of the hand-over of left requests.

use std::{ops::ControlFlow, sync::Arc};

use super::*;
use crate::{
    runtime::queue::{CombinerGuard, MergeQueue},
    sync::{
        Thread,
        model::{check, go},
        park, spawn,
    },
};

/// A merge queue, and a thread that polls.
#[derive(Debug, Default)]
struct Session {
    queue: MergeQueue<u8, (Vec<u8>, Vec<u8>)>,
    gathering: Gathering,
    polls: AtomicBool,
    ends: AtomicBool,
}

impl Session {
    fn flush(&self) {
        self.queue.flush(|guard: &mut CombinerGuard<'_, u8, (Vec<u8>, Vec<u8>)>| {
            guard.collect(|(backlog, _)| backlog);
            let (backlog, done) = guard.state();
            done.append(backlog);
        });
    }

    fn drain(&self) {
        if self.gathering.take(0) {
            self.flush();
        }
    }

    /// Starts a request while others are under way.
    fn start(&self, request: u8) {
        self.queue.push(std::iter::once(request));
        let is_polled = || self.polls.load(Ordering::SeqCst);
        if !self.gathering.leave(0, is_polled) && self.gathering.start_ticking() {
            // No thread can be woken.
            self.gathering.stop_ticking();
            self.drain();
        }
    }

    /// Polls `polls` times, like a thread that leads and then sleeps or leaves.
    fn poll(&self, polls: usize) {
        self.polls.store(true, Ordering::Relaxed);
        (0..polls).for_each(|_| self.drain());
        self.polls.swap(false, Ordering::SeqCst);
        self.drain();
    }

    /// Stops to tick, after one tick.
    fn tick(&self) {
        self.drain();
        self.gathering.stop_ticking();
        self.drain();
    }

    fn assert_done(&self, count: usize) {
        let mut done = self.queue.with(|guard| guard.state().1.clone());
        done.sort_unstable();
        assert!(done.into_iter().eq(0..count as u8), "stranded");
    }
}

fn join_all(session: &Arc<Session>, starts: u8, other: fn(&Session)) {
    let starters = (0..starts).map(|request| {
        let session = Arc::clone(session);
        go(move || session.start(request))
    });
    let starters: Vec<_> = starters.collect();
    other(session);
    starters.into_iter().for_each(|starter| starter.join().unwrap());
    session.assert_done(usize::from(starts));
}

/// Catches a request that is left to a thread that stops polling. Either the polling thread checks
/// before it announces its stop, or the starting thread asks before it leaves the request.
#[test]
fn a_request_left_to_a_polling_thread_is_taken() {
    check(None, || join_all(&Arc::default(), 1, |session| session.poll(1)));
    check(Some(2), || join_all(&Arc::default(), 2, |session| session.poll(1)));
}

/// The same with a thread that ticks. Catches a request that is left while the ticks end.
#[test]
fn a_request_left_to_a_ticking_thread_is_taken() {
    let ticking = || {
        let session = Arc::<Session>::default();
        assert!(session.gathering.start_ticking());
        session
    };
    check(None, move || join_all(&ticking(), 1, Session::tick));
    check(Some(2), move || join_all(&ticking(), 2, Session::tick));
}

impl Session {
    /// Combines `most` requests, and leaves the rest to a thread that polls.
    fn flush_within(&self, most: usize) {
        let mut most = most;
        loop {
            self.gathering.take(0);
            let has_rest = self.queue.flush_or_break(|guard| {
                guard.collect(|(backlog, _)| backlog);
                let (backlog, done) = guard.state();
                let count = backlog.len().min(most);
                done.extend(backlog.drain(..count));
                most -= count;
                if backlog.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            if !has_rest || self.gathering.leave(0, || self.polls.load(Ordering::SeqCst)) {
                return;
            }
            most = usize::MAX;
        }
    }

    /// Polls `polls` times, and combines one request after each poll.
    fn poll_within(&self, polls: usize) {
        let drain = || {
            if self.gathering.take(0) {
                self.flush_within(1);
            }
        };
        self.polls.store(true, Ordering::Relaxed);
        (0..polls).for_each(|_| drain());
        self.polls.swap(false, Ordering::SeqCst);
        drain();
    }
}

/// Catches a rest that a polling thread leaves while it stops polling. Another polling thread may
/// take the rest and find the combiner's lock held, or a thread that queues a request may find it
/// held.
#[test]
fn the_rest_of_a_polling_thread_is_taken() {
    let left = || {
        let session = Arc::<Session>::default();
        session.queue.push([0, 1].into_iter());
        session.gathering.leave(0, || true);
        session
    };
    check(Some(2), move || {
        let session = left();
        let other = {
            let session = Arc::clone(&session);
            go(move || {
                session.queue.push(std::iter::once(2));
                session.flush_within(usize::MAX);
            })
        };
        session.poll_within(1);
        other.join().unwrap();
        session.assert_done(3);
    });
    check(Some(2), move || {
        let session = left();
        let other = {
            let session = Arc::clone(&session);
            go(move || session.poll_within(1))
        };
        session.poll_within(1);
        other.join().unwrap();
        session.assert_done(2);
    });
}

impl Session {
    /// Combines one request, and hands the rest over.
    fn flush_one(&self, ticker: &Thread) {
        self.queue.flush(|guard: &mut CombinerGuard<'_, u8, (Vec<u8>, Vec<u8>)>| {
            guard.collect(|(backlog, _)| backlog);
            let (backlog, done) = guard.state();
            done.extend(backlog.pop());
            if !backlog.is_empty() {
                self.gathering.hand_over(0);
                ticker.unpark();
            }
        });
    }

    /// Takes over until the session ends.
    fn take_over(&self) {
        loop {
            let ends = self.ends.load(Ordering::SeqCst);
            if self.gathering.take_over(0) {
                self.flush_one(&crate::sync::current());
            } else if ends {
                return;
            } else {
                park();
            }
        }
    }
}

/// Catches a request that is stranded between a combiner that hands over and the next combiner. The
/// next combiner comes before the lock is released, or sleeps.
#[test]
fn a_queue_that_is_handed_over_is_combined() {
    check(Some(2), || {
        let session = Arc::<Session>::default();
        let ticker = {
            let session = Arc::clone(&session);
            spawn("ticker".into(), move || session.take_over()).expect("a thread of a model")
        };
        let starter = {
            let (session, ticker) = (Arc::clone(&session), ticker.thread().clone());
            go(move || {
                session.queue.push(std::iter::once(0));
                session.flush_one(&ticker);
            })
        };
        session.queue.push([1, 2].into_iter());
        session.flush_one(ticker.thread());
        starter.join().unwrap();
        session.ends.swap(true, Ordering::SeqCst);
        ticker.thread().unpark();
        ticker.join().unwrap();
        session.assert_done(3);
    });
}
