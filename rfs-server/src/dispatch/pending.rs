//! Recalls that are not acknowledged, and the replies that wait for them.
//!
//! Threading: one lock for both. Whether there is any recall is told without it: every change asks that, and mostly there is none. A
//! recall is queued under the lock of the shard of its inode, which whoever changes that inode next takes after; so that he
//! finds what was queued, unless it is acknowledged.

use std::sync::atomic::{AtomicUsize, Ordering};

use rfs_proto::{Errno, Recall, Reply};

use super::{
    order::{Ordered, Rank},
    outcome::Sender,
};
use crate::{
    awake,
    recalls::{Need, Queues},
    waits::Waits,
};

/// Replies that have become due. They are sent when no lock is held.
pub(crate) type Due = Vec<(Sender, Reply)>;

/// What the lock protects.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) recalls: Queues<Sender>,
    pub(super) waits: Waits<(Sender, Reply)>,
    /// Sessions of the server before that keep nobody knows what, and have not been told to drop it.
    pub(super) unknown: Vec<u64>,
}

impl State {
    /// Recalls everything from those of the server before of whom nobody knows what they keep, as far as `which` says.
    pub(super) fn recall_all(&mut self, which: impl Fn(u64) -> bool) {
        let told = self.unknown.extract_if(.., |session| which(*session));
        for session in told {
            self.recalls.push(session, Recall::All, awake::now());
        }
    }

    /// Tells a session what is recalled from it, if it waits for that.
    pub(super) fn answer_asker(&mut self, session: u64, due: &mut Due) {
        if let Some((sender, recalls)) = self.recalls.answer(session) {
            due.push((sender, Reply::Recalls(recalls)));
        }
    }

    /// A session keeps nothing any more: nobody waits for it. False if it did not before.
    pub(super) fn keeps_no_longer(&mut self, session: u64, due: &mut Due) -> bool {
        let asker = self.recalls.take_asker(session);
        due.extend(asker.map(|sender| (sender, Reply::Error(Errno::EPROTO))));
        due.extend(self.waits.session_ended(session));
        self.unknown.retain(|other| *other != session);
        self.recalls.end(session)
    }
}

/// Recalls, and the replies that wait for them.
#[derive(Debug)]
pub(crate) struct Pending {
    state: Ordered<State>,
    /// Recalls that are not acknowledged, and sessions from which everything is to be recalled.
    open: AtomicUsize,
}

impl Default for Pending {
    fn default() -> Pending {
        Pending { state: Ordered::new(Rank::Recalls, State::default()), open: AtomicUsize::new(0) }
    }
}

impl Pending {
    /// Looks or changes, under the lock.
    pub(super) fn locked<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = step(&mut state);
        // Relaxed: whoever has to see it comes by way of another lock.
        self.open.store(state.recalls.len() + state.unknown.len(), Ordering::Relaxed);
        result
    }

    /// The last recall to each session but one that is not acknowledged and concerns something. Who keeps nobody knows what may keep that.
    pub(super) fn open(&self, but: u64, concerns: impl Fn(&Recall) -> bool) -> Vec<Need> {
        match self.open.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.locked(|state| {
                state.recall_all(|session| session != but);
                state.recalls.open(but, concerns).collect()
            }),
        }
    }
}
