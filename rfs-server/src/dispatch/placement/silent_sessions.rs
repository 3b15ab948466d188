//! Sessions that take no recalls, and hold space of a store that drains.
//!
//! Space that a file gives up stays in quarantine until each session with a layout of it has
//! acknowledged a recall. A session that has never asked for recalls has no queue for them, and
//! would hold the space until it closes the file. It gets a queue with these recalls, so the server
//! ends the session when it misses the recall timeout.
//!
//! # Concurrency
//! Any thread. Takes the lock of the space, then that of the recalls.

use std::collections::BTreeSet;

use rfs_proto::Recall;

use super::Placement;
use crate::coherence::run_clock;

impl Placement<'_> {
    /// Queues recalls for the sessions that take none and hold space of a store.
    pub fn recall_from_silent_sessions(self, store: u16) {
        let (mut recalled, mut due) = (BTreeSet::new(), Vec::new());
        for (holder, ino, generation) in self.store.space.holders_in(store) {
            let Some(session) = self.sessions.get(holder) else { continue };
            self.store.pending.locked(|state| {
                // The end of a session takes this lock later, and removes the queue.
                if !session.is_attached() || (!recalled.contains(&holder) && !state.recalls.asks(holder)) {
                    return;
                }
                state.recalls.push(holder, Recall::Layout { ino, generation }, run_clock::now());
                // After its first recall the session may wait for the next one.
                state.answer_asker(holder, &mut due);
                recalled.insert(holder);
            });
        }
        self.store.send(due);
        if !recalled.is_empty() {
            self.store.alarm.recalled();
        }
    }
}
