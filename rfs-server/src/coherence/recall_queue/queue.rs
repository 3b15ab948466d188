//! The recalls of one session. No I/O, no locks, no clock.

use std::{collections::VecDeque, time::Instant};

use rfs_proto::{MAX_MESSAGE, Recall, Recalls};

/// Upper bound of a recall's bytes in a message, without a name.
const RECALL_BYTES: usize = 24;
/// Upper bound of the other bytes of the reply.
const REPLY_BYTES: usize = 32;

#[derive(Debug)]
pub(super) struct Queue<A> {
    /// Recalls that are not acknowledged. Each has the time since which a request waits for it;
    /// `None` if no request does.
    pub(super) recalls: VecDeque<(Recall, Option<Instant>)>,
    /// Position of the first of `recalls`.
    pub(super) first: u64,
    /// Number of `recalls` in the last reply; 0 if that is acknowledged.
    pub(super) sent: usize,
    /// Number of the last reply.
    pub(super) number: u64,
    /// Earlier replies came from another server: the session's first acknowledgement sets `number`.
    pub(super) adopts: bool,
    /// The session has a connection. False from the end of one until the session asks for recalls
    /// again.
    pub(super) is_connected: bool,
    /// The request for recalls that waits for a reply.
    pub(super) asker: Option<A>,
}

impl<A> Queue<A> {
    /// Returns the time since which a request waits for a recall. No request waits for
    /// [`Recall::Unlinked`], so a mount that is away for a time keeps its session.
    pub(super) fn oldest_awaited(&self) -> Option<Instant> {
        self.recalls.iter().filter_map(|&(_, since)| since).min()
    }

    /// Records that a request waits for a recall from now on, and so for all before it.
    pub(super) fn wait_for(&mut self, at: usize, now: Instant) {
        for (recall, since) in self.recalls.iter_mut().take(at + 1) {
            if is_awaited(recall) {
                since.get_or_insert(now);
            }
        }
    }

    /// Returns the next reply, if there are recalls and the last reply is acknowledged.
    pub(super) fn next(&mut self) -> Option<Recalls> {
        if self.sent > 0 || self.recalls.is_empty() {
            return None;
        }
        let mut bytes = REPLY_BYTES;
        let fitting = self.recalls.iter().take_while(|(recall, _)| {
            bytes += RECALL_BYTES
                + match recall {
                    Recall::Name { name, .. } => name.len(),
                    Recall::Names { .. }
                    | Recall::Attr { .. }
                    | Recall::Pages { .. }
                    | Recall::Owner { .. }
                    | Recall::Unlinked { .. }
                    | Recall::Written { .. }
                    | Recall::Layout { .. }
                    | Recall::Locks { .. }
                    | Recall::All => 0,
                };
            bytes <= MAX_MESSAGE
        });
        let recalls: Vec<Recall> = fitting.map(|(recall, _)| recall.clone()).collect();
        self.sent = recalls.len();
        self.number += 1;
        Some(Recalls { number: self.number, recalls })
    }
}

/// Returns true if the session is given up when it does not acknowledge the recall.
pub(super) fn is_awaited(recall: &Recall) -> bool {
    !matches!(recall, Recall::Unlinked { .. })
}
