//! Pollers: threads that attend a completion queue for requests that no thread waits for.
//!
//! Blocking callers poll for themselves and need none. A callback, a task that awaits, or a shared completion queue
//! (SCQ(M) of the paper) makes the queue's poller start; it works while something is outstanding there and sleeps
//! otherwise.

use std::sync::Arc;

use super::{Runtime, lane::Lane, ticket::Attendee};
use crate::{
    sync::{
        JoinHandle, Mutex, OnceLock, Thread,
        atomic::{AtomicBool, Ordering},
        current, now, park, spawn,
    },
    verbs::WorkCompletion,
};

/// A poller's place at its completion queue.
#[derive(Debug)]
pub(crate) struct Seat {
    lanes: Arc<[Lane]>,
    /// There may be something to attend.
    wanted: AtomicBool,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Another thread serves what was started ([`serve`](super::serve)).
    served: Arc<AtomicBool>,
}

impl Seat {
    pub(crate) fn new(lanes: Arc<[Lane]>, served: Arc<AtomicBool>) -> Seat {
        let (wanted, thread, handle) = (AtomicBool::new(false), OnceLock::new(), Mutex::new(None));
        Seat { lanes, wanted, thread, handle, served }
    }

    pub(super) fn is_idle(&self, attendance: usize) -> bool {
        self.lanes.iter().filter(|lane| lane.attended_by == attendance).all(Lane::is_idle)
    }
}

impl Attendee for Seat {
    fn is_settled_on(&self, attendance: usize) -> bool {
        let over = || self.is_idle(attendance) || self.served.load(Ordering::SeqCst);
        if !over() {
            return false;
        }
        self.wanted.store(false, Ordering::SeqCst);
        // Somebody who posted before this, or stopped to serve, has found it wanted, and relies on it.
        if over() {
            return true;
        }
        self.wanted.store(true, Ordering::SeqCst);
        false
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

impl Runtime {
    /// Sees to it that what is outstanding on a completion queue is attended.
    pub(super) fn drive(&self, attendance: usize) {
        if self.is_served() {
            return;
        }
        let seat = &self.seats[attendance];
        if seat.wanted.swap(true, Ordering::SeqCst) {
            return;
        }
        if seat.thread.get().is_some() {
            return seat.wake();
        }
        let mut handle = seat.handle.lock();
        if handle.is_some() || self.stopping.load(Ordering::SeqCst) {
            return seat.wake();
        }
        let Some(me) = self.me.upgrade() else { return };
        let own = Arc::clone(seat);
        let thread =
            spawn(format!("rdmabox-poll-{attendance}"), move || me.poll_for_others(attendance, &own));
        match thread {
            Ok(started) => {
                let _ = seat.thread.set(started.thread().clone());
                *handle = Some(started);
            }
            Err(e) => {
                drop(handle);
                log::error!("no thread to poll with: {e}");
                self.fail();
            }
        }
    }

    /// Everything that is outstanding anywhere is attended, if requests were started that nobody may be waiting for:
    /// a request waits for the room that they take.
    pub(super) fn drive_what_was_started(&self) {
        if self.queued.load(Ordering::SeqCst) == 0 {
            return;
        }
        for attendance in 0..self.attendances.len() {
            if !self.seats[attendance].is_idle(attendance) {
                self.drive(attendance);
            }
        }
    }

    fn poll_for_others(&self, index: usize, seat: &Arc<Seat>) {
        // Whoever started this thread may not have come to it yet, and from now on others may have to wake it.
        let _ = seat.thread.set(current());
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        while !self.stopping.load(Ordering::SeqCst) {
            if !seat.wanted.load(Ordering::SeqCst) {
                park();
                continue;
            }
            // Nobody else looks at the time of these requests.
            let deadline = now() + self.timeout / 2;
            match self.attendances[index].attend(seat, deadline, &self.stats, &dispatch) {
                super::Waited::Done => {}
                super::Waited::TimedOut => self.end_overdue(index),
                super::Waited::Broken(e) => {
                    log::error!("{e}");
                    self.fail();
                }
            }
        }
    }

    /// Ends the lanes whose oldest request has been out for longer than a request may.
    pub(super) fn end_overdue(&self, attendance: usize) {
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| lane.attended_by == attendance)
        {
            let queue = lane.queue.lock();
            let overdue =
                queue.oldest().is_some_and(|posted| now().saturating_duration_since(posted) >= self.timeout);
            let which = lane.incarnation();
            drop(queue);
            if overdue {
                log::warn!("lane {index}: no completion within {:?}", self.timeout);
                self.lane_failed(index, which);
            }
        }
    }

    /// Makes pollers end.
    pub(super) fn stop_pollers(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for (seat, attendance) in self.seats.iter().zip(&self.attendances) {
            attendance.wake();
            // One that is being started finds its place under the lock.
            drop(seat.handle.lock());
            seat.wake();
        }
    }

    /// Waits for the pollers to end, after [`fail`](Self::fail). One does not wait for itself.
    pub(crate) fn join_pollers(&self) {
        for seat in &self.seats {
            let handle = seat.handle.lock().take();
            if let Some(handle) = handle
                && handle.thread().id() != current().id()
                && !super::in_callback()
            {
                let _ = handle.join();
            }
        }
    }
}
