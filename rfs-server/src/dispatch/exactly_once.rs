//! Exactly-once requests of mounts that reconnect, and the resumption of their sessions.
//!
//! # Concurrency
//! As the dispatcher. A reply is stored before it is sent, also if it is deferred until other
//! sessions have acknowledged a recall. A repeated request waits for the same recalls.

use rfs_proto::{Attached, Errno, Reply, Request};

use super::{
    dispatcher::Dispatcher,
    state::outcome::{DeferredReply, HeldReply, Outcome},
};
use crate::session::{
    kept_reply::{KeptReply, short},
    log_quota::SLOT_BYTES,
    registry::Regions,
    reply_cache::{OutOfTurn, Turn},
};

/// Returns whether the reply to a request may wait for other sessions. Replies to the other
/// requests are immediate in any case. A mount repeats those requests before it acknowledges any
/// recall, so they must not wait.
fn may_wait(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::Close { .. }
            | Request::Forget { .. }
            | Request::Open { write: false, .. }
            | Request::Lock { .. }
            | Request::StopWaiting { .. }
    )
}

/// Returns the form of an outcome in which it is stored.
fn stored(outcome: &Outcome) -> KeptReply {
    let (reply, needs) = match outcome {
        Outcome::Now(reply) => (reply, &[][..]),
        Outcome::Deferred(HeldReply(DeferredReply::Change(reply, needs, _))) => (reply, &needs[..]),
        // These requests have no sequence number.
        Outcome::Deferred(HeldReply(DeferredReply::Recalls(_) | DeferredReply::Grants(_))) => {
            (&Reply::Error(Errno::EPROTO), &[][..])
        }
    };
    KeptReply { reply: short(reply).into_owned(), needs: needs.to_vec(), before: false }
}

/// Returns the outcome of a request that was executed before.
fn repeated(kept: KeptReply) -> Outcome {
    match kept.needs.is_empty() {
        true => Outcome::Now(kept.reply),
        // The original deferred reply sweeps the file.
        false => Outcome::Deferred(HeldReply(DeferredReply::Change(kept.reply, kept.needs, None))),
    }
}

impl Dispatcher {
    /// Handles a request of a mount that reconnects. If a request with this slot and sequence
    /// number was handled before, returns the outcome of that request.
    pub fn handle_once(&self, session: u64, (slot, sequence): (u32, u64), request: Request<'_>) -> Outcome {
        let refused = || Outcome::Now(Reply::Error(Errno::EPROTO));
        let Some(asker) = self.sessions.get(session).filter(|s| s.reconnects() && s.is_attached()) else {
            return refused();
        };
        let turn = {
            let mut replies = asker.replies();
            if let Some(journal) = &self.store.journal {
                let room = SLOT_BYTES * replies.lacks(slot);
                if !journal.quota.is_left(room) {
                    log::warn!("session {session}: no room to log replies of slot {slot}");
                    return Outcome::Now(Reply::Error(Errno::ENOSPC));
                }
                journal.quota.take(asker.log_quota(), room);
            }
            replies.begin(slot, sequence)
        };
        match turn {
            Ok(Turn::First) => {
                let outcome = self.handle_numbered(session, request, Some((slot, sequence)));
                asker.replies().end(slot, sequence, stored(&outcome));
                outcome
            }
            Ok(Turn::Again(kept)) if kept.before => {
                // Sessions that may cache the old state have to drop it first.
                let needs = if may_wait(&request) { self.recall_all_but(session) } else { Vec::new() };
                repeated(KeptReply { needs, ..kept })
            }
            Ok(Turn::Again(kept)) => repeated(kept),
            Err(OutOfTurn) => refused(),
        }
    }

    /// Resumes the session of a mount that has reconnected. `regions` are the names of the memory
    /// on the new connection. Messages that may have been lost are sent again.
    pub fn resume(&self, session: u64, regions: Regions) -> Reply {
        if !self.is_attached(session) {
            return Reply::Error(Errno::EPROTO);
        }
        // The request of the old connection gets no reply.
        drop(self.store.grants.lock().resume(session));
        self.back_from_before(session);
        Reply::Attached(self.attached(session, regions, true))
    }

    /// Returns whether a session is attached, and has not been told to end.
    pub fn is_attached(&self, session: u64) -> bool {
        self.sessions.get(session).is_some_and(|session| session.is_attached())
    }

    pub(super) fn attached(
        &self,
        session: u64,
        Regions { arena, table, sums }: Regions,
        resumed: bool,
    ) -> Attached {
        let (memory, starts) = self.memory;
        let now = self.clock.now();
        let confined = self.sessions.get(session).is_some_and(|session| !session.squash().is_none());
        Attached { arena, table, sums, now, session, read_only: false, memory, starts, resumed, confined }
    }
}
