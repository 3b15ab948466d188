//! Started calls: which are in flight, and which threads wait for them.
//!
//! A started call takes a slot like any other call. No thread polls for its reply: the next
//! thread that polls for another reason passes the reply to the session's [`StartedReply`]. At
//! most half of the slots are given to started calls. The other slots belong to callers that
//! poll, so a thread that waits for a slot gets one.
//!
//! # Concurrency
//! Called from any thread. `table` is a leaf lock. Waiters are notified, and `StartedReply` is
//! called, without it.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{
    error::RequestError,
    rpc::message::CALL_SLOTS,
    runtime::{Ticket, as_callback},
};

/// Limit of a session's started calls in flight.
pub(crate) const MAX_STARTED: usize = CALL_SLOTS / 2;

/// A bit set of slots.
pub(crate) type Slots = u32;
const _: () = assert!(CALL_SLOTS <= Slots::BITS as usize);

/// Returns the set of the given slots.
pub(crate) fn set_of(slots: impl Iterator<Item = usize>) -> Slots {
    slots.fold(0, |set, slot| set | 1 << slot)
}

type Sink = dyn Fn(Result<&[u8], RequestError>) + Send + Sync;

/// Receives the outcome of each started call
/// ([`Session::start_call`](crate::Session::start_call)) exactly once. The outcome is the reply,
/// [`RequestError::Unanswered`] or [`RequestError::Rejected`] if the service gave up or refused
/// the call, or [`RequestError::Disconnected`] if the session ended first.
/// [Calls and deferred replies](crate::guide#calls-and-deferred-replies) has an example.
///
/// It runs as a callback on the thread that finds the reply, so it must be quick and must not
/// block.
#[derive(Clone)]
pub struct StartedReply(Arc<Sink>);

impl StartedReply {
    /// Creates a receiver that passes outcomes to `sink`.
    pub fn new(sink: impl Fn(Result<&[u8], RequestError>) + Send + Sync + 'static) -> StartedReply {
        StartedReply(Arc::new(sink))
    }
}

impl fmt::Debug for StartedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartedReply")
    }
}

/// The answer to a request to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    /// The condition holds already.
    Now,
    /// The waiter was registered and will be notified.
    Wait,
    /// The session has ended, and calls were lost with it.
    Closed,
}

/// Calls in flight and waiters of type `W`. No I/O, no locks, no clock.
#[derive(Debug)]
struct CallTable<W> {
    /// Number of calls in flight or about to start.
    places: usize,
    /// Deadline of each slot's call; `None` if no call is in flight.
    due: [Option<Instant>; CALL_SLOTS],
    place_waiters: VecDeque<W>,
    /// Waiters, each with the set of calls that it waits for.
    reply_waiters: Vec<(Slots, W)>,
    closed: bool,
    /// Calls were in flight when the session ended.
    lost: bool,
}

/// Waiters whose condition has become true. Usually at most one.
type Released<W> = SmallVec<[W; 2]>;

impl<W> Default for CallTable<W> {
    fn default() -> Self {
        CallTable {
            places: 0,
            due: [None; CALL_SLOTS],
            place_waiters: VecDeque::new(),
            reply_waiters: Vec::new(),
            closed: false,
            lost: false,
        }
    }
}

impl<W> CallTable<W> {
    fn in_flight(&self) -> Slots {
        set_of((0..CALL_SLOTS).filter(|&slot| self.due[slot].is_some()))
    }

    /// Requests a place for a call. If there is none, registers the result of `waiter`, which gets
    /// the next returned place.
    fn request_place(&mut self, waiter: &dyn Fn() -> W) -> Availability {
        if self.closed {
            return Availability::Closed;
        }
        if self.places < MAX_STARTED {
            self.places += 1;
            return Availability::Now;
        }
        self.place_waiters.push_back(waiter());
        Availability::Wait
    }

    /// Requests the replies to all calls in flight.
    fn request_replies(&mut self, waiter: &dyn Fn() -> W) -> Availability {
        match self.in_flight() {
            _ if self.lost => Availability::Closed,
            0 => Availability::Now,
            calls => {
                self.reply_waiters.push((calls, waiter()));
                Availability::Wait
            }
        }
    }

    /// Records the slot of a call that has a place.
    fn begin(&mut self, slot: usize, due: Instant) {
        match self.closed {
            false => self.due[slot] = Some(due),
            true => self.lost = true,
        }
    }

    /// Records the end of a slot's call.
    fn end(&mut self, slot: usize) -> Released<W> {
        let mut released = Released::new();
        if self.due[slot].take().is_none() {
            // The session has ended meanwhile.
            return released;
        }
        match self.place_waiters.pop_front() {
            Some(next) => released.push(next),
            None => self.places -= 1,
        }
        let mut index = 0;
        while let Some((calls, _)) = self.reply_waiters.get_mut(index) {
            *calls &= !(1 << slot);
            match *calls {
                0 => released.push(self.reply_waiters.swap_remove(index).1),
                _ => index += 1,
            }
        }
        released
    }

    fn has_waiters(&self) -> bool {
        !self.place_waiters.is_empty() || !self.reply_waiters.is_empty()
    }

    /// Replaces the deadline of a call in flight.
    fn extend_deadline(&mut self, slot: usize, due: Instant) {
        if let Some(before) = &mut self.due[slot] {
            *before = due.max(*before);
        }
    }

    /// Returns the calls in flight whose deadline is before `time`.
    fn overdue(&self, time: Instant) -> Slots {
        set_of((0..CALL_SLOTS).filter(|&slot| self.due[slot].is_some_and(|due| due < time)))
    }

    /// Ends the session. Returns all waiters.
    fn fail(&mut self) -> Released<W> {
        self.closed = true;
        self.lost |= self.in_flight() != 0;
        self.due = [None; CALL_SLOTS];
        let reply_waiters = self.reply_waiters.drain(..).map(|(_, waiter)| waiter);
        self.place_waiters.drain(..).chain(reply_waiters).collect()
    }
}

/// The started calls of a session.
///
/// A waiter is a ticket with one request posted on `cq_index`. The caller of [`end`](Self::end)
/// or [`fail`](Self::fail) completes the returned tickets.
#[derive(Debug)]
pub(crate) struct StartedCalls {
    cq_index: usize,
    sink: Option<StartedReply>,
    table: Mutex<CallTable<Arc<Ticket>>>,
    /// Copy of the table's count, readable without the lock.
    places: AtomicUsize,
}

impl StartedCalls {
    pub(crate) fn new(cq_index: usize, sink: Option<StartedReply>) -> StartedCalls {
        StartedCalls { cq_index, sink, table: Mutex::default(), places: AtomicUsize::new(0) }
    }

    /// Requests a place for a call. Returns `None` if there is one now, otherwise the ticket to
    /// wait for.
    ///
    /// # Errors
    /// The session has ended.
    pub(crate) fn place(&self) -> Result<Option<Arc<Ticket>>, RequestError> {
        self.request(CallTable::request_place)
    }

    /// Returns the ticket to wait for all calls in flight; `None` if there are none.
    ///
    /// # Errors
    /// The session has ended with calls in flight.
    pub(crate) fn replies(&self) -> Result<Option<Arc<Ticket>>, RequestError> {
        self.request(CallTable::request_replies)
    }

    fn request(
        &self,
        request: impl FnOnce(&mut CallTable<Arc<Ticket>>, &dyn Fn() -> Arc<Ticket>) -> Availability,
    ) -> Result<Option<Arc<Ticket>>, RequestError> {
        let ticket = Ticket::of_this_thread(1);
        let waiter = || {
            ticket.posted_on(self.cq_index);
            Arc::clone(&ticket)
        };
        let mut table = self.table.lock();
        let availability = request(&mut table, &waiter);
        self.places.store(table.places, Ordering::Relaxed);
        drop(table);
        match availability {
            Availability::Now => Ok(None),
            Availability::Wait => Ok(Some(ticket)),
            Availability::Closed => Err(RequestError::Disconnected),
        }
    }

    /// Records the slot and the deadline of a call that has a place.
    pub(crate) fn begin(&self, slot: usize, due: Instant) {
        self.table.lock().begin(slot, due);
    }

    /// Records that the reply to a slot's call has been reported. Returns the waiters to notify.
    pub(crate) fn end(&self, slot: usize) -> Released<Arc<Ticket>> {
        let mut table = self.table.lock();
        let released = table.end(slot);
        self.places.store(table.places, Ordering::Relaxed);
        released
    }

    /// Returns the number of calls in flight or about to start.
    pub(crate) fn count(&self) -> usize {
        self.places.load(Ordering::Relaxed)
    }

    /// Returns true if a thread waits for a place or for replies.
    pub(crate) fn has_waiters(&self) -> bool {
        self.table.lock().has_waiters()
    }

    /// Replaces the deadline of a slot's call, if it is still in flight.
    pub(crate) fn extend_deadline(&self, slot: usize, due: Instant) {
        self.table.lock().extend_deadline(slot, due);
    }

    /// Returns the calls in flight whose deadline is before `time`. Takes no lock if there are
    /// none.
    pub(crate) fn overdue(&self, time: Instant) -> Slots {
        if self.count() == 0 { 0 } else { self.table.lock().overdue(time) }
    }

    /// Ends the session. Returns the waiters to notify.
    pub(crate) fn fail(&self) -> Released<Arc<Ticket>> {
        self.table.lock().fail()
    }

    /// Passes an outcome to the session's receiver. Called without locks.
    pub(crate) fn report(&self, outcome: Result<&[u8], RequestError>) {
        if let Some(StartedReply(sink)) = &self.sink {
            as_callback(|| sink(outcome));
        }
    }
}

#[cfg(test)]
mod tests;
