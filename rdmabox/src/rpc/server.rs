//! The answering side: a few threads serve the calls of all sessions.
//!
//! All message queue pairs share a completion queue. One thread looks at it at a time, and handles what it finds ([`Turns`]). A
//! client that fetches its answers rings where nobody looks at its requests: the thread that gets the message goes on to do
//! so ([`fetched`]), until there is nothing to be found for a while. Sessions are unknown here; a [`Handler`] knows them.

mod apart;
mod fetched;

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

use self::{
    apart::Apart,
    fetched::{Fetched, Meanwhile},
};
use super::{
    CALL_SLOTS, Header, HostSlots, Kind, LATE_SLOTS, LateReplies, Later, MAX_CALL, Messages, Reply, SEND_ID,
    fetch::Watch, turns::Turns,
};
use crate::{
    polling::Spin,
    verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion},
};

/// What becomes of a session's messages.
pub(crate) trait Handler: Send + Sync {
    /// Answers one call, or promises to. An error ends the session.
    fn call(&self, request: &[u8], reply: &mut Reply<'_>) -> Result<(), String>;
    /// Ends the session.
    fn end(&self, reason: Reason<'_>);
}

/// Why a session's messages end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason<'a> {
    /// Its queue pair is broken: the client has gone, as a rule.
    Gone,
    /// A message made no sense.
    Misbehaved(&'a str),
}

/// What a message queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Calls,
    /// Late replies go out, and the word that one has been taken comes in.
    LateReplies,
}

/// One of a session's message queue pairs at the host.
pub(crate) struct Endpoint {
    role: Role,
    messages: Arc<Messages>,
    handler: Arc<dyn Handler>,
    late: Arc<LateReplies>,
    /// Of the queue pair for calls, if their answers are fetched.
    fetched: Option<Fetched>,
    /// The session has ended: nothing is sent any more.
    over: AtomicBool,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("messages", &self.messages).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Shared {
    cq: Arc<dyn CompletionQueue>,
    turns: Turns,
    /// Of whoever has the turn.
    spin: Mutex<Spin>,
    endpoints: RwLock<HashMap<u32, Arc<Endpoint>>>,
    /// The sessions whose requests are looked at.
    watch: Watch<Endpoint>,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct RpcServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl RpcServer {
    pub(crate) fn start(cq: Arc<dyn CompletionQueue>, threads: usize) -> std::io::Result<RpcServer> {
        let shared = Arc::new(Shared {
            cq,
            turns: Turns::default(),
            spin: Mutex::default(),
            endpoints: RwLock::default(),
            watch: Watch::default(),
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

    pub(crate) fn cq(&self) -> &Arc<dyn CompletionQueue> {
        &self.shared.cq
    }

    /// Serves the calls of a queue pair from now on; it is not connected yet. Replies that come late and free their slot
    /// go to `late`. The answers to calls whose requests are in `slots` are fetched.
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

    /// Serves the queue pair for a session's late replies; it is not connected yet. When it is,
    /// [`LateReplies::begin`] is to be called.
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
        let (fetched, over) = (slots.map(Fetched::new), AtomicBool::new(false));
        let endpoint = Endpoint { role, messages: Arc::clone(&messages), handler, late, fetched, over };
        self.shared.endpoints.write().insert(number, Arc::new(endpoint));
        messages
    }

    /// Forgets a queue pair, which ends.
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
        self.shared.turns.end();
        self.shared.cq.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// What a thread carries calls out with.
#[derive(Debug)]
pub(crate) struct Work {
    request: Vec<u8>,
    reply: Vec<u8>,
    apart: Apart,
}

fn serve(shared: &Shared) {
    let (request, reply) = (Vec::with_capacity(MAX_CALL), Vec::with_capacity(MAX_CALL));
    let mut work = Work { request, reply, apart: Apart::default() };
    let mut took = None;
    while shared.turns.take(took)
        && let Some((wc, at_once)) = next(shared)
    {
        shared.turns.lay_down(at_once);
        let began = Instant::now();
        handle(shared, &wc, &mut work);
        took = Some(began.elapsed());
        // Between two turns of its own this thread takes messages as well.
        shared.watch.run(&mut work, &Meanwhile(shared));
    }
}

fn handle(shared: &Shared, wc: &WorkCompletion, work: &mut Work) {
    let endpoint = shared.endpoints.read().get(&wc.qp_num).cloned();
    let Some(endpoint) = endpoint else { return };
    if wc.status != WcStatus::Success {
        return endpoint.handler.end(Reason::Gone);
    }
    let handled = match endpoint.role {
        Role::Calls => endpoint.answer(wc, work),
        Role::LateReplies => endpoint.was_taken(wc).map(|()| After::Nothing),
    };
    match handled {
        Ok(After::Nothing) => {}
        Ok(After::Watch) => shared.watch.wake(&endpoint),
        Err(reason) => endpoint.handler.end(Reason::Misbehaved(&reason)),
    }
}

/// What a message leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// The client makes calls by fetching: more may come.
    Watch,
}

/// A completion that is there and is worth a thought, unless another thread looks for them.
fn glance(shared: &Shared) -> Option<WorkCompletion> {
    if !shared.turns.take_for_a_look() {
        return None;
    }
    let mut wc = [WorkCompletion::EMPTY];
    // An error is for somebody who waits.
    let found = matches!(shared.cq.poll(&mut wc), Ok(1));
    if found && (wc[0].wr_id != SEND_ID || wc[0].status != WcStatus::Success) {
        shared.turns.lay_down(true);
        return Some(wc[0]);
    }
    shared.turns.put_back();
    None
}

/// The next completion that is worth a thought, and whether it was there already; `None` at the end. For the thread that has the
/// turn.
fn next(shared: &Shared) -> Option<(WorkCompletion, bool)> {
    let mut spin = shared.spin.lock();
    while !shared.stop.load(Ordering::Acquire) {
        match poll(shared).and_then(|found| match found {
            Some(wc) => Ok(Some((wc, true))),
            None => pause(shared, &mut spin).map(|found| found.map(|wc| (wc, false))),
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

/// Looks for a completion as long as that pays, then sleeps until there is one; `None` at the end.
fn pause(shared: &Shared, spin: &mut Spin) -> Result<Option<WorkCompletion>, VerbsError> {
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
            // What came before the arming gives no event. What ends the wait may also be no completion, but a word between queue
            // pairs: the pause goes on.
            None if armed => drop(shared.cq.wait(None)?),
            None => shared.cq.arm()?,
        }
        armed = !armed;
    }
    Ok(None)
}

/// A completion; none that says only that a message has been sent.
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
    fn answer(self: &Arc<Self>, wc: &WorkCompletion, work: &mut Work) -> Result<After, String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| matches!(header.kind, Kind::Plain | Kind::Ring))
            .ok_or_else(|| "malformed message: not a call in one of the call slots".to_string())?;
        self.messages.take(wc, &mut work.request);
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        if header.kind == Kind::Ring {
            return self.rung(header, work).map(|()| After::Watch);
        }
        let make_later = || self.later(header);
        let mut reply = Reply::new(&mut work.reply, &make_later);
        self.handler.call(&work.request, &mut reply)?;
        if !reply.is_deferred() {
            self.reply(Header::plain(header.slot), &reply)?;
            return Ok(After::Nothing);
        }
        self.late.check()?;
        // One that has a number frees its slot; another one waits in it.
        if header.number != 0 {
            self.reply(Header { kind: Kind::Deferred, ..header }, &[])?;
        }
        Ok(After::Nothing)
    }

    fn reply(&self, header: Header, bytes: &[u8]) -> Result<(), String> {
        check_length(bytes)?;
        self.messages.send(header, bytes).map(drop).map_err(|e| e.to_string())
    }

    /// The debt of a reply to the call with this header.
    fn later(self: &Arc<Self>, header: Header) -> Later {
        self.late.owe();
        let endpoint: Weak<Endpoint> = Arc::downgrade(self);
        Later::new(move |answer| {
            // Without the session nobody waits.
            if let Some(endpoint) = endpoint.upgrade() {
                endpoint.answer_late(header, answer);
            }
        })
    }

    fn answer_late(&self, call: Header, answer: Option<&[u8]>) {
        let kind = if answer.is_some() { Kind::Plain } else { Kind::Unanswered };
        let bytes = answer.unwrap_or_default();
        self.late.paid();
        let sent = match call.number {
            // What ends the session sets this before the queue pair is in Err: the few that come in between end there.
            _ if self.over.load(Ordering::Acquire) => Ok(()),
            0 => self.reply(Header { kind, ..call }, bytes),
            number => check_length(bytes).and_then(|()| self.late.send(number, kind, bytes)),
        };
        if let Err(reason) = sent {
            self.handler.end(Reason::Misbehaved(&reason));
        }
    }

    /// The client has taken a late reply.
    fn was_taken(&self, wc: &WorkCompletion) -> Result<(), String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| header.kind == Kind::Plain)
            .ok_or_else(|| "malformed message: not a receipt of a late reply".to_string())?;
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        self.late.taken(header.slot)
    }
}

fn check_length(reply: &[u8]) -> Result<(), String> {
    match reply.len() > MAX_CALL {
        false => Ok(()),
        true => Err(format!("a reply of {} bytes, the limit is {MAX_CALL}", reply.len())),
    }
}
