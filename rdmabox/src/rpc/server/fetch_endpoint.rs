//! Calls by fetching at the host: executes requests found in memory, and handles notifications.
//!
//! # Concurrency
//! Runs on the threads of the call server, without locks of its own.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use super::{
    Shared,
    endpoint::{Endpoint, FetchState, Reason, WorkerState, answer_of, check_length, kind_of},
    handle,
    reply::{Answer, PendingReply, Reply},
    try_next,
};
use crate::{
    rpc::{
        fetch::{AnswerWay, BetweenRounds, Kind as AnswerKind, NotificationAction, PollState, PolledSession},
        message::{CALL_SLOTS, Header, Kind},
    },
    verbs::WorkCompletion,
};

impl Endpoint {
    /// Handles a notification of a call that the host has not seen, or that takes long.
    pub(super) fn handle_notification(
        self: &Arc<Self>,
        header: Header,
        worker: &mut WorkerState,
    ) -> Result<(), String> {
        let fetched =
            self.fetched.as_ref().ok_or("a notification on a session whose calls are not fetched")?;
        match fetched.slots.handle_notification(header.slot, header.number, &mut worker.request)? {
            NotificationAction::Take => self.execute_call(fetched, header.slot, worker),
            NotificationAction::Wait => Ok(()),
            NotificationAction::Answered => self.reply(Header { kind: Kind::InMemory, ..header }, &[]),
        }
    }

    /// Executes the call in `slot`, whose request has been copied.
    fn execute_call(
        self: &Arc<Self>,
        fetched: &FetchState,
        slot: usize,
        worker: &mut WorkerState,
    ) -> Result<(), String> {
        let defer = || {
            if let Err(reason) = fetched.slots.defer(slot) {
                self.handler.end(Reason::Misbehaved(&reason));
            }
            self.deferred_fetch_reply(slot)
        };
        let mut reply = Reply::new(&mut worker.reply, &defer);
        let refusal = self.call_handler(&worker.request, &mut reply)?;
        if reply.is_deferred() {
            return self.deferred.check_limit();
        }
        self.deliver(slot, answer_of(refusal.as_deref(), &reply))
    }

    /// Delivers the answer to the call in `slot`, or the fact that there is none. Writes it to
    /// memory, or sends a message if the client has notified the host.
    fn deliver(&self, slot: usize, answer: Answer<'_>) -> Result<(), String> {
        let (bytes, kind) = (answer.bytes(), kind_of(answer));
        check_length(bytes)?;
        let in_memory = match answer {
            Answer::Reply(_) => AnswerKind::Plain,
            Answer::Rejected(_) => AnswerKind::Rejected,
            Answer::Dropped => AnswerKind::Unanswered,
        };
        let Some(fetched) = &self.fetched else { return Ok(()) };
        match fetched.slots.answer(slot, in_memory, bytes)? {
            AnswerWay::Message => self.reply(Header { kind, ..Header::plain(slot) }, bytes)?,
            AnswerWay::Write => self.answers.written.inc(),
            AnswerWay::Memory => self.answers.in_memory.inc(),
        }
        Ok(())
    }

    /// Returns the handle that answers the call in `slot`.
    fn deferred_fetch_reply(self: &Arc<Self>, slot: usize) -> PendingReply {
        self.deferred.add_owed();
        let endpoint = Arc::downgrade(self);
        PendingReply::new(move |answer| {
            // Without the session no client polls.
            let Some(endpoint) = endpoint.upgrade() else { return };
            endpoint.deferred.settle_owed();
            if endpoint.is_over() {
                return;
            }
            if let Err(reason) = endpoint.deliver(slot, answer) {
                endpoint.handler.end(Reason::Misbehaved(&reason));
            }
        })
    }
}

impl PolledSession for Endpoint {
    type Work = WorkerState;

    #[inline]
    fn serve(self: &Arc<Self>, worker: &mut WorkerState) -> bool {
        let Some(fetched) = self.fetched.as_ref().filter(|_| !self.is_over()) else { return false };
        let mut found = false;
        for slot in 0..CALL_SLOTS {
            let served = match fetched.slots.take(slot, &mut worker.request) {
                Ok(false) => continue,
                Ok(true) => self.execute_call(fetched, slot, worker),
                Err(malformed) => Err(malformed),
            };
            found = true;
            if let Err(reason) = served {
                self.over.store(true, Ordering::Release);
                self.handler.end(Reason::Misbehaved(&reason));
                break;
            }
        }
        found
    }

    fn mark(&self, awake: bool) {
        if let Some(fetched) = &self.fetched {
            fetched.slots.mark(awake);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn poll_state(&self) -> Option<&PollState> {
        self.fetched.as_ref().map(|fetched| &fetched.poll_state)
    }

    fn core(&self) -> Option<usize> {
        self.fetched.as_ref().and_then(|fetched| fetched.slots.core())
    }
}

/// Takes a message between two rounds, if no other thread polls for messages.
pub(super) struct ServeMessages<'a>(pub(super) &'a Shared);

impl BetweenRounds<WorkerState> for ServeMessages<'_> {
    fn after_round(&self, worker: &mut WorkerState) -> bool {
        let message: Option<WorkCompletion> = try_next(self.0);
        if let Some(wc) = message {
            handle(self.0, &wc, worker);
        }
        !self.0.stop.load(Ordering::Acquire)
    }

    fn avoid_cores(&self, worker: &mut WorkerState, cores: impl Iterator<Item = usize> + Clone) {
        worker.core_avoidance.avoid(cores, Instant::now);
    }

    fn end(&self, worker: &mut WorkerState) {
        worker.core_avoidance.end();
    }
}
