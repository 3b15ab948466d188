//! A message queue pair of a session at the host, and the answers that it sends.
//!
//! # Concurrency
//! The polling thread calls [`Endpoint::answer`]. Any thread gives a deferred reply. No locks.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::{
    answer_counts::AnswerCounters,
    core_avoidance::CoreAvoidance,
    deferred_reply::DeferredReplies,
    reply::{Answer, CallError, PendingReply, Reply},
};
use crate::{
    rpc::{
        fetch::{HostSlots, PollState, PollTime},
        message::{Header, Kind, MAX_CALL, Messages},
    },
    verbs::WorkCompletion,
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
pub(super) enum Role {
    Calls,
    /// Deferred replies, and their acknowledgements.
    DeferredReplies,
}

/// One of a session's message queue pairs at the host.
pub(crate) struct Endpoint {
    pub(super) role: Role,
    pub(super) messages: Arc<Messages>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) deferred: Arc<DeferredReplies>,
    /// Set on a queue pair for calls whose answers are fetched.
    pub(super) fetched: Option<FetchState>,
    /// The session has ended, and nothing is sent any more.
    pub(super) over: AtomicBool,
    pub(super) answers: Arc<AnswerCounters>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("messages", &self.messages).finish_non_exhaustive()
    }
}

/// The action that follows a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    Nothing,
    /// The client makes calls by fetching: poll its memory.
    Poll,
}

impl Endpoint {
    pub(super) fn answer(
        self: &Arc<Self>,
        wc: &WorkCompletion,
        worker: &mut WorkerState,
    ) -> Result<FollowUp, String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| matches!(header.kind, Kind::Plain | Kind::Notification))
            .ok_or_else(|| "malformed message: not a call in one of the call slots".to_string())?;
        self.messages.take(wc, &mut worker.request);
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        if header.kind == Kind::Notification {
            return self.handle_notification(header, worker).map(|()| FollowUp::Poll);
        }
        let defer = || self.deferred_reply(header);
        let mut reply = Reply::new(&mut worker.reply, &defer);
        let refusal = self.call_handler(&worker.request, &mut reply)?;
        if !reply.is_deferred() {
            let answer = answer_of(refusal.as_deref(), &reply);
            self.reply(Header { kind: kind_of(answer), ..Header::plain(header.slot) }, answer.bytes())?;
            return Ok(FollowUp::Nothing);
        }
        self.deferred.check_limit()?;
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
    pub(super) fn call_handler(
        &self,
        request: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<String>, String> {
        match self.handler.call(request, reply) {
            Ok(()) => Ok(None),
            Err(CallError::Rejected(reason)) => Ok(Some(reason)),
            Err(CallError::EndSession(reason)) => Err(reason),
        }
    }

    pub(super) fn reply(&self, header: Header, bytes: &[u8]) -> Result<(), String> {
        check_length(bytes)?;
        self.answers.messages.inc();
        self.messages.send(header, bytes).map(drop).map_err(|e| e.to_string())
    }

    /// Returns the handle that answers the call with this header.
    fn deferred_reply(self: &Arc<Self>, header: Header) -> PendingReply {
        self.deferred.add_owed();
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
        self.deferred.settle_owed();
        let sent = match call.number {
            // Set before the queue pair is moved to Err. Few replies come in between, and are
            // discarded here.
            _ if self.over.load(Ordering::Acquire) => Ok(()),
            0 => self.reply(Header { kind, ..call }, bytes),
            number => check_length(bytes).and_then(|()| {
                self.answers.messages.inc();
                self.deferred.send(number, kind, bytes)
            }),
        };
        if let Err(reason) = sent {
            self.handler.end(Reason::Misbehaved(&reason));
        }
    }

    /// Handles the acknowledgement of a deferred reply.
    pub(super) fn acknowledge_reply(&self, wc: &WorkCompletion) -> Result<(), String> {
        let header = self
            .messages
            .header_of(wc)
            .filter(|header| header.kind == Kind::Plain)
            .ok_or_else(|| "malformed message: not an acknowledgement of a deferred reply".to_string())?;
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        self.deferred.acknowledge(header.slot)
    }
}

/// Returns the answer to a call that the service has answered at once.
pub(super) fn answer_of<'a>(refusal: Option<&'a str>, reply: &'a [u8]) -> Answer<'a> {
    match refusal {
        None => Answer::Reply(reply),
        Some(reason) => Answer::Rejected(reason),
    }
}

/// Returns the kind of the message that carries an answer.
pub(super) fn kind_of(answer: Answer<'_>) -> Kind {
    match answer {
        Answer::Reply(_) => Kind::Plain,
        Answer::Rejected(_) => Kind::Rejected,
        Answer::Dropped => Kind::Unanswered,
    }
}

pub(super) fn check_length(reply: &[u8]) -> Result<(), String> {
    match reply.len() > MAX_CALL {
        false => Ok(()),
        true => Err(format!("a reply of {} bytes, the limit is {MAX_CALL}", reply.len())),
    }
}

/// Fetch state of a session.
#[derive(Debug)]
pub(super) struct FetchState {
    pub(super) slots: Arc<HostSlots>,
    pub(super) poll_state: PollState,
}

impl FetchState {
    pub(super) fn new(slots: Arc<HostSlots>, poll_time: PollTime) -> FetchState {
        FetchState { slots, poll_state: PollState::new(poll_time) }
    }
}

/// Buffers and state of a serving thread.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(super) request: Vec<u8>,
    pub(super) reply: Vec<u8>,
    pub(super) core_avoidance: CoreAvoidance,
}
