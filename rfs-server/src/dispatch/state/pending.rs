//! Recalls without an acknowledgement, and the replies that wait for them.
//!
//! # Concurrency
//! One lock protects both. A thread that changes an inode first reads an atomic counter: usually
//! there is no recall, and it skips the lock. A recall is queued under the lock of its inode's
//! shard. The next thread that changes the inode takes that lock later, so it sees the recall
//! unless the session has acknowledged it.

use std::sync::atomic::{AtomicUsize, Ordering};

use rfs_proto::{Errno, Recall, Reply};

use super::{
    lock_order::{Ordered, Rank},
    outcome::Sender,
};
use crate::coherence::{
    held_replies::HeldReplies,
    recall_queue::{Need, Queues},
    run_clock,
};

/// Replies that have become due. They are sent when the thread holds no lock.
pub(crate) type Due = Vec<(Sender, Reply)>;

/// The state under the lock.
#[derive(Debug, Default)]
pub(in crate::dispatch) struct State {
    pub(in crate::dispatch) recalls: Queues<Sender>,
    pub(in crate::dispatch) held_replies: HeldReplies<(Sender, Reply)>,
    /// Sessions of the previous server with unknown cache contents, from which nothing has been
    /// recalled yet.
    pub(in crate::dispatch) unknown: Vec<u64>,
}

impl State {
    /// Recalls everything from the sessions of the previous server that `which` selects, if that
    /// has not happened.
    pub(in crate::dispatch) fn recall_all(&mut self, which: impl Fn(u64) -> bool) {
        let sessions = self.unknown.extract_if(.., |session| which(*session));
        for session in sessions {
            self.recalls.push(session, Recall::All, run_clock::now());
        }
    }

    /// Replies to a session's request for recalls, if the session waits for them.
    pub(in crate::dispatch) fn answer_asker(&mut self, session: u64, due: &mut Due) {
        if let Some((sender, recalls)) = self.recalls.answer(session) {
            due.push((sender, Reply::Recalls(recalls)));
        }
    }

    /// Drops all recalls of a session, so that no reply waits for it. Returns false if the session
    /// had none.
    pub(in crate::dispatch) fn drop_recalls(&mut self, session: u64, due: &mut Due) -> bool {
        let asker = self.recalls.take_asker(session);
        due.extend(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))));
        due.extend(self.held_replies.session_ended(session));
        self.unknown.retain(|other| *other != session);
        self.recalls.end(session)
    }
}

/// Recalls, and the replies that wait for them.
#[derive(Debug)]
pub(crate) struct Pending {
    state: Ordered<State>,
    /// The number of recalls without an acknowledgement, plus the sessions in `unknown`.
    open: AtomicUsize,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending { state: Ordered::new(Rank::Recalls, State::default()), open: AtomicUsize::new(0) }
    }
}

impl Pending {
    /// Runs `step` under the lock.
    pub(in crate::dispatch) fn locked<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = step(&mut state);
        // Relaxed: a thread that has to see the value takes a lock after this one.
        self.open.store(state.recalls.len() + state.unknown.len(), Ordering::Relaxed);
        result
    }

    /// Returns the last recall of each session but `but` that is not acknowledged and that
    /// `concerns` selects. A request waits for them from now on. Sessions with unknown cache
    /// contents are included.
    pub(in crate::dispatch) fn open(&self, but: u64, concerns: impl Fn(&Recall) -> bool) -> Vec<Need> {
        match self.open.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.locked(|state| {
                state.recall_all(|session| session != but);
                state.recalls.open(but, concerns, run_clock::now()).collect()
            }),
        }
    }
}
