//! The answering side of RPC: a few threads serve the calls of all sessions.
//!
//! All message queue pairs share one completion queue. One thread at a time polls it, and executes
//! the calls that it finds ([`PollerHandoff`]). A client that fetches notifies the host if no
//! thread polls its request memory. The thread that gets the notification then polls that memory
//! ([`fetch_endpoint`]) until no requests arrive for a while. A [`Handler`] connects this module to
//! sessions.
//!
//! # Concurrency
//! Runs on the threads that [`RpcServer::start`] spawns. `spin` is held by the poller.
//! `endpoints` is not held during a call.

mod answer_counts;
mod core_avoidance;
mod deferred_reply;
mod endpoint;
mod fetch_endpoint;
mod poller_handoff;
mod reply;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

pub use self::answer_counts::AnswerCounts;
pub(crate) use self::deferred_reply::DeferredReplies;
pub(crate) use self::endpoint::{Endpoint, Handler, Reason};
use self::poller_handoff::PollerHandoff;
pub use self::reply::{Answer, CallError, PendingReply, Reply};
use self::{
    answer_counts::AnswerCounters,
    core_avoidance::CoreAvoidance,
    endpoint::{FetchState, FollowUp, Role, WorkerState},
    fetch_endpoint::ServeMessages,
};
use super::{
    fetch::{HostSlots, PollTime, SessionPoller},
    message::{CALL_SLOTS, DEFERRED_SLOTS, MAX_CALL, Messages, SEND_ID},
};
use crate::{
    polling::Spin,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

#[derive(Debug)]
struct Shared {
    cq: Arc<dyn CompletionQueue>,
    handoff: PollerHandoff,
    /// Used by the poller.
    spin: Mutex<Spin>,
    endpoints: RwLock<HashMap<u32, Arc<Endpoint>>>,
    /// Sessions whose request memory is polled.
    watch: SessionPoller<Endpoint>,
    poll_time: PollTime,
    answers: Arc<AnswerCounters>,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct RpcServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl RpcServer {
    /// Starts the threads. `poll_time` is that of sessions whose clients fetch.
    pub(crate) fn start(
        cq: Arc<dyn CompletionQueue>,
        threads: usize,
        poll_time: PollTime,
    ) -> std::io::Result<RpcServer> {
        let shared = Arc::new(Shared {
            cq,
            handoff: PollerHandoff::default(),
            spin: Mutex::default(),
            endpoints: RwLock::default(),
            watch: SessionPoller::default(),
            poll_time,
            answers: Arc::default(),
            stop: AtomicBool::new(false),
        });
        let mut server = RpcServer { shared, threads: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new()
                .name(format!("rdmabox-rpc-{index}"))
                .spawn(move || serve(&shared))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Returns the counts of answers.
    pub(crate) fn answers(&self) -> AnswerCounts {
        let AnswerCounters { messages, in_memory, written } = &*self.shared.answers;
        AnswerCounts { messages: messages.get(), in_memory: in_memory.get(), written: written.get() }
    }

    pub(crate) fn cq(&self) -> &Arc<dyn CompletionQueue> {
        &self.shared.cq
    }

    /// Serves the calls of `qp`, which is not connected yet. Deferred replies to numbered calls go
    /// to `deferred`. Calls whose requests are in `slots` are answered there.
    pub(crate) fn add(
        &self,
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        handler: Arc<dyn Handler>,
        deferred: Arc<DeferredReplies>,
        slots: Option<Arc<HostSlots>>,
    ) -> Result<(), VerbsError> {
        let messages = Messages::new(pd, qp, CALL_SLOTS)?;
        self.insert(Role::Calls, messages, handler, deferred, slots);
        Ok(())
    }

    /// Serves the queue pair for a session's deferred replies, which is not connected yet. The
    /// caller calls [`DeferredReplies::begin`] when it is.
    pub(crate) fn add_deferred(
        &self,
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        handler: Arc<dyn Handler>,
        deferred: Arc<DeferredReplies>,
    ) -> Result<(), VerbsError> {
        let messages = Messages::new(pd, qp, DEFERRED_SLOTS)?;
        let messages = self.insert(Role::DeferredReplies, messages, handler, Arc::clone(&deferred), None);
        deferred.set_messages(messages);
        Ok(())
    }

    fn insert(
        &self,
        role: Role,
        messages: Messages,
        handler: Arc<dyn Handler>,
        deferred: Arc<DeferredReplies>,
        slots: Option<Arc<HostSlots>>,
    ) -> Arc<Messages> {
        let number = messages.qp.qp_num();
        let messages = Arc::new(messages);
        let fetched = slots.map(|slots| FetchState::new(slots, self.shared.poll_time));
        let endpoint = Endpoint {
            role,
            messages: Arc::clone(&messages),
            handler,
            deferred,
            fetched,
            over: AtomicBool::new(false),
            answers: Arc::clone(&self.shared.answers),
        };
        self.shared.endpoints.write().insert(number, Arc::new(endpoint));
        messages
    }

    /// Removes and ends a queue pair.
    pub(crate) fn remove(&self, qp_num: u32) {
        let gone = self.shared.endpoints.write().remove(&qp_num);
        if let Some(endpoint) = gone {
            endpoint.over.store(true, Ordering::Release);
            endpoint.deferred.end();
            endpoint.messages.qp.to_error();
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.handoff.end();
        self.shared.cq.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    let (request, reply) = (Vec::with_capacity(MAX_CALL), Vec::with_capacity(MAX_CALL));
    let mut worker = WorkerState { request, reply, core_avoidance: CoreAvoidance::default() };
    let mut last_call = None;
    while shared.handoff.acquire(last_call)
        && let Some((wc, immediately)) = next_completion(shared)
    {
        shared.handoff.release_for_call(immediately);
        let began = Instant::now();
        handle(shared, &wc, &mut worker);
        last_call = Some(began.elapsed());
        // Between two rounds of polling memory, this thread also takes messages.
        shared.watch.run(&mut worker, &ServeMessages(shared));
    }
}

fn handle(shared: &Shared, wc: &WorkCompletion, worker: &mut WorkerState) {
    let endpoint = shared.endpoints.read().get(&wc.qp_num).cloned();
    let Some(endpoint) = endpoint else { return };
    if wc.status != WcStatus::Success {
        return endpoint.handler.end(Reason::Gone);
    }
    let handled = match endpoint.role {
        Role::Calls => endpoint.answer(wc, worker),
        Role::DeferredReplies => endpoint.acknowledge_reply(wc).map(|()| FollowUp::Nothing),
    };
    match handled {
        Ok(FollowUp::Nothing) => {}
        Ok(FollowUp::Poll) => shared.watch.wake(&endpoint),
        Err(reason) => endpoint.handler.end(Reason::Misbehaved(&reason)),
    }
}

/// Takes a relevant completion without blocking, unless another thread is the poller.
fn try_next(shared: &Shared) -> Option<WorkCompletion> {
    if !shared.handoff.try_acquire() {
        return None;
    }
    let mut wc = [WorkCompletion::EMPTY];
    // Errors are left to a thread that waits.
    let found = matches!(shared.cq.poll(&mut wc), Ok(1));
    if found && (wc[0].wr_id != SEND_ID || wc[0].status != WcStatus::Success) {
        shared.handoff.release_for_call(true);
        return Some(wc[0]);
    }
    shared.handoff.release();
    None
}

/// Waits for the next relevant completion. Returns it, and whether the first poll found it.
/// Returns `None` at the end. Called by the poller.
fn next_completion(shared: &Shared) -> Option<(WorkCompletion, bool)> {
    let mut spin = shared.spin.lock();
    while !shared.stop.load(Ordering::Acquire) {
        match poll(shared).and_then(|found| match found {
            Some(wc) => Ok(Some((wc, true))),
            None => wait_for_completion(shared, &mut spin).map(|found| found.map(|wc| (wc, false))),
        }) {
            Ok(Some(found)) => return Some(found),
            Ok(None) => {}
            Err(e) => {
                log::error!("message completion queue: {e}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
    None
}

/// Polls as long as that pays off, then sleeps until there is a completion. Returns `None` at the
/// end.
fn wait_for_completion(shared: &Shared, spin: &mut Spin) -> Result<Option<WorkCompletion>, VerbsError> {
    let began = Instant::now();
    let mut now = began;
    if spin.polls() {
        loop {
            if let Some(wc) = poll(shared)? {
                spin.found();
                return Ok(Some(wc));
            }
            std::thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            if !spin.continues(now - began, now - before) {
                break;
            }
        }
    }
    let mut armed = false;
    while !shared.stop.load(Ordering::Acquire) {
        match poll(shared)? {
            Some(wc) => {
                spin.slept(now.elapsed());
                return Ok(Some(wc));
            }
            // A completion from before `arm` causes no event, so the queue is polled again. The
            // wait may also end without a completion, because of traffic between queue pairs.
            None if armed => drop(shared.cq.wait(None)?),
            None => shared.cq.arm()?,
        }
        armed = !armed;
    }
    Ok(None)
}

/// Polls once. Skips successful send completions.
fn poll(shared: &Shared) -> Result<Option<WorkCompletion>, VerbsError> {
    let mut wc = [WorkCompletion::EMPTY];
    loop {
        if shared.cq.poll(&mut wc)? == 0 {
            return Ok(None);
        }
        if wc[0].wr_id != SEND_ID || wc[0].status != WcStatus::Success {
            return Ok(Some(wc[0]));
        }
    }
}
