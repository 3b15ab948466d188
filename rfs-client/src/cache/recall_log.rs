//! A log of recent recalls, in order. No I/O, no locks, no clock.
//!
//! The client may handle a reply after a recall that the server sent later. Each request
//! therefore notes the number of recalls, and its reply is cached only if no later recall
//! concerns it.

use std::collections::VecDeque;

use rfs_proto::Recall;

use crate::cache::changes::name_removals::Answered;

/// Number of recalls in the log. Replies to requests from before the oldest are not cached.
const LOGGED_RECALLS: usize = 1024;

/// A time in the order of recalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// The time before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTime {
    pub(crate) recalled: Moment,
    /// Time among this client's own changes.
    pub(crate) changed: Moment,
    /// Time among the answers to removals of names.
    pub(crate) answered: Answered,
}

/// The recalls of a session.
#[derive(Debug, Default)]
pub(crate) struct RecallLog {
    count: u64,
    /// The last recalls, the newest at the end.
    recent: VecDeque<Recall>,
}

impl RecallLog {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Moment {
        Moment(self.count)
    }

    /// Logs a recall.
    pub(crate) fn note(&mut self, recall: Recall) {
        if self.recent.len() == LOGGED_RECALLS {
            self.recent.pop_front();
        }
        self.recent.push_back(recall);
        self.count += 1;
    }

    /// Logs a recall of everything: no reply in flight may be cached.
    pub(crate) fn note_all(&mut self) {
        self.recent.clear();
        self.count += 1;
    }

    fn any(&self, since: Moment, concerns: impl Fn(&Recall) -> bool) -> bool {
        let new = self.count.saturating_sub(since.0);
        // More recalls than the log has, or a recall of everything, may concern any entry.
        let Ok(new) = usize::try_from(new) else { return true };
        new > self.recent.len() || self.recent.iter().rev().take(new).any(concerns)
    }

    /// Returns true if a name, present or absent, was recalled since.
    pub(crate) fn name(&self, since: Moment, parent: u64, name: &[u8]) -> bool {
        self.any(since, |recall| recall.concerns_name(parent, name))
    }

    /// Returns true if all names of a directory were recalled since.
    pub(crate) fn names(&self, since: Moment, dir: u64) -> bool {
        self.any(since, |recall| matches!(recall, Recall::All) || *recall == Recall::Names { ino: dir })
    }

    /// Returns true if pages of an inode were recalled since.
    pub(crate) fn pages(&self, since: Moment, ino: u64) -> bool {
        self.any(since, |recall| recall.concerns_pages(ino))
    }

    /// Returns true if the attributes of an inode were recalled since.
    pub(crate) fn attr(&self, since: Moment, ino: u64) -> bool {
        self.any(since, |recall| recall.concerns(ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parent: u64, name: &str) -> Recall {
        Recall::Name { parent, name: name.into() }
    }

    #[test]
    fn recalls_concern_their_names_and_inodes() {
        let table = [
            (name(1, "a"), [true, false, false, true, false]),
            (Recall::Names { ino: 1 }, [true, true, false, true, false]),
            (Recall::Attr { ino: 1 }, [false, false, false, true, false]),
            (Recall::Pages { ino: 2 }, [false, false, false, false, true]),
            (Recall::Owner { ino: 1 }, [false, false, false, true, false]),
        ];
        for (recall, expected) in table {
            let mut log = RecallLog::default();
            let since = log.now();
            log.note(recall.clone());
            let r = &log;
            let found = [
                r.name(since, 1, b"a"),
                r.name(since, 1, b"b"),
                r.name(since, 2, b"a"),
                r.attr(since, 1),
                r.attr(since, 2),
            ];
            assert_eq!(found, expected, "{recall:?}");
            assert_eq!(r.names(since, 1), matches!(recall, Recall::Names { .. }));
            let after = r.now();
            assert!(!r.name(after, 1, b"a") && !r.attr(after, 1) && !r.names(after, 1));
        }
    }

    #[test]
    fn more_recalls_than_the_log_has_concern_everything() {
        let mut log = RecallLog::default();
        let since = log.now();
        for _ in 0..LOGGED_RECALLS {
            log.note(Recall::Attr { ino: 5 });
        }
        assert!(!log.attr(since, 6));
        log.note(Recall::Attr { ino: 5 });
        assert!(log.attr(since, 6));
    }
}
