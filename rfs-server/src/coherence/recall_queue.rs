//! Recalls to deliver: one queue per session, in the order of the changes. No I/O, no locks, no
//! clock.
//!
//! A recall stays queued until the session acknowledges it. Only one reply is in flight to a
//! session at a time; later recalls go into the next reply, as far as they fit.
//!
//! # Concurrency
//! None; one lock protects this and `held_replies`. The caller passes the time.

mod queue;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use rfs_proto::{Recall, Recalls};
use seeded_faults::seeded;

use queue::{Queue, is_awaited};

/// Upper bound of reply numbers that a session can have seen; no server sends as many replies.
const MAX_ADOPTED: u64 = u64::MAX / 2;

/// A recall that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// The session to acknowledge it.
    pub session: u64,
    /// Position of the recall among all recalls of the session.
    pub place: u64,
}

/// The session acknowledged a reply that it was not sent, or does not cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// Recall queues of all sessions that cache. `A` is the destination of a deferred reply.
#[derive(Debug)]
pub struct Queues<A> {
    queues: HashMap<u64, Queue<A>>,
    /// Number of recalls in all queues.
    open: usize,
}

impl<A> Default for Queues<A> {
    fn default() -> Queues<A> {
        Queues { queues: HashMap::new(), open: 0 }
    }
}

impl<A> Queues<A> {
    /// Adds a session that caches.
    pub fn begin(&mut self, session: u64) {
        self.insert(session, false);
    }

    /// Adds a session that does not cache but asks for recalls of layouts. Returns true if it has
    /// not asked before.
    pub fn asks(&mut self, session: u64) -> bool {
        let new = !self.queues.contains_key(&session);
        if new {
            self.insert(session, true);
        }
        new
    }

    /// Returns true if a session that was added late or restored has not acknowledged anything yet.
    pub fn is_first(&self, session: u64) -> bool {
        self.queues.get(&session).is_some_and(|queue| queue.adopts)
    }

    /// Adds a caching session of a previous server.
    pub fn restore(&mut self, session: u64) {
        self.insert(session, true);
    }

    fn insert(&mut self, session: u64, adopts: bool) {
        let recalls = VecDeque::new();
        let queue =
            Queue { recalls, first: 0, sent: 0, number: 0, adopts, is_connected: !adopts, asker: None };
        self.queues.insert(session, queue);
    }

    /// Records the end of a session's connection; the session is kept for its mount.
    pub fn disconnect(&mut self, session: u64) {
        if let Some(queue) = self.queues.get_mut(&session) {
            queue.is_connected = false;
        }
    }

    /// Returns true if a session takes recalls and has a connection.
    pub fn is_connected(&self, session: u64) -> bool {
        self.queues.get(&session).is_some_and(|queue| queue.is_connected)
    }

    /// Returns the number of recalls that are not acknowledged.
    pub fn len(&self) -> usize {
        self.open
    }

    /// Returns true if all recalls are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Removes a session. Returns false if it has no queue.
    pub fn end(&mut self, session: u64) -> bool {
        let ended = self.queues.remove(&session);
        self.open -= ended.as_ref().map_or(0, |queue| queue.recalls.len());
        ended.is_some()
    }

    /// Removes and returns the waiting request for a session's recalls.
    pub fn take_asker(&mut self, session: u64) -> Option<A> {
        self.queues.get_mut(&session)?.asker.take()
    }

    /// Queues a recall that a request waits for; returns `None` if the session has no queue.
    pub fn push(&mut self, session: u64, recall: Recall, now: Instant) -> Option<Need> {
        let since = Some(now).filter(|_| is_awaited(&recall));
        self.push_since(session, recall, since)
    }

    /// Queues a recall that no request waits for yet; returns `None` if the session has no queue.
    /// The recall timeout begins when a request has to wait for it.
    pub fn push_unawaited(&mut self, session: u64, recall: Recall) -> Option<Need> {
        self.push_since(session, recall, None)
    }

    /// Queues the recalls of unlinked inodes, except those that are queued already.
    pub fn push_unlinked(&mut self, session: u64, inos: impl IntoIterator<Item = u64>) {
        let Some(queue) = self.queues.get(&session) else { return };
        let queued = queue.recalls.iter().filter_map(|(recall, _)| match recall {
            Recall::Unlinked { ino } => Some(*ino),
            _ => None,
        });
        let queued: HashSet<u64> = queued.collect();
        for ino in inos.into_iter().filter(|ino| !queued.contains(ino)) {
            self.push_since(session, Recall::Unlinked { ino }, None);
        }
    }

    fn push_since(&mut self, session: u64, recall: Recall, since: Option<Instant>) -> Option<Need> {
        let queue = self.queues.get_mut(&session)?;
        queue.recalls.push_back((recall, since));
        self.open += 1;
        Some(Need { session, place: queue.first + queue.recalls.len() as u64 - 1 })
    }

    /// Returns the last open recall that `concerns` matches, for each session except `but`. A
    /// changing request waits for these from now on, even if another request caused them.
    pub fn open(
        &mut self,
        but: u64,
        concerns: impl Fn(&Recall) -> bool,
        now: Instant,
    ) -> impl Iterator<Item = Need> {
        let others = self.queues.iter_mut().filter(move |(session, _)| **session != but);
        others.filter_map(move |(&session, queue)| {
            let last = queue.recalls.iter().rposition(|(recall, _)| concerns(recall))?;
            queue.wait_for(last, now);
            Some(Need { session, place: queue.first + last as u64 })
        })
    }

    /// Returns true while a recall is not acknowledged.
    pub fn is_open(&self, need: Need) -> bool {
        self.queues.get(&need.session).is_some_and(|queue| queue.first <= need.place)
    }

    /// Returns true while a session has a queue. A session that was given up has none.
    pub fn has_queue(&self, session: u64) -> bool {
        self.queues.contains_key(&session)
    }

    /// Acknowledges all replies up to number `done`, and calls `each` with each recall that this
    /// completes. Recalls that were sent but not acknowledged are sent again. Returns the position
    /// of the first open recall.
    ///
    /// # Errors
    /// [`Unknown`] if the session has no queue or was not sent `done`.
    pub fn acknowledge(
        &mut self,
        session: u64,
        done: u64,
        mut each: impl FnMut(&Recall),
    ) -> Result<u64, Unknown> {
        let queue = self.queues.get_mut(&session).ok_or(Unknown)?;
        queue.is_connected = true;
        // No server sends as many replies.
        if std::mem::take(&mut queue.adopts) && done <= MAX_ADOPTED {
            queue.number = done;
        }
        if done > queue.number {
            return Err(Unknown);
        }
        let sent = std::mem::take(&mut queue.sent);
        if done == queue.number {
            queue.recalls.drain(..sent).map(|(recall, _)| recall).for_each(|recall| each(&recall));
            queue.first += sent as u64;
            self.open -= sent;
        }
        Ok(queue.first)
    }

    /// Returns the next reply to a session, if there are recalls to send.
    pub fn next(&mut self, session: u64) -> Option<Recalls> {
        self.queues.get_mut(&session)?.next()
    }

    /// Makes `asker` the destination of the session's next reply. Returns the previous destination,
    /// or `asker` if the session has no queue; it gets no reply.
    pub fn wait(&mut self, session: u64, asker: A) -> Option<A> {
        match self.queues.get_mut(&session) {
            Some(queue) => queue.asker.replace(asker),
            None => Some(asker),
        }
    }

    /// Returns a reply and its destination, if there are recalls and a waiting request.
    pub fn answer(&mut self, session: u64) -> Option<(A, Recalls)> {
        let queue = self.queues.get_mut(&session)?;
        let asker = queue.asker.take()?;
        match queue.next() {
            Some(recalls) => Some((asker, recalls)),
            None => {
                queue.asker = Some(asker);
                None
            }
        }
    }

    /// Returns the sessions that have not acknowledged recalls that requests may wait for. Each has
    /// the number of its recalls, and the time since which a request waits.
    pub fn unacknowledged(&self) -> impl Iterator<Item = (u64, usize, Instant)> {
        self.queues.iter().filter_map(|(&session, queue)| {
            queue.oldest_awaited().map(|since| (session, queue.recalls.len(), since))
        })
    }

    /// Returns the time when the first session misses the recall timeout.
    pub fn deadline(&self, timeout: Duration) -> Option<Instant> {
        let oldest = self.queues.values().filter_map(Queue::oldest_awaited);
        oldest.map(|since| since + timeout).min()
    }

    /// Returns the sessions that missed the recall timeout.
    pub fn overdue(&self, timeout: Duration, now: Instant) -> Vec<u64> {
        seeded!(SilentNotGivenUp => return Vec::new());
        let late = |queue: &Queue<A>| queue.oldest_awaited().is_some_and(|since| since + timeout <= now);
        self.queues.iter().filter(|(_, queue)| late(queue)).map(|(&session, _)| session).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rfs_proto::MAX_MESSAGE;

    use super::*;

    fn acknowledge<A>(queues: &mut Queues<A>, session: u64, done: u64) -> Result<u64, Unknown> {
        queues.acknowledge(session, done, |_| {})
    }

    fn attr(ino: u64) -> Recall {
        Recall::Attr { ino }
    }

    fn reply(number: u64, inos: &[u64]) -> Recalls {
        Recalls { number, recalls: inos.iter().map(|&ino| attr(ino)).collect() }
    }

    #[test]
    fn one_reply_at_a_time() {
        let mut queues = Queues::default();
        let now = Instant::now();
        assert_eq!(queues.push(1, attr(5), now), None);
        assert_eq!(acknowledge(&mut queues, 1, 0), Err(Unknown));
        assert_eq!(queues.wait(1, 'x'), Some('x'));
        queues.begin(1);
        assert_eq!((acknowledge(&mut queues, 1, 0), acknowledge(&mut queues, 1, 1)), (Ok(0), Err(Unknown)));
        assert_eq!((queues.wait(1, 'a'), queues.answer(1)), (None, None));
        let need = queues.push(1, attr(5), now).unwrap();
        assert_eq!(queues.answer(1), Some(('a', reply(1, &[5]))));
        let later = queues.push(1, attr(6), now).unwrap();
        assert_eq!((queues.next(1), queues.answer(1)), (None, None));
        assert!(queues.is_open(need) && queues.is_open(later));
        assert_eq!(acknowledge(&mut queues, 1, 1), Ok(1));
        assert!(!queues.is_open(need) && queues.is_open(later));
        assert_eq!(queues.next(1), Some(reply(2, &[6])));
        // A repeated acknowledgement of the previous reply resends the recalls.
        assert_eq!(acknowledge(&mut queues, 1, 1), Ok(1));
        assert_eq!(queues.next(1), Some(reply(3, &[6])));
        assert_eq!(acknowledge(&mut queues, 1, 4), Err(Unknown));
        assert_eq!(acknowledge(&mut queues, 1, 3), Ok(2));
        assert_eq!((queues.next(1), queues.wait(1, 'b'), queues.wait(1, 'c')), (None, None, Some('b')));
        assert_eq!((queues.take_asker(1), queues.take_asker(1)), (Some('c'), None));
        assert!(queues.end(1) && !queues.end(1) && !queues.is_open(later));
    }

    #[test]
    fn open_recalls_concern_later_changes() {
        let mut queues = Queues::<()>::default();
        let now = Instant::now();
        for session in 1..=3 {
            queues.begin(session);
        }
        let open = |queues: &mut Queues<()>, but: u64, ino: u64| {
            let mut needs: Vec<Need> = queues.open(but, |recall| recall.concerns(ino), now).collect();
            needs.sort();
            needs
        };
        queues.push(1, attr(5), now);
        let last = queues.push(1, Recall::Pages { ino: 5 }, now).unwrap();
        queues.push(1, attr(6), now);
        let other = queues.push(2, Recall::Name { parent: 5, name: b"a".to_vec() }, now).unwrap();
        assert_eq!(open(&mut queues, 3, 5), [last, other]);
        assert_eq!(open(&mut queues, 1, 5), [other]);
        assert_eq!(open(&mut queues, 3, 7), []);
        let number = queues.next(1).unwrap().number;
        assert_eq!(open(&mut queues, 3, 5), [last, other], "told is not done");
        acknowledge(&mut queues, 1, number).unwrap();
        assert_eq!(open(&mut queues, 3, 5), [other]);
    }

    #[test]
    fn a_session_is_connected_until_its_connection_ends_and_from_its_next_request_on() {
        let mut queues = Queues::<()>::default();
        assert!(!queues.is_connected(1));
        queues.begin(1);
        queues.restore(2);
        assert!(queues.is_connected(1) && !queues.is_connected(2));
        queues.disconnect(1);
        assert!(!queues.is_connected(1));
        for session in [1, 2] {
            acknowledge(&mut queues, session, 0).unwrap();
            assert!(queues.is_connected(session));
        }
    }

    #[test]
    fn overdue_sessions() {
        let mut queues = Queues::<()>::default();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        queues.begin(1);
        queues.begin(2);
        assert_eq!((queues.deadline(second), queues.overdue(second, start + 9 * second)), (None, vec![]));
        queues.push(1, attr(5), start + second);
        queues.push(2, attr(5), start);
        queues.push(2, attr(6), start + 3 * second);
        assert_eq!(queues.deadline(second), Some(start + second));
        assert!(queues.overdue(second, start).is_empty());
        assert_eq!(queues.overdue(second, start + second), [2]);
        queues.next(2);
        // A recall that was sent is not acknowledged.
        assert_eq!(queues.overdue(second, start + second), [2]);
        acknowledge(&mut queues, 2, 1).unwrap();
        assert_eq!(queues.overdue(second, start + 2 * second), [1]);
        assert_eq!(queues.deadline(second), Some(start + 2 * second));
    }

    /// A mount that is away keeps its session while only recalls are open that no request waits
    /// for. A request that waits for one later starts the timeout.
    #[test]
    fn recalls_that_no_request_waits_for_are_never_overdue() {
        let mut queues = Queues::<()>::default();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        queues.begin(1);
        let name = Recall::Name { parent: 9, name: b"a".to_vec() };
        assert!(queues.push_unawaited(1, name).is_some());
        let need = queues.push_unawaited(1, attr(5)).unwrap();
        queues.push(1, Recall::Unlinked { ino: 5 }, start);
        assert_eq!((queues.deadline(second), queues.overdue(second, start + 99 * second)), (None, vec![]));
        assert_eq!(queues.unacknowledged().count(), 0);
        queues.push(1, attr(6), start + 20 * second);
        assert_eq!(queues.deadline(second), Some(start + 21 * second));
        // An unlinked inode comes behind recalls of its attributes.
        let later = start + 30 * second;
        let needs: Vec<Need> = queues.open(2, |recall| recall.concerns(5), later).collect();
        assert_eq!(needs.iter().map(|need| need.place).collect::<Vec<_>>(), [need.place + 1]);
        assert_eq!(queues.deadline(second), Some(start + 21 * second), "the earlier wait counts");
        let number = queues.next(1).unwrap().number;
        queues.push_unawaited(1, attr(7));
        acknowledge(&mut queues, 1, number).unwrap();
        assert_eq!(queues.deadline(second), None);
        assert_eq!(queues.open(2, |recall| recall.concerns(7), later).count(), 1);
        assert_eq!(queues.overdue(second, later + second), [1]);
    }

    /// Detects a queue that grows with each return of a mount that acknowledges nothing.
    #[test]
    fn an_unlinked_inode_is_queued_once() {
        let mut queues = Queues::<()>::default();
        queues.push_unlinked(1, [5]);
        assert!(queues.is_empty(), "the session takes no recalls");
        queues.begin(1);
        queues.push(1, attr(5), Instant::now());
        (0..3).for_each(|_| queues.push_unlinked(1, [5, 6]));
        queues.push_unlinked(1, [6, 7]);
        let unlinked = [5, 6, 7].map(|ino| Recall::Unlinked { ino });
        assert_eq!(queues.next(1).unwrap().recalls, [vec![attr(5)], unlinked.to_vec()].concat());
    }

    proptest! {
        /// All recalls arrive once and in order in any split into replies, and each reply fits.
        #[test]
        fn all_arrives_in_order(groups in proptest::collection::vec((0..700usize, 1..=255usize), 1..6)) {
            let mut queues = Queues::<()>::default();
            queues.begin(1);
            let (mut asked, mut told) = (Vec::new(), Vec::new());
            for (count, len) in groups {
                for at in 0..count as u64 {
                    let recall = match at % 3 {
                        0 => Recall::Name { parent: u64::MAX - at, name: vec![b'x'; len] },
                        1 => Recall::Pages { ino: u64::MAX - at },
                        _ => Recall::Names { ino: at },
                    };
                    queues.push(1, recall.clone(), Instant::now());
                    asked.push(recall);
                }
                if let Some(reply) = queues.next(1) {
                    let mut bytes = Vec::new();
                    rfs_proto::encode_reply(&rfs_proto::Reply::Recalls(reply.clone()), &mut bytes);
                    prop_assert!(bytes.len() <= MAX_MESSAGE);
                    told.extend(reply.recalls);
                    prop_assert_eq!(acknowledge(&mut queues, 1, reply.number), Ok(told.len() as u64));
                }
            }
            while let Some(reply) = queues.next(1) {
                told.extend(reply.recalls);
                prop_assert_eq!(acknowledge(&mut queues, 1, reply.number), Ok(told.len() as u64));
            }
            prop_assert_eq!(told, asked);
        }
    }
}
