//! Delivers recalls to sessions, and replies that waited for their acknowledgement.
//!
//! # Concurrency
//! As the dispatcher.

use std::time::{Duration, Instant};

use rfs_proto::{Errno, Recall, Recalls, Reply};

use crate::{
    coherence::{recall_queue::Need, run_clock},
    dispatch::state::{
        outcome::{DeferredReply, HeldReply, Outcome, Sender},
        store::Store,
    },
    session::registry::Sessions,
};

/// Delivers recalls, and the replies that wait for their acknowledgement.
#[derive(Clone, Copy)]
pub struct RecallDelivery<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) sessions: &'a Sessions,
}

impl RecallDelivery<'_> {
    /// Holds a reply until the recalls that it needs are acknowledged, or a request for recalls
    /// until there is one. Replies at once if that is so already.
    pub(in crate::dispatch) fn hold(self, held: DeferredReply, sender: Sender) {
        let mut due = Vec::new();
        self.store.pending.locked(|state| match held {
            DeferredReply::Change(reply, mut needs, sweeps) => {
                let sender = sender.sweeping(sweeps);
                needs.retain(|&need| state.recalls.is_open(need));
                match needs.is_empty() {
                    true => due.push((sender, reply)),
                    false => state.held_replies.hold(&needs, (sender, reply)),
                }
            }
            DeferredReply::Recalls(session) => {
                let before = state.recalls.wait(session, sender);
                due.extend(before.map(|sender| (sender, Reply::Error(Errno::EINTR))));
                state.answer_asker(session, &mut due);
            }
            // These need no acknowledgement.
            DeferredReply::Grants(_) | DeferredReply::Repeated(..) => {}
        });
        self.store.send(due);
    }

    /// Returns the time at which the first session exceeds `timeout`, unless it acknowledges its
    /// recalls before.
    pub fn deadline(self, timeout: Duration) -> Option<Instant> {
        self.store.pending.locked(|state| state.recalls.deadline(timeout))
    }

    /// Records that a session has lost its connection. The session stays, because its mount may
    /// reconnect.
    pub fn disconnect(self, session: u64) {
        self.store.pending.locked(|state| state.recalls.disconnect(session));
    }

    /// Detaches the sessions that have not acknowledged a recall for longer than `timeout`. No
    /// request waits for them any more, and they get no replies. The caller has to end them, which
    /// closes their files.
    pub fn give_up(self, timeout: Duration, now: Instant) -> Vec<u64> {
        let overdue = self.store.pending.locked(|state| state.recalls.overdue(timeout, now));
        for &session in &overdue {
            if let Some(session) = self.sessions.get(session) {
                session.detach();
            }
            self.drop_caches(session);
        }
        overdue
    }

    pub(in crate::dispatch) fn answer(self, session: u64, done: u64) -> Outcome {
        let mut due = Vec::new();
        self.start(session);
        let outcome = self.store.pending.locked(|state| {
            let is_first = state.recalls.is_first(session);
            // Under the lock: a thread that sees the acknowledgement also sees the space released.
            let space = &self.store.space;
            let Ok(first) =
                state.recalls.acknowledge(session, done, |recall| space.acknowledged(session, recall))
            else {
                return Outcome::Now(Reply::Error(Errno::EPROTO));
            };
            due = state.held_replies.acknowledged(session, first);
            match state.recalls.next(session) {
                Some(recalls) => Outcome::Now(Reply::Recalls(recalls)),
                // From now on the session receives layout recalls, so it may rely on sizes that it
                // has seen.
                None if is_first => {
                    Outcome::Now(Reply::Recalls(Recalls { number: done, recalls: Vec::new() }))
                }
                None => Outcome::Deferred(HeldReply(DeferredReply::Recalls(session))),
            }
        });
        self.store.send(due);
        self.store.space.tidy();
        outcome
    }

    /// Starts recalls for a session, if they have not started. From now on the session receives
    /// layout recalls and unlinked inodes, even if it caches nothing. The end of the session takes
    /// the lock of the recalls after this.
    pub(in crate::dispatch) fn start(self, session: u64) {
        let Some(session) = self.sessions.get(session).filter(|session| session.is_attached()) else {
            return;
        };
        if session.holds_numbers() {
            return;
        }
        self.store.pending.locked(|state| {
            if state.recalls.asks(session.id()) {
                let mut push = |recall| state.recalls.push(session.id(), recall, run_clock::now());
                if session.is_restored() {
                    push(Recall::All);
                }
                // Files gave up this space before the session could receive a recall.
                for (ino, generation) in self.store.space.quarantined_for(session.id()) {
                    push(Recall::Layout { ino, generation });
                }
            }
            session.asks_for_recalls();
            if session.is_restored() {
                self.store.previous_sessions.asks(session.id());
            }
        });
        if session.is_restored() {
            self.queue_unlinked(session.id());
        }
    }

    /// Queues the unlinked inodes that a session may use. The session may receive an inode twice,
    /// and one that has got a name meanwhile.
    pub(in crate::dispatch) fn queue_unlinked(self, session: u64) {
        let mut unlinked = Vec::new();
        self.store
            .each_shard(|meta| unlinked.extend(meta.namespace.inodes_mut().only().orphans.held_by(session)));
        self.store.pending.locked(|state| state.recalls.push_unlinked(session, unlinked));
    }

    /// Drops all cache state of a session that is marked as ended, so that no request waits for it.
    pub(in crate::dispatch) fn drop_caches(self, session: u64) {
        let mut due = Vec::new();
        let kept = self.store.pending.locked(|state| state.drop_recalls(session, &mut due));
        if kept {
            self.store.each_shard(|meta| {
                meta.namespace.inodes_mut().only().cache_holders.get_mut().end_session(session);
            });
        }
        self.store.send(due);
    }

    /// Handles the return of a mount to its session. Recalls everything from a session of the
    /// previous server, and makes it repeat its blocked lock requests.
    pub(in crate::dispatch) fn back_from_before(self, session: u64) {
        if let Some(session) = self.sessions.get(session)
            && session.is_restored()
        {
            session.ask_again();
        }
        self.recall_all(|other| other == session);
    }

    /// Recalls everything from the sessions of the previous server, except for one session. Returns
    /// the recalls to wait for.
    pub(in crate::dispatch) fn recall_all_but(self, session: u64) -> Vec<Need> {
        self.recall_all(|other| other != session);
        self.store.pending.open(session, |recall| *recall == Recall::All)
    }

    fn recall_all(self, which: impl Fn(u64) -> bool) {
        let mut due = Vec::new();
        let recalled = self.store.pending.locked(|state| {
            let recalled: Vec<u64> =
                state.unknown.iter().copied().filter(|&session| which(session)).collect();
            state.recall_all(which);
            recalled.iter().for_each(|&session| state.answer_asker(session, &mut due));
            !recalled.is_empty()
        });
        if recalled {
            self.store.alarm.recalled();
        }
        self.store.send(due);
    }
}
