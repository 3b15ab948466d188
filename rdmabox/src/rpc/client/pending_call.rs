//! Calls that no thread makes: each is a state that its owner polls, waits for or drops.
//!
//! A pending call waits in a queue for a slot, so that starting it never blocks. Its request and
//! its reply are messages. The thread that finds the reply moves it to the call's state, returns
//! the slot, and sends the next queued call. A dropped call that was sent keeps its slot until its
//! reply arrives.
//!
//! Pending calls hold at most 8 of 16 slots. Four stay free for blocking callers, unless no pending
//! call has a slot. A caller that finds no slot wakes the poller, because no thread may be polling
//! for the calls that hold the slots.
//!
//! # Concurrency
//! Called from any thread. Lock order: `queue`, then the state of a call or `RpcClient::free`.
//! Wakers are run without locks.

mod call_state;

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

pub(crate) use call_state::CallState;
use call_state::Waiter;

use super::{Owner, RpcClient, check_length};
use crate::{
    error::RequestError,
    rpc::message::{CALL_SLOTS, Header, MAX_WAITING},
    runtime::{CqSource, CqUser, CqWaiter, Interruption, WaitOutcome},
    verbs::{VerbsError, WorkCompletion},
};

/// Limit of the pending calls that have a slot.
const MAX_SENT: usize = CALL_SLOTS / 2;
/// Slots that pending calls leave to other calls.
const SPARED_SLOTS: usize = CALL_SLOTS / 4;

/// Calls that wait for a slot.
#[derive(Debug, Default)]
struct Queue {
    calls: VecDeque<Arc<CallState>>,
    /// Number of pending calls that have a slot.
    sent: usize,
}

/// The pending calls of a session, and the thread that polls for them.
#[derive(Debug, Default)]
pub(super) struct PendingCalls {
    queue: Mutex<Queue>,
    /// Length of the queue, readable without the lock.
    queued: AtomicUsize,
    /// Set by the first pending call.
    poller: OnceLock<Arc<CallPoller>>,
}

/// The thread that polls for pending calls. It polls while a call is queued or sent, and parks
/// otherwise.
#[derive(Debug)]
struct CallPoller {
    client: Weak<RpcClient>,
    /// Number of calls that are queued or sent.
    open: AtomicUsize,
    /// True if calls may be open. Set after `open` was raised, and cleared before the last check.
    wanted: AtomicBool,
    /// Set if it has to check for overdue calls sooner.
    interruption: Interruption,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
    stopping: AtomicBool,
}

impl CallPoller {
    fn is_idle(&self) -> bool {
        self.open.load(Ordering::SeqCst) == 0 || self.stopping.load(Ordering::SeqCst)
    }
}

impl CqWaiter for CallPoller {
    fn is_settled_on(&self, _: usize) -> bool {
        if self.interruption.is_set() {
            // The poller waits again at once, and is still wanted.
            return true;
        }
        if !self.is_idle() {
            return false;
        }
        self.wanted.store(false, Ordering::SeqCst);
        // A thread that began a call before this store saw `wanted` set and woke no poller. This
        // check sees its call.
        if self.is_idle() {
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

impl RpcClient {
    /// Begins a call that the owner of the returned state polls or waits for. Never blocks.
    pub(crate) fn begin_pending(self: &Arc<Self>, request: Vec<u8>, timeout: Duration) -> Arc<CallState> {
        let length = check_length(&request);
        let call = Arc::new(CallState::queued(request, timeout));
        if let Err(e) = length.and_then(|()| self.enqueue(&call)) {
            self.stats.errors.inc();
            // It has no waiter yet.
            let _ = call.end(Err(e));
            return call;
        }
        self.send_queued();
        if self.is_dead() {
            // Queued too late to be failed with the others.
            self.fail_queued();
        }
        call
    }

    fn enqueue(self: &Arc<Self>, call: &Arc<CallState>) -> Result<(), RequestError> {
        if self.is_dead() {
            return Err(RequestError::Disconnected);
        }
        let mut queue = self.pending.queue.lock();
        if queue.calls.len() >= MAX_WAITING {
            // Calls that their owners have dropped do not count.
            let before = queue.calls.len();
            queue.calls.retain(|call| !call.is_done());
            self.close_calls(before - queue.calls.len());
        }
        if queue.calls.len() >= MAX_WAITING {
            return Err(RequestError::Invalid(format!("{MAX_WAITING} calls are waiting already")));
        }
        self.stats.calls.inc();
        self.call_poller().open.fetch_add(1, Ordering::SeqCst);
        queue.calls.push_back(Arc::clone(call));
        self.pending.queued.store(queue.calls.len(), Ordering::SeqCst);
        Ok(())
    }

    fn call_poller(self: &Arc<Self>) -> &CallPoller {
        self.pending.poller.get_or_init(|| {
            Arc::new(CallPoller {
                client: Arc::downgrade(self),
                open: AtomicUsize::new(0),
                wanted: AtomicBool::new(false),
                interruption: Interruption::default(),
                thread: OnceLock::new(),
                handle: Mutex::new(None),
                stopping: AtomicBool::new(false),
            })
        })
    }

    /// Returns true if calls wait for a slot.
    pub(super) fn has_queued(&self) -> bool {
        self.pending.queued.load(Ordering::SeqCst) > 0
    }

    /// Sends queued calls as long as there are slots for them.
    pub(super) fn send_queued(&self) {
        loop {
            let (slot, call, mut request) = {
                let mut queue = self.pending.queue.lock();
                let Some(first) = queue.calls.front() else { return };
                if first.is_done() {
                    // Dropped by its owner.
                    queue.calls.pop_front();
                    self.close_calls(1);
                    self.pending.queued.store(queue.calls.len(), Ordering::SeqCst);
                    continue;
                }
                let Some(slot) = self.try_pending_slot(queue.sent) else { return };
                let taken = queue.calls.pop_front().and_then(|call| Some((call.begin()?, call)));
                self.pending.queued.store(queue.calls.len(), Ordering::SeqCst);
                let Some((request, call)) = taken else {
                    // Dropped by its owner meanwhile.
                    self.close_calls(1);
                    self.free.lock().push(slot);
                    self.freed.notify_one();
                    continue;
                };
                queue.sent += 1;
                (slot, call, request)
            };
            self.slots[slot].lock().begin(Owner::Pending(call), 0);
            self.send_or_fail(Header::plain(slot), &request);
            // A reply in this slot can use the buffer of the request.
            request.clear();
            let mut entry = self.slots[slot].lock();
            if entry.reply.capacity() == 0 {
                entry.reply = request;
            }
        }
    }

    /// Takes a slot for a pending call, if `sent` pending calls have one.
    fn try_pending_slot(&self, sent: usize) -> Option<usize> {
        let mut free = self.free.lock();
        let may = sent == 0 || (sent < MAX_SENT && free.len() > SPARED_SLOTS);
        if may && !self.is_dead() { free.pop() } else { None }
    }

    /// Ends the call in a slot, and returns the slot. The slot has the reply, if there is one.
    pub(super) fn finish_pending(&self, slot: usize, call: &CallState, result: Result<(), RequestError>) {
        if result.is_ok() {
            self.stats.call_latency.record(call.age());
        } else {
            self.stats.errors.inc();
        }
        let bytes = std::mem::take(&mut self.slots[slot].lock().reply);
        let waiter = call.end(result.map(|()| bytes));
        self.pending.queue.lock().sent -= 1;
        self.close_calls(1);
        self.give_slot(slot);
        if !matches!(waiter, Waiter::Unset) {
            self.stats.wakeups.inc();
        }
        waiter.notify();
    }

    fn close_calls(&self, count: usize) {
        if let Some(poller) = self.pending.poller.get() {
            poller.open.fetch_sub(count, Ordering::SeqCst);
        }
    }

    /// Fails the calls that have no slot, after the session has failed.
    pub(super) fn fail_queued(&self) {
        let calls = std::mem::take(&mut self.pending.queue.lock().calls);
        self.pending.queued.store(0, Ordering::SeqCst);
        let open = calls.iter().filter(|call| !call.is_done());
        let waiters: Vec<Waiter> = open.map(|call| call.end(Err(RequestError::Disconnected))).collect();
        self.close_calls(calls.len());
        waiters.into_iter().for_each(Waiter::notify);
    }

    /// Drops a call: it is not sent if it is still queued, and its reply is not kept.
    pub(crate) fn cancel_pending(&self, call: &CallState) {
        call.cancel();
    }

    /// Returns the outcome of a call, if there is one. Otherwise `waker` is woken at the end.
    pub(crate) fn poll_pending(
        &self,
        call: &CallState,
        waker: &Waker,
    ) -> Poll<Result<Vec<u8>, RequestError>> {
        let outcome = call.poll(waker);
        if outcome.is_pending() {
            self.wake_call_poller();
        }
        outcome
    }

    /// Blocks until a call is done, at most until `deadline`. Returns true if it is done. Fails the
    /// session if the call is overdue.
    pub(crate) fn wait_pending(&self, call: &Arc<CallState>, deadline: Instant) -> bool {
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        call.set_waiting(true);
        while !call.is_done() {
            match self.cq_waiters.wait_as(call, deadline.min(call.due()), &self.stats, &dispatch) {
                WaitOutcome::Done => {}
                WaitOutcome::TimedOut if Instant::now() >= call.due() => self.fail_overdue_call(call),
                WaitOutcome::TimedOut => break,
                WaitOutcome::Broken(e) => self.cq_broken(&e),
            }
        }
        call.set_waiting(false);
        call.is_done()
    }

    /// Fails the session because of a call that has no reply within its timeout.
    pub(crate) fn fail_overdue_call(&self, call: &CallState) {
        if call.time_out() {
            self.fail();
        }
    }

    /// Makes sure that a thread polls for the open pending calls, if there are any.
    pub(super) fn wake_call_poller(&self) {
        let Some(poller) = self.pending.poller.get() else { return };
        if poller.open.load(Ordering::SeqCst) == 0 || poller.wanted.swap(true, Ordering::SeqCst) {
            return;
        }
        if poller.thread.get().is_some() {
            return poller.wake();
        }
        let mut handle = poller.handle.lock();
        if handle.is_some() || poller.stopping.load(Ordering::SeqCst) {
            return poller.wake();
        }
        let Some(client) = poller.client.upgrade() else { return };
        let own = Arc::clone(poller);
        let run = move || client.run_call_poller(&own);
        match thread::Builder::new().name("rdmabox-calls".into()).spawn(run) {
            Ok(started) => {
                let _ = poller.thread.set(started.thread().clone());
                *handle = Some(started);
            }
            Err(e) => {
                drop(handle);
                log::error!("cannot start a poller thread: {e}");
                self.fail();
            }
        }
    }

    fn run_call_poller(&self, poller: &Arc<CallPoller>) {
        // The starting thread may not have set this yet, and other threads may have to wake this
        // thread from now on.
        let _ = poller.thread.set(thread::current());
        let dispatch = |wcs: &[WorkCompletion]| self.dispatch(wcs);
        while !poller.stopping.load(Ordering::SeqCst) {
            if !poller.wanted.load(Ordering::SeqCst) {
                thread::park();
                continue;
            }
            poller.interruption.clear();
            // A call with a shorter timeout may begin meanwhile.
            let check = Instant::now() + self.shortest_timeout.check_interval();
            let until = self.first_due().map_or(check, |due| due.min(check));
            match self.cq_waiters.wait_as(poller, until, &self.stats, &dispatch) {
                WaitOutcome::Done => {}
                WaitOutcome::TimedOut => self.fail_if_overdue(),
                WaitOutcome::Broken(e) => self.cq_broken(&e),
            }
        }
    }

    /// Returns the calls that are queued or sent. A queued call that its owner has dropped is none.
    fn open_calls(&self) -> Vec<Arc<CallState>> {
        let queue = self.pending.queue.lock();
        let mut calls: Vec<_> = queue.calls.iter().filter(|call| !call.is_done()).map(Arc::clone).collect();
        drop(queue);
        calls.extend(self.slots.iter().filter_map(|slot| match &slot.lock().owner {
            Some(Owner::Pending(call)) => Some(Arc::clone(call)),
            _ => None,
        }));
        calls
    }

    /// Returns the time at which the first call is overdue.
    fn first_due(&self) -> Option<Instant> {
        self.open_calls().iter().map(|call| call.due()).min()
    }

    /// Fails the session if a call is overdue, even if its owner has dropped it.
    fn fail_if_overdue(&self) {
        let now = Instant::now();
        let overdue: Vec<_> = self.open_calls().into_iter().filter(|call| now >= call.due()).collect();
        if overdue.iter().filter(|call| call.time_out()).count() > 0 {
            self.fail();
        }
    }

    /// Makes the poller sleep anew, because a call with a shorter timeout may begin.
    pub(super) fn interrupt_call_poller(&self) {
        if let Some(poller) = self.pending.poller.get() {
            poller.interruption.set();
            self.cq_waiters.wake();
            // Waits for a thread that is starting the poller, so that the wake reaches it.
            drop(poller.handle.lock());
            poller.wake();
        }
    }

    /// Makes the poller stop, after the session has failed.
    pub(super) fn stop_call_poller(&self) {
        if let Some(poller) = self.pending.poller.get() {
            poller.stopping.store(true, Ordering::SeqCst);
            // Waits for a thread that is starting the poller, so that the wake reaches it.
            drop(poller.handle.lock());
            poller.wake();
        }
    }

    /// Returns the queue that completes pending calls.
    pub(crate) fn source(&self) -> CqSource<'_> {
        CqSource { cq_waiters: &self.cq_waiters, stats: &self.stats, user: self }
    }
}

impl CqUser for RpcClient {
    fn dispatch(&self, wcs: &[WorkCompletion]) {
        RpcClient::dispatch(self, wcs);
    }

    fn cq_broken(&self, error: &VerbsError) {
        log::error!("message completion queue: {error}");
        self.fail();
    }
}
