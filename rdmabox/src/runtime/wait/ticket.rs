//! A ticket: the count of a caller's unfinished requests, the first error, and the owner to
//! notify.
//!
//! The owner is a blocked thread, a task to wake, or a callback to run. Tickets are reused: those
//! of blocking calls by their thread, the others by their session.
//!
//! # Concurrency
//! Any thread may complete a request. The locks of `owner` and `error` are leaves. Wakers and
//! callbacks are neither run nor dropped under them.

use std::{
    cell::RefCell,
    fmt,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    error::RequestError,
    runtime::trace,
    sync::{
        Mutex, Thread,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
        current, now, thread_local, thread_number,
    },
};

/// Lane limit of a session, which also bounds its completion queues.
pub(crate) const MAX_LANES: usize = 16;

/// Tickets kept per thread. A thread uses one at a time, or one per session (`across`). Other
/// threads may briefly hold the previous ones.
const KEPT_PER_THREAD: usize = 20;

/// A function that is called with the outcome.
pub(crate) type Callback = Box<dyn FnOnce(Result<(), RequestError>) + Send>;

/// The party that is notified of the end.
enum Owner {
    Unset,
    Thread(Thread),
    Task(Waker),
    Callback(Callback),
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Unset => "Unset",
            Owner::Thread(_) => "Thread",
            Owner::Task(_) => "Task",
            Owner::Callback(_) => "Callback",
        })
    }
}

/// The notification that a completing thread owes the ticket's owner. It is delivered without any
/// lock.
#[must_use = "the owner waits for it"]
pub(crate) enum Notice {
    Nothing,
    Unpark(Thread),
    Wake(Waker),
    Run(Callback, Result<(), RequestError>),
}

/// A party that waits for completions of a completion queue.
pub(crate) trait CqWaiter: Send + Sync + fmt::Debug {
    /// Returns true if none of its requests is outstanding on completion queue `cq`.
    fn is_settled_on(&self, cq: usize) -> bool;
    /// Wakes it, so that it checks its state.
    fn wake(&self);
}

#[derive(Debug)]
pub(crate) struct Ticket {
    remaining: AtomicUsize,
    /// Number of posted, uncompleted requests per completion queue.
    posted: [AtomicU32; MAX_LANES],
    failed: AtomicBool,
    error: Mutex<Option<RequestError>>,
    owner: Mutex<Owner>,
    /// Number of the owning thread ([`thread_number`]); 0 for none.
    thread: AtomicU64,
    /// True if no thread waits for it, so that a poller has to complete it.
    detached: AtomicBool,
    /// True if the requests outlive the call that makes them.
    outlives_call: bool,
    /// Time of submission.
    started: Instant,
    /// Operation timeout of the requests.
    timeout: Duration,
    /// Request of the program that they are part of, for a trace; 0 for none.
    traced_as: u64,
}

impl Ticket {
    fn new(outlives_call: bool) -> Ticket {
        Ticket {
            remaining: AtomicUsize::new(0),
            posted: std::array::from_fn(|_| AtomicU32::new(0)),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            owner: Mutex::new(Owner::Unset),
            thread: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            outlives_call,
            started: now(),
            timeout: Duration::ZERO,
            traced_as: 0,
        }
    }

    /// Returns a ticket for `requests` requests, owned by the calling thread. Normally reuses a
    /// ticket of this thread, without an allocation.
    pub(crate) fn of_this_thread(requests: usize) -> Arc<Ticket> {
        Ticket::of_this_thread_within(requests, Duration::ZERO)
    }

    /// Returns a ticket as [`of_this_thread`](Self::of_this_thread), for requests with an operation
    /// timeout.
    pub(crate) fn of_this_thread_within(requests: usize, timeout: Duration) -> Arc<Ticket> {
        thread_local! {
            static KEPT_TICKETS: RefCell<Vec<Arc<Ticket>>> = const { RefCell::new(Vec::new()) };
        }
        let fresh = || {
            let ticket = Ticket::new(false);
            *ticket.owner.lock() = Owner::Thread(current());
            ticket.thread.store(thread_number(), Ordering::Relaxed);
            ticket
        };
        let reused = KEPT_TICKETS.try_with(|kept| {
            let mut kept = kept.try_borrow_mut().ok()?;
            // Skips a ticket that another thread still holds, if only to drop it.
            for place in kept.iter_mut() {
                if let Some(ticket) = Arc::get_mut(place) {
                    ticket.renew(requests, timeout);
                    return Some(Arc::clone(place));
                }
            }
            let mut ticket = fresh();
            ticket.renew(requests, timeout);
            let ticket = Arc::new(ticket);
            if kept.len() < KEPT_PER_THREAD {
                kept.push(Arc::clone(&ticket));
            }
            Some(ticket)
        });
        reused.ok().flatten().unwrap_or_else(|| {
            let mut ticket = fresh();
            ticket.renew(requests, timeout);
            Arc::new(ticket)
        })
    }

    /// Returns a ticket without an owner for `requests` requests. Reuses `old` if no other thread
    /// holds it.
    pub(crate) fn unowned(requests: usize, timeout: Duration, old: Option<Arc<Ticket>>) -> Arc<Ticket> {
        let mut ticket = old.unwrap_or_else(|| Arc::new(Ticket::new(true)));
        if Arc::get_mut(&mut ticket).is_none() {
            ticket = Arc::new(Ticket::new(true));
        }
        if let Some(unshared) = Arc::get_mut(&mut ticket) {
            unshared.renew(requests, timeout);
            *unshared.owner.lock() = Owner::Unset;
            unshared.thread.store(0, Ordering::Relaxed);
            unshared.detached.store(false, Ordering::Relaxed);
        }
        ticket
    }

    fn renew(&mut self, requests: usize, timeout: Duration) {
        debug_assert!((0..MAX_LANES).all(|cq| self.is_settled_on(cq)));
        self.remaining.store(requests, Ordering::Relaxed);
        if self.failed.swap(false, Ordering::Relaxed) {
            *self.error.lock() = None;
        }
        (self.started, self.timeout) = (now(), timeout);
        self.traced_as = trace::current_request();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 0
    }

    /// Returns the time of submission.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Returns the operation timeout of the requests.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the request of the program that the requests are part of, 0 for none.
    pub(crate) fn traced_as(&self) -> u64 {
        self.traced_as
    }

    /// Counts a request that is about to be posted on a lane of completion queue `cq`.
    pub(crate) fn posted_on(&self, cq: usize) {
        self.posted[cq].fetch_add(1, Ordering::SeqCst);
    }

    /// Returns a completion queue on which requests are outstanding.
    pub(crate) fn unsettled_cq(&self) -> Option<usize> {
        (0..MAX_LANES).find(|cq| !self.is_settled_on(*cq))
    }

    /// Returns true if only one request is unfinished. The thread that completes it then knows that
    /// it is the last.
    pub(crate) fn has_one_part_left(&self) -> bool {
        self.remaining.load(Ordering::Acquire) == 1
    }

    /// Completes one request, whose loan has been returned. `cq` is `None` if it was never posted.
    /// Returns the notification to deliver, and whether this was the last request.
    pub(crate) fn complete_one(&self, cq: Option<usize>, result: Result<(), RequestError>) -> (Notice, bool) {
        if let Err(e) = result {
            self.error.lock().get_or_insert(e);
            self.failed.store(true, Ordering::Release);
        }
        let all = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        let settled = cq.is_some_and(|cq| self.posted[cq].fetch_sub(1, Ordering::AcqRel) == 1);
        if !(all || settled) || self.is_owned_by_current_thread() {
            return (Notice::Nothing, all);
        }
        let mut owner = self.owner.lock();
        let notice = match &*owner {
            Owner::Unset => Notice::Nothing,
            Owner::Thread(thread) => Notice::Unpark(thread.clone()),
            Owner::Task(_) | Owner::Callback(_) if !all => Notice::Nothing,
            Owner::Task(_) | Owner::Callback(_) => match std::mem::replace(&mut *owner, Owner::Unset) {
                Owner::Task(waker) => Notice::Wake(waker),
                Owner::Callback(callback) => Notice::Run(callback, self.result()),
                Owner::Unset | Owner::Thread(_) => Notice::Nothing,
            },
        };
        (notice, all)
    }

    /// Takes back the count of a request that was posted on completion queue `cq` and will be
    /// posted again. Returns the notification to deliver.
    pub(crate) fn unpost(&self, cq: usize) -> Notice {
        let settled = self.posted[cq].fetch_sub(1, Ordering::AcqRel) == 1;
        if settled
            && !self.is_owned_by_current_thread()
            && let Owner::Thread(thread) = &*self.owner.lock()
        {
            // The thread may wait for completions of `cq`.
            return Notice::Unpark(thread.clone());
        }
        Notice::Nothing
    }

    /// Returns the outcome of a finished ticket.
    pub(crate) fn result(&self) -> Result<(), RequestError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    /// Returns true if the requests outlive the call that makes them.
    pub(crate) fn outlives_call(&self) -> bool {
        self.outlives_call
    }

    /// Returns true if the calling thread owns it.
    pub(crate) fn is_owned_by_current_thread(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == thread_number()
    }

    /// Returns true if it is owned by a thread, which waits for it or will.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.load(Ordering::SeqCst) != 0
    }

    /// Returns true if no thread waits for it.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::SeqCst)
    }

    /// Makes the calling thread its owner.
    pub(crate) fn set_owner_thread(&self) {
        drop(self.change_owner(Owner::Thread(current())));
        self.thread.store(thread_number(), Ordering::SeqCst);
    }

    /// Ends the ownership of the calling thread. The ticket then has no owner.
    pub(crate) fn clear_owner(&self) {
        self.thread.store(0, Ordering::SeqCst);
        drop(self.change_owner(Owner::Unset));
    }

    /// Replaces the owner and returns the old one. The caller drops it without the lock, because a
    /// waker's drop is executor code.
    #[must_use]
    fn change_owner(&self, owner: Owner) -> Owner {
        std::mem::replace(&mut *self.owner.lock(), owner)
    }

    /// Makes a task its owner, to be woken at the end. Returns true, without waking the task, if
    /// the ticket is done already.
    pub(crate) fn set_owner_task(&self, waker: &Waker) -> bool {
        if self.is_done() {
            return true;
        }
        if !matches!(&*self.owner.lock(), Owner::Task(old) if old.will_wake(waker)) {
            drop(self.change_owner(Owner::Task(waker.clone())));
        }
        self.detached.store(true, Ordering::SeqCst);
        // Either this load sees the last completion, or that completion sees the waker.
        let done = self.is_done();
        if done {
            // The ticket is kept for reuse, and must not keep the task alive.
            drop(self.change_owner(Owner::Unset));
        }
        done
    }

    /// Makes a callback its owner, to be run at the end. Returns the callback if the ticket is done
    /// already.
    pub(crate) fn set_owner_callback(&self, callback: Callback) -> Result<(), Callback> {
        let mut owner = self.owner.lock();
        if self.is_done() {
            return Err(callback);
        }
        // The last completion takes the lock after this block.
        let old = std::mem::replace(&mut *owner, Owner::Callback(callback));
        drop(owner);
        drop(old);
        self.detached.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl CqWaiter for Ticket {
    fn is_settled_on(&self, cq: usize) -> bool {
        self.posted[cq].load(Ordering::SeqCst) == 0
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

    /// A task that records, when its last waker is dropped, whether the ticket's lock is free.
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
    fn a_waker_is_dropped_without_the_lock_when_the_owner_changes() {
        let ticket = Ticket::unowned(1, Duration::ZERO, None);
        let free = Arc::new(Mutex::new(Vec::new()));
        let set_owner_task = || {
            let task = Task { ticket: Arc::clone(&ticket), free: Arc::clone(&free) };
            ticket.set_owner_task(&Waker::from(Arc::new(task)))
        };
        assert!(!set_owner_task());
        // The owner is replaced by another task, by a thread, and by a callback.
        assert!(!set_owner_task());
        assert_eq!(*free.lock(), [true]);
        ticket.set_owner_thread();
        assert_eq!(*free.lock(), [true; 2]);
        assert!(!set_owner_task());
        assert!(ticket.set_owner_callback(Box::new(|_| {})).is_ok());
        assert_eq!(*free.lock(), [true; 3]);
        assert!(!set_owner_task());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (notice, last) = ticket.complete_one(None, Ok(()));
                assert!(last && matches!(notice, Notice::Wake(_)));
            });
        });
        assert_eq!(*free.lock(), [true; 4]);
        assert!(set_owner_task());
        assert_eq!(*free.lock(), [true; 5]);
    }

    /// Catches a completion on a thread that waited before, and is still taken for the owner.
    #[test]
    fn a_thread_that_waited_wakes_the_task_that_awaits_now() {
        let ticket = Ticket::unowned(1, Duration::ZERO, None);
        let task = Task { ticket: Arc::clone(&ticket), free: Arc::default() };
        ticket.set_owner_thread();
        assert!(ticket.has_thread() && ticket.is_owned_by_current_thread());
        ticket.clear_owner();
        assert!(!ticket.has_thread() && !ticket.is_owned_by_current_thread());
        assert!(!ticket.set_owner_task(&Waker::from(Arc::new(task))));
        let (notice, last) = ticket.complete_one(None, Ok(()));
        assert!(last && matches!(notice, Notice::Wake(_)));
    }
}
