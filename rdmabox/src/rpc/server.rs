//! The answering side of RPC: a few threads serve the calls of all sessions.
//!
//! All message queue pairs share one completion queue. One thread at a time polls it, and
//! executes the calls that it finds ([`PollerHandoff`]). A client that fetches rings if no thread
//! polls its request memory. The thread that gets the ring then polls that memory
//! ([`fetch_endpoint`]) until no requests arrive for a while. A [`Handler`] connects this module
//! to sessions.
//!
//! # Concurrency
//! Runs on the threads that [`RpcServer::start`] spawns. `spin` is held by the poller.
//! `endpoints` is not held during a call.

mod core_avoidance;
mod deferred_reply;
mod fetch_endpoint;
mod poller_handoff;
mod reply;

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};

pub(crate) use self::deferred_reply::LateReplies;
use self::poller_handoff::PollerHandoff;
pub use self::reply::{Answer, CallError, PendingReply, Reply};
use self::{
    core_avoidance::CoreAvoidance,
    fetch_endpoint::{FetchState, ServeMessages},
};
use super::{
    fetch::{HostSlots, PollTime, SessionPoller},
    message::{CALL_SLOTS, Header, Kind, LATE_SLOTS, MAX_CALL, Messages, SEND_ID},
};
use crate::{
    polling::Spin,
    stats::Counter,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

/// Receives the calls of a session.
pub(crate) trait Handler: Send + Sync {
    /// Answers one call, defers its reply, refuses the call or ends the session.
    fn call(&self, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError>;
    /// Ends the session.
    fn end(&self, reason: Reason<'_>);
}

/// The reason for which a session's messages end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason<'a> {
    /// The queue pair is broken, usually because the client has gone.
    Gone,
    /// The client sent an invalid message.
    Misbehaved(&'a str),
}

/// The purpose of a message queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Calls,
    /// Deferred replies, and their acknowledgements.
    LateReplies,
}

/// One of a session's message queue pairs at the host.
pub(crate) struct Endpoint {
    role: Role,
    messages: Arc<Messages>,
    handler: Arc<dyn Handler>,
    late: Arc<LateReplies>,
    /// Set on a queue pair for calls whose answers are fetched.
    fetched: Option<FetchState>,
    /// The session has ended, and nothing is sent any more.
    over: AtomicBool,
    answers: Arc<AnswerCounters>,
}

/// Counters of the answers of a call server.
#[derive(Debug, Default)]
struct AnswerCounters {
    messages: Counter,
    in_memory: Counter,
    written: Counter,
}

/// Counts of the answers that a host has given to calls
/// ([`HostHandle::answers`](crate::HostHandle::answers)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerCounts {
    /// Messages that the host has sent: replies, and notes that a reply is deferred or is in
    /// memory.
    pub messages: u64,
    /// Replies that the host has written to its own memory, without a request to a device.
    pub in_memory: u64,
    /// Replies that the host has WRITTEN to memory of the client.
    pub written: u64,
}

impl std::ops::Add for AnswerCounts {
    type Output = AnswerCounts;

    fn add(self, other: AnswerCounts) -> AnswerCounts {
        AnswerCounts {
            messages: self.messages + other.messages,
            in_memory: self.in_memory + other.in_memory,
            written: self.written + other.written,
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl std::ops::Sub for AnswerCounts {
    type Output = AnswerCounts;

    fn sub(self, earlier: AnswerCounts) -> AnswerCounts {
        AnswerCounts {
            messages: self.messages - earlier.messages,
            in_memory: self.in_memory - earlier.in_memory,
            written: self.written - earlier.written,
        }
    }
}

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
    /// to `late`. Calls whose requests are in `slots` are answered there.
    pub(crate) fn add(
        &self,
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        handler: Arc<dyn Handler>,
        late: Arc<LateReplies>,
        slots: Option<Arc<HostSlots>>,
    ) -> Result<(), VerbsError> {
        let messages = Messages::new(pd, qp, CALL_SLOTS)?;
        self.insert(Role::Calls, messages, handler, late, slots);
        Ok(())
    }

    /// Serves the queue pair for a session's deferred replies, which is not connected yet. The
    /// caller calls [`LateReplies::begin`] when it is.
    pub(crate) fn add_late(
        &self,
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        handler: Arc<dyn Handler>,
        late: Arc<LateReplies>,
    ) -> Result<(), VerbsError> {
        let messages = Messages::new(pd, qp, LATE_SLOTS)?;
        let messages = self.insert(Role::LateReplies, messages, handler, Arc::clone(&late), None);
        late.set_messages(messages);
        Ok(())
    }

    fn insert(
        &self,
        role: Role,
        messages: Messages,
        handler: Arc<dyn Handler>,
        late: Arc<LateReplies>,
        slots: Option<Arc<HostSlots>>,
    ) -> Arc<Messages> {
        let number = messages.qp.qp_num();
        let messages = Arc::new(messages);
        let fetched = slots.map(|slots| FetchState::new(slots, self.shared.poll_time));
        let endpoint = Endpoint {
            role,
            messages: Arc::clone(&messages),
            handler,
            late,
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
            endpoint.late.end();
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

/// Buffers and state of a serving thread.
#[derive(Debug)]
pub(crate) struct WorkerState {
    request: Vec<u8>,
    reply: Vec<u8>,
    core_avoidance: CoreAvoidance,
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
        Role::LateReplies => endpoint.acknowledge_reply(wc).map(|()| FollowUp::Nothing),
    };
    match handled {
        Ok(FollowUp::Nothing) => {}
        Ok(FollowUp::Poll) => shared.watch.wake(&endpoint),
        Err(reason) => endpoint.handler.end(Reason::Misbehaved(&reason)),
    }
}

/// The action that follows a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowUp {
    Nothing,
    /// The client makes calls by fetching: poll its memory.
    Poll,
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

impl Endpoint {
    fn answer(self: &Arc<Self>, wc: &WorkCompletion, worker: &mut WorkerState) -> Result<FollowUp, String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| matches!(header.kind, Kind::Plain | Kind::Ring))
            .ok_or_else(|| "malformed message: not a call in one of the call slots".to_string())?;
        self.messages.take(wc, &mut worker.request);
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        if header.kind == Kind::Ring {
            return self.handle_ring(header, worker).map(|()| FollowUp::Poll);
        }
        let make_later = || self.deferred_reply(header);
        let mut reply = Reply::new(&mut worker.reply, &make_later);
        let refusal = self.call_handler(&worker.request, &mut reply)?;
        if !reply.is_deferred() {
            let answer = answer_of(refusal.as_deref(), &reply);
            self.reply(Header { kind: kind_of(answer), ..Header::plain(header.slot) }, answer.bytes())?;
            return Ok(FollowUp::Nothing);
        }
        self.late.check_limit()?;
        // A numbered call frees its slot, and waits under its number.
        if header.number != 0 {
            self.reply(Header { kind: Kind::Deferred, ..header }, &[])?;
        }
        Ok(FollowUp::Nothing)
    }

    /// Executes a call. Returns the reason if the service refuses it.
    ///
    /// # Errors
    /// The session has to end.
    fn call_handler(&self, request: &[u8], reply: &mut Reply<'_>) -> Result<Option<String>, String> {
        match self.handler.call(request, reply) {
            Ok(()) => Ok(None),
            Err(CallError::Rejected(reason)) => Ok(Some(reason)),
            Err(CallError::EndSession(reason)) => Err(reason),
        }
    }

    fn reply(&self, header: Header, bytes: &[u8]) -> Result<(), String> {
        check_length(bytes)?;
        self.answers.messages.inc();
        self.messages.send(header, bytes).map(drop).map_err(|e| e.to_string())
    }

    /// Returns the handle that answers the call with this header.
    fn deferred_reply(self: &Arc<Self>, header: Header) -> PendingReply {
        self.late.add_owed();
        let endpoint: Weak<Endpoint> = Arc::downgrade(self);
        PendingReply::new(move |answer| {
            // Without the session no client waits.
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.answer_deferred(header, answer);
            }
        })
    }

    fn answer_deferred(&self, call: Header, answer: Answer<'_>) {
        let (kind, bytes) = (kind_of(answer), answer.bytes());
        self.late.settle_owed();
        let sent = match call.number {
            // Set before the queue pair is moved to Err. Few replies come in between, and are
            // discarded here.
            _ if self.over.load(Ordering::Acquire) => Ok(()),
            0 => self.reply(Header { kind, ..call }, bytes),
            number => check_length(bytes).and_then(|()| {
                self.answers.messages.inc();
                self.late.send(number, kind, bytes)
            }),
        };
        if let Err(reason) = sent {
            self.handler.end(Reason::Misbehaved(&reason));
        }
    }

    /// Handles the acknowledgement of a deferred reply.
    fn acknowledge_reply(&self, wc: &WorkCompletion) -> Result<(), String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| header.kind == Kind::Plain)
            .ok_or_else(|| "malformed message: not an acknowledgement of a deferred reply".to_string())?;
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        self.late.acknowledge(header.slot)
    }
}

/// Returns the answer to a call that the service has answered at once.
fn answer_of<'a>(refusal: Option<&'a str>, reply: &'a [u8]) -> Answer<'a> {
    match refusal {
        None => Answer::Reply(reply),
        Some(reason) => Answer::Rejected(reason),
    }
}

/// Returns the kind of the message that carries an answer.
fn kind_of(answer: Answer<'_>) -> Kind {
    match answer {
        Answer::Reply(_) => Kind::Plain,
        Answer::Rejected(_) => Kind::Rejected,
        Answer::Dropped => Kind::Unanswered,
    }
}

fn check_length(reply: &[u8]) -> Result<(), String> {
    match reply.len() > MAX_CALL {
        false => Ok(()),
        true => Err(format!("a reply of {} bytes, the limit is {MAX_CALL}", reply.len())),
    }
}
