//! What a caller waits on: a count of requests that are not done, the first error, and who is to be told.
//!
//! One mechanism behind three front doors: the owner of a ticket is a thread that blocks, a task to be woken, or a
//! callback to be run. Tickets are reused: those of blocking calls by their thread, the others by their session.

use std::{cell::RefCell, fmt, sync::Arc, task::Waker, time::Instant};

use crate::{
    session::RequestError,
    sync::{
        Mutex, Thread,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        current, now, thread_local, thread_number,
    },
};

/// Most lanes of a session.
pub(crate) const MAX_LANES: usize = 16;

/// Tickets that each thread keeps: one is of use at a time, and others may still hold the last ones.
const KEPT_EACH: usize = 4;

/// To be run with the outcome.
pub(crate) type Callback = Box<dyn FnOnce(Result<(), RequestError>) + Send>;

/// Who is told.
enum Owner {
    Nobody,
    Thread(Thread),
    Task(Waker),
    Callback(Callback),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Nobody => "Nobody",
            Owner::Thread(_) => "Thread",
            Owner::Task(_) => "Task",
            Owner::Callback(_) => "Callback",
        })
    }
}

/// What the one who finished a request has to do for the ticket's owner, when it holds no lock.
#[must_use = "the owner waits for it"]
pub(crate) enum Notice {
    Nothing,
    Unpark(Thread),
    Wake(Waker),
    Run(Callback, Result<(), RequestError>),
}

/// Somebody whom the completions of a lane concern.
pub(crate) trait Attendee: Send + Sync + fmt::Debug {
    /// True if nothing of it is outstanding on `lane`.
    fn is_settled_on(&self, lane: usize) -> bool;
    /// Makes it look.
    fn wake(&self);
}

#[derive(Debug)]
pub(crate) struct Ticket {
    remaining: AtomicUsize,
    /// How many of its requests are posted on each lane.
    posted: [AtomicU32; MAX_LANES],
    failed: AtomicBool,
    error: Mutex<Option<RequestError>>,
    owner: Mutex<Owner>,
    /// The thread that owns it, as [`thread_number`]; zero for none.
    thread: AtomicU64,
    /// Nobody polls for it: its completions have to be attended.
    detached: AtomicBool,
    /// Its requests outlive the call that makes them.
    outlives_call: bool,
    /// When it was submitted.
    started: Instant,
}

impl Ticket {
    fn new(outlives_call: bool) -> Ticket {
        Ticket {
            remaining: AtomicUsize::new(0),
            posted: std::array::from_fn(|_| AtomicU32::new(0)),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            owner: Mutex::new(Owner::Nobody),
            thread: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            outlives_call,
            started: now(),
        }
    }

    /// A ticket of the calling thread for `requests` requests. Allocates nothing as a rule: each thread keeps a few.
    pub(crate) fn of_this_thread(requests: usize) -> Arc<Ticket> {
        thread_local! {
            static KEPT: RefCell<Vec<Arc<Ticket>>> = const { RefCell::new(Vec::new()) };
        }
        let fresh = || {
            let ticket = Ticket::new(false);
            *ticket.owner.lock() = Owner::Thread(current());
            ticket.thread.store(thread_number(), Ordering::Relaxed);
            ticket
        };
        let reused = KEPT.try_with(|kept| {
            let mut kept = kept.try_borrow_mut().ok()?;
            // One that somebody still holds, if only to drop it, is left alone.
            for place in kept.iter_mut() {
                if let Some(ticket) = Arc::get_mut(place) {
                    ticket.renew(requests);
                    return Some(Arc::clone(place));
                }
            }
            let mut ticket = fresh();
            ticket.renew(requests);
            let ticket = Arc::new(ticket);
            if kept.len() < KEPT_EACH {
                kept.push(Arc::clone(&ticket));
            }
            Some(ticket)
        });
        reused.ok().flatten().unwrap_or_else(|| {
            let mut ticket = fresh();
            ticket.renew(requests);
            Arc::new(ticket)
        })
    }

    /// A ticket that nobody owns yet, for `requests` requests; in `old` if nobody else holds that.
    pub(crate) fn of_nobody(requests: usize, old: Option<Arc<Ticket>>) -> Arc<Ticket> {
        let mut ticket = old.unwrap_or_else(|| Arc::new(Ticket::new(true)));
        if Arc::get_mut(&mut ticket).is_none() {
            ticket = Arc::new(Ticket::new(true));
        }
        if let Some(unshared) = Arc::get_mut(&mut ticket) {
            unshared.renew(requests);
            *unshared.owner.lock() = Owner::Nobody;
            unshared.thread.store(0, Ordering::Relaxed);
            unshared.detached.store(false, Ordering::Relaxed);
        }
        ticket
    }

    fn renew(&mut self, requests: usize) {
        debug_assert!((0..MAX_LANES).all(|lane| self.is_settled_on(lane)));
        self.remaining.store(requests, Ordering::Relaxed);
        if self.failed.swap(false, Ordering::Relaxed) {
            *self.error.lock() = None;
        }
        self.started = now();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    /// When it was submitted.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Notes that one of its requests is posted on `lane`. Before the post.
    pub(crate) fn posted_on(&self, lane: usize) {
        self.posted[lane].fetch_add(1, Ordering::SeqCst);
    }

    /// A lane that something of it is outstanding on.
    pub(crate) fn unsettled_lane(&self) -> Option<usize> {
        (0..MAX_LANES).find(|lane| !self.is_settled_on(*lane))
    }

    /// True if only one of its requests is not done: whoever completes that one knows that it is the last.
    pub(crate) fn has_one_part_left(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 1
    }

    /// One request is done: posted on `lane`, or never posted. Its loan has to be back. Tells what is to be done for the
    /// owner, and whether this was the last.
    pub(crate) fn complete_one(
        &self,
        lane: Option<usize>,
        result: Result<(), RequestError>,
    ) -> (Notice, bool) {
        if let Err(e) = result {
            self.error.lock().get_or_insert(e);
            self.failed.store(true, Ordering::Release);
        }
        let all = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        let settled = lane.is_some_and(|lane| self.posted[lane].fetch_sub(1, Ordering::AcqRel) == 1);
        if !(all || settled) || self.is_mine() {
            return (Notice::Nothing, all);
        }
        let mut owner = self.owner.lock();
        let notice = match &*owner {
            Owner::Nobody => Notice::Nothing,
            Owner::Thread(thread) => Notice::Unpark(thread.clone()),
            Owner::Task(_) | Owner::Callback(_) if !all => Notice::Nothing,
            Owner::Task(_) | Owner::Callback(_) => match std::mem::replace(&mut *owner, Owner::Nobody) {
                Owner::Task(waker) => Notice::Wake(waker),
                Owner::Callback(callback) => Notice::Run(callback, self.result()),
                Owner::Nobody | Owner::Thread(_) => Notice::Nothing,
            },
        };
        (notice, all)
    }

    /// The outcome, once done.
    pub(crate) fn result(&self) -> Result<(), RequestError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    /// True if its requests outlive the call that makes them.
    pub(crate) fn outlives_call(&self) -> bool {
        self.outlives_call
    }

    /// True if the calling thread owns it.
    pub(crate) fn is_mine(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread_number()
    }

    /// True if a thread waits for it, or will.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.load(Ordering::SeqCst) != 0
    }

    /// True if nobody polls for it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::SeqCst)
    }

    /// Makes the calling thread its owner.
    pub(crate) fn own(&self) {
        drop(self.change_owner(Owner::Thread(current())));
        self.thread.store(thread_number(), Ordering::SeqCst);
    }

    /// Gives the old one, which is not to be dropped under the lock: that of a task is an executor's code.
    #[must_use]
    fn change_owner(&self, owner: Owner) -> Owner {
        std::mem::replace(&mut *self.owner.lock(), owner)
    }

    /// Makes a task its owner, to be woken when it is done. True if it is done already, and the task is not woken.
    pub(crate) fn own_by_task(&self, waker: &Waker) -> bool {
        if self.is_done() {
            return true;
        }
        if !matches!(&*self.owner.lock(), Owner::Task(old) if old.will_wake(waker)) {
            drop(self.change_owner(Owner::Task(waker.clone())));
        }
        self.detached.store(true, Ordering::SeqCst);
        // Either this sees the last completion, or that one sees the waker.
        let done = self.is_done();
        if done {
            // Idle tickets are kept, and a task need not be.
            drop(self.change_owner(Owner::Nobody));
        }
        done
    }

    /// Makes a callback its owner, to be run when it is done. Gives it back if it is done already.
    pub(crate) fn own_by_callback(&self, callback: Callback) -> Result<(), Callback> {
        let mut owner = self.owner.lock();
        if self.is_done() {
            return Err(callback);
        }
        // The last completion takes the lock after this.
        let old = std::mem::replace(&mut *owner, Owner::Callback(callback));
        drop(owner);
        drop(old);
        self.detached.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl Attendee for Ticket {
    fn is_settled_on(&self, lane: usize) -> bool {
        self.posted[lane].load(Ordering::SeqCst) == 0
    }

    fn wake(&self) {
        if let Owner::Thread(thread) = &*self.owner.lock() {
            thread.unpark();
        }
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(all(not(loom), test))]
mod tests {
    use std::task::Wake;

    use super::*;

    /// A task that notes, when the last of its wakers goes, whether the ticket's lock is free.
    struct Task {
        ticket: Arc<Ticket>,
        free: Arc<Mutex<Vec<bool>>>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            self.free.lock().push(self.ticket.owner.try_lock().is_some());
        }
    }

    #[test]
    fn a_task_goes_without_the_lock_and_as_soon_as_it_is_not_needed() {
        let ticket = Ticket::of_nobody(1, None);
        let free = Arc::new(Mutex::new(Vec::new()));
        let own_by_task = || {
            let task = Task { ticket: Arc::clone(&ticket), free: Arc::clone(&free) };
            ticket.own_by_task(&Waker::from(Arc::new(task)))
        };
        assert!(!own_by_task());
        // By another one, a thread, and a callback that comes too late.
        assert!(!own_by_task());
        assert_eq!(*free.lock(), [true]);
        ticket.own();
        assert_eq!(*free.lock(), [true; 2]);
        assert!(!own_by_task());
        assert!(ticket.own_by_callback(Box::new(|_| {})).is_ok());
        assert_eq!(*free.lock(), [true; 3]);
        assert!(!own_by_task());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (notice, last) = ticket.complete_one(None, Ok(()));
                assert!(last && matches!(notice, Notice::Wake(_)));
            });
        });
        assert_eq!(*free.lock(), [true; 4]);
        assert!(own_by_task());
        assert_eq!(*free.lock(), [true; 5]);
    }
}
