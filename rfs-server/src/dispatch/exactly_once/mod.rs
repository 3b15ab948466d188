//! Exactly-once requests of mounts that reconnect.
//!
//! # Concurrency
//! As the dispatcher. A reply is stored before it is sent, also if it is deferred until other
//! sessions have acknowledged a recall. A repeated request waits for the same recalls, or for the
//! end of its original ([`Repeats`]).

mod repeats;

use rfs_proto::{Errno, Reply, Request};

pub(super) use repeats::Repeats;

use super::{
    delivery::recalls::RecallDelivery,
    request_table::may_wait,
    state::{
        journal::Number,
        outcome::{DeferredReply, HeldReply, Outcome, Sender},
        store::Store,
    },
};
use crate::session::{
    kept_reply::{KeptReply, short},
    log_quota::SLOT_BYTES,
    registry::Sessions,
    reply_cache::{Refusal, Turn},
};

/// Returns the form of an outcome in which it is stored.
fn stored(outcome: &Outcome) -> KeptReply {
    let (reply, needs) = match outcome {
        Outcome::Now(reply) => (reply, &[][..]),
        Outcome::Deferred(HeldReply(DeferredReply::Change(reply, needs, _))) => (reply, &needs[..]),
        // These requests have no sequence number.
        Outcome::Deferred(HeldReply(
            DeferredReply::Recalls(_) | DeferredReply::Grants(_) | DeferredReply::Repeated(..),
        )) => (&Reply::Error(Errno::EPROTO), &[][..]),
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

/// Handles each numbered request once.
pub(super) struct ExactlyOnce<'a> {
    pub(super) store: &'a Store,
    pub(super) sessions: &'a Sessions,
    pub(super) recalls: RecallDelivery<'a>,
    pub(super) repeats: &'a Repeats,
}

impl ExactlyOnce<'_> {
    /// Has `execute` handle a request of a mount that reconnects. If a request with this slot and
    /// sequence number was handled before, returns the outcome of that request.
    pub(super) fn handle(
        &self,
        session: u64,
        (slot, sequence): Number,
        request: &Request<'_>,
        execute: impl FnOnce() -> Outcome,
    ) -> Outcome {
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
                let outcome = execute();
                let stored = stored(&outcome);
                let repetition = {
                    let mut replies = asker.replies();
                    replies.end(slot, sequence, stored.clone());
                    self.repeats.take(session, (slot, sequence))
                };
                if let Some(sender) = repetition {
                    self.send(repeated(stored), sender);
                }
                outcome
            }
            Ok(Turn::Again(kept)) if kept.before => {
                // Sessions that may cache the old state have to drop it first.
                let needs = if may_wait(request) { self.recalls.recall_all_but(session) } else { Vec::new() };
                repeated(KeptReply { needs, ..kept })
            }
            Ok(Turn::Again(kept)) => repeated(kept),
            Err(Refusal::InExecution) => {
                Outcome::Deferred(HeldReply(DeferredReply::Repeated(session, (slot, sequence))))
            }
            Err(Refusal::OutOfTurn) => refused(),
        }
    }

    /// Sends the reply to a request that was in execution when it was repeated: at once if it has
    /// ended meanwhile, else when it ends.
    pub(super) fn redeem(&self, session: u64, (slot, sequence): Number, sender: Sender) {
        let asker = self.sessions.get(session);
        let mut replies = asker.as_ref().map(|asker| asker.replies());
        let outcome = match replies.as_mut().map(|replies| replies.begin(slot, sequence)) {
            Some(Ok(Turn::Again(kept))) => repeated(kept),
            Some(Err(Refusal::InExecution)) => {
                let replaced = self.repeats.wait(session, (slot, sequence), sender);
                drop(replies);
                return drop(replaced);
            }
            _ => Outcome::Now(Reply::Error(Errno::EPROTO)),
        };
        drop(replies);
        self.send(outcome, sender);
    }

    fn send(&self, outcome: Outcome, sender: Sender) {
        match outcome {
            Outcome::Now(reply) => sender.send(reply),
            Outcome::Deferred(HeldReply(held)) => self.recalls.hold(held, sender),
        }
    }
}
