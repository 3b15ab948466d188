//! Calls that nobody waits for: which are under way, and who wants to know when they are not any more.
//!
//! A started call takes a slot as any other. Nobody polls for its reply: whoever polls next for another reason finds it, and
//! hands it to the session's [`StartedReply`]. At most half of the slots are given to started calls. So when none is free
//! some of them are held by calls whose callers poll, and a caller that waits for a slot waits for one that comes back.

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

use super::CALL_SLOTS;
use crate::{
    runtime::{Ticket, as_callback},
    session::RequestError,
};

/// Started calls of a session that can be under way.
pub(crate) const MAX_STARTED: usize = CALL_SLOTS / 2;

/// A set of slots.
pub(super) type Slots = u32;
const _: () = assert!(CALL_SLOTS <= Slots::BITS as usize);

/// The set of these.
pub(super) fn set_of(slots: impl Iterator<Item = usize>) -> Slots {
    slots.fold(0, |set, slot| set | 1 << slot)
}

type Sink = dyn Fn(Result<&[u8], RequestError>) + Send + Sync;

/// Gets what becomes of each started call ([`Session::start_call`](crate::Session::start_call)), once: its reply,
/// [`RequestError::Unanswered`] where the service gave it up, or [`RequestError::Disconnected`] where the session ended
/// first.
///
/// It runs on the thread that finds the reply, as a callback does: it must be quick, and must not block.
#[derive(Clone)]
pub struct StartedReply(Arc<Sink>);

impl StartedReply {
    /// Outcomes go to `sink`.
    pub fn new(sink: impl Fn(Result<&[u8], RequestError>) + Send + Sync + 'static) -> StartedReply {
        StartedReply(Arc::new(sink))
    }
}

impl fmt::Debug for StartedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StartedReply")
    }
}

/// What one who asks is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It is so already.
    Now,
    /// It will hear.
    Later,
    /// The session is over, with what was under way.
    Over,
}

/// Who has started what. Pure: `W` is one who waits.
#[derive(Debug)]
struct Book<W> {
    /// Calls that are under way or about to be.
    places: usize,
    /// Until when each slot's call is to be answered; `None` where none is under way.
    due: [Option<Instant>; CALL_SLOTS],
    for_a_place: VecDeque<W>,
    /// With the calls that each waits for.
    for_replies: Vec<(Slots, W)>,
    over: bool,
    /// Calls were under way when it ended.
    lost: bool,
}

/// Those who have waited long enough. As a rule there is one at most.
type Told<W> = SmallVec<[W; 2]>;

impl<W> Default for Book<W> {
    fn default() -> Self {
        Book {
            places: 0,
            due: [None; CALL_SLOTS],
            for_a_place: VecDeque::new(),
            for_replies: Vec::new(),
            over: false,
            lost: false,
        }
    }
}

impl<W> Book<W> {
    fn under_way(&self) -> Slots {
        set_of((0..CALL_SLOTS).filter(|&slot| self.due[slot].is_some()))
    }

    /// Asks for a place; `waiter` makes the one who waits. A place that comes back is its from then on.
    fn ask_for_a_place(&mut self, waiter: &dyn Fn() -> W) -> Asked {
        if self.over {
            return Asked::Over;
        }
        if self.places < MAX_STARTED {
            self.places += 1;
            return Asked::Now;
        }
        self.for_a_place.push_back(waiter());
        Asked::Later
    }

    /// Asks for the replies to all calls that are under way now.
    fn ask_for_replies(&mut self, waiter: &dyn Fn() -> W) -> Asked {
        match self.under_way() {
            _ if self.lost => Asked::Over,
            0 => Asked::Now,
            calls => {
                self.for_replies.push((calls, waiter()));
                Asked::Later
            }
        }
    }

    /// A call, which has a place, gets its slot.
    fn begin(&mut self, slot: usize, due: Instant) {
        match self.over {
            false => self.due[slot] = Some(due),
            true => self.lost = true,
        }
    }

    /// A slot's call is under way no more.
    fn end(&mut self, slot: usize) -> Told<W> {
        let mut told = Told::new();
        if self.due[slot].take().is_none() {
            // The session has ended meanwhile.
            return told;
        }
        match self.for_a_place.pop_front() {
            Some(next) => told.push(next),
            None => self.places -= 1,
        }
        let mut index = 0;
        while let Some((calls, _)) = self.for_replies.get_mut(index) {
            *calls &= !(1 << slot);
            match *calls {
                0 => told.push(self.for_replies.swap_remove(index).1),
                _ => index += 1,
            }
        }
        told
    }

    fn has_waiters(&self) -> bool {
        !self.for_a_place.is_empty() || !self.for_replies.is_empty()
    }

    /// A call that is under way still is to be answered until another time.
    fn renew(&mut self, slot: usize, due: Instant) {
        if let Some(before) = &mut self.due[slot] {
            *before = due;
        }
    }

    /// The calls under way that were to be answered before `time`.
    fn overdue(&self, time: Instant) -> Slots {
        set_of((0..CALL_SLOTS).filter(|&slot| self.due[slot].is_some_and(|due| due < time)))
    }

    /// The session is over. Gives all that wait.
    fn fail(&mut self) -> Told<W> {
        self.over = true;
        self.lost |= self.under_way() != 0;
        self.due = [None; CALL_SLOTS];
        let for_replies = self.for_replies.drain(..).map(|(_, waiter)| waiter);
        self.for_a_place.drain(..).chain(for_replies).collect()
    }
}

/// The started calls of a session. Those who wait have a ticket, with one request posted on `lane`, which the caller of
/// [`end`](Self::end) and [`fail`](Self::fail) completes.
#[derive(Debug)]
pub(crate) struct StartedCalls {
    lane: usize,
    sink: Option<StartedReply>,
    book: Mutex<Book<Arc<Ticket>>>,
    /// The book's, for a look without its lock.
    places: AtomicUsize,
}

impl StartedCalls {
    pub(super) fn new(lane: usize, sink: Option<StartedReply>) -> StartedCalls {
        StartedCalls { lane, sink, book: Mutex::default(), places: AtomicUsize::new(0) }
    }

    /// A place for one more call: `None` now, or the ticket of one's turn.
    ///
    /// # Errors
    /// The session is over.
    pub(super) fn place(&self) -> Result<Option<Arc<Ticket>>, RequestError> {
        self.ask(Book::ask_for_a_place)
    }

    /// The ticket of the replies to all calls under way; `None` if there is no such call.
    ///
    /// # Errors
    /// The session is over, and calls were under way when it ended.
    pub(super) fn replies(&self) -> Result<Option<Arc<Ticket>>, RequestError> {
        self.ask(Book::ask_for_replies)
    }

    fn ask(
        &self,
        ask: impl FnOnce(&mut Book<Arc<Ticket>>, &dyn Fn() -> Arc<Ticket>) -> Asked,
    ) -> Result<Option<Arc<Ticket>>, RequestError> {
        let ticket = Ticket::of_this_thread(1);
        let waiter = || {
            ticket.posted_on(self.lane);
            Arc::clone(&ticket)
        };
        let mut book = self.book.lock();
        let asked = ask(&mut book, &waiter);
        self.places.store(book.places, Ordering::Relaxed);
        drop(book);
        match asked {
            Asked::Now => Ok(None),
            Asked::Later => Ok(Some(ticket)),
            Asked::Over => Err(RequestError::Disconnected),
        }
    }

    /// A call with a place has its slot, and is to be answered until `due`.
    pub(super) fn begin(&self, slot: usize, due: Instant) {
        self.book.lock().begin(slot, due);
    }

    /// A slot's call is under way no more: its reply is where it belongs. Gives those who are to be told.
    pub(super) fn end(&self, slot: usize) -> Told<Arc<Ticket>> {
        let mut book = self.book.lock();
        let told = book.end(slot);
        self.places.store(book.places, Ordering::Relaxed);
        told
    }

    /// Calls that are under way, or about to be.
    pub(super) fn count(&self) -> usize {
        self.places.load(Ordering::Relaxed)
    }

    /// True if somebody waits for one.
    pub(super) fn has_waiters(&self) -> bool {
        self.book.lock().has_waiters()
    }

    /// A slot's call, if it is under way still, is to be answered until `due`.
    pub(super) fn renew(&self, slot: usize, due: Instant) {
        self.book.lock().renew(slot, due);
    }

    /// The calls under way that were to be answered before `time`. Cheap while there is none.
    pub(super) fn overdue(&self, time: Instant) -> Slots {
        if self.count() == 0 { 0 } else { self.book.lock().overdue(time) }
    }

    /// The session is over. Gives those who are to be told so.
    pub(super) fn fail(&self) -> Told<Arc<Ticket>> {
        self.book.lock().fail()
    }

    /// Hands an outcome to who wants it. No lock is held.
    pub(super) fn report(&self, outcome: Result<&[u8], RequestError>) {
        if let Some(StartedReply(sink)) = &self.sink {
            as_callback(|| sink(outcome));
        }
    }
}

#[cfg(test)]
mod tests;
