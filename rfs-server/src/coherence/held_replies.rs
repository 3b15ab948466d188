//! Replies that are held until sessions acknowledge recalls. No I/O, no locks, no clock.
//!
//! # Concurrency
//! None; the lock that protects `recalls` protects the value. The type of a held reply is the
//! caller's.

use std::collections::{BTreeMap, HashMap};

use super::recall_queue::Need;

#[derive(Debug)]
struct Held<P> {
    /// Number of recalls that are not acknowledged.
    open: usize,
    held: P,
}

/// Replies, each with the recalls that it waits for.
#[derive(Debug)]
pub struct HeldReplies<P> {
    last: u64,
    replies: HashMap<u64, Held<P>>,
    /// Held replies by session and position of the recall.
    by_session: HashMap<u64, BTreeMap<u64, Vec<u64>>>,
}

impl<P> Default for HeldReplies<P> {
    fn default() -> HeldReplies<P> {
        HeldReplies { last: 0, replies: HashMap::new(), by_session: HashMap::new() }
    }
}

impl<P> HeldReplies<P> {
    /// Holds a reply until all these recalls are acknowledged. There is at least one, and none is
    /// acknowledged yet.
    pub fn hold(&mut self, needs: &[Need], held: P) {
        self.last += 1;
        for need in needs {
            self.by_session.entry(need.session).or_default().entry(need.place).or_default().push(self.last);
        }
        self.replies.insert(self.last, Held { open: needs.len(), held });
    }

    /// Processes a session's acknowledgement of its recalls before position `first`. Returns the
    /// replies that wait for no more recalls.
    pub fn acknowledged(&mut self, session: u64, first: u64) -> Vec<P> {
        let Some(places) = self.by_session.get_mut(&session) else { return Vec::new() };
        let rest = places.split_off(&first);
        let done = std::mem::replace(places, rest);
        if places.is_empty() {
            self.by_session.remove(&session);
        }
        self.release(done)
    }

    /// Removes a session. Returns the replies that wait for no more recalls.
    pub fn session_ended(&mut self, session: u64) -> Vec<P> {
        let done = self.by_session.remove(&session).unwrap_or_default();
        self.release(done)
    }

    /// Returns the number of replies.
    pub fn len(&self) -> usize {
        self.replies.len()
    }

    /// Returns how many replies wait for recalls of a session. A reply counts once for each recall.
    pub fn waiting_for(&self, session: u64) -> usize {
        self.by_session.get(&session).map_or(0, |places| places.values().map(Vec::len).sum())
    }

    /// Returns true if no reply is held.
    pub fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.by_session.is_empty()
    }

    fn release(&mut self, done: BTreeMap<u64, Vec<u64>>) -> Vec<P> {
        let mut released = Vec::new();
        for id in done.into_values().flatten() {
            if let Some(reply) = self.replies.get_mut(&id) {
                reply.open -= 1;
                if reply.open == 0 {
                    released.extend(self.replies.remove(&id).map(|reply| reply.held));
                }
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn need(session: u64, place: u64) -> Need {
        Need { session, place }
    }

    #[test]
    fn a_reply_is_held_until_all_recalls_are_acknowledged() {
        let mut replies = HeldReplies::default();
        replies.hold(&[need(1, 0), need(1, 1), need(2, 0)], 'a');
        replies.hold(&[need(1, 0)], 'b');
        replies.hold(&[need(2, 7)], 'c');
        assert_eq!((replies.len(), replies.waiting_for(1), replies.waiting_for(3)), (3, 3, 0));
        assert_eq!(replies.acknowledged(1, 0), []);
        assert_eq!(replies.acknowledged(1, 1), ['b']);
        assert_eq!(replies.acknowledged(2, 5), []);
        assert_eq!(replies.acknowledged(1, 2), ['a']);
        assert_eq!(replies.session_ended(2), ['c']);
        assert!(replies.replies.is_empty() && replies.by_session.is_empty());
    }

    proptest! {
        /// Each reply is released once, when the last of its recalls is acknowledged.
        #[test]
        fn agrees_with_a_list(steps in proptest::collection::vec(
            (0..4u64, 1..4u64, 0..12u64, proptest::collection::vec((1..4u64, 0..12u64), 1..5)), 1..60,
        )) {
            let mut replies = HeldReplies::default();
            let mut list: Vec<(Vec<Need>, usize)> = Vec::new();
            let mut first = [0u64; 4];
            for (at, (kind, session, to, needs)) in steps.into_iter().enumerate() {
                let before = list.len();
                let released = match kind {
                    0 | 1 => {
                        let open: Vec<Need> = needs
                            .into_iter()
                            .map(|(session, place)| need(session, place))
                            .filter(|need| need.place >= first[need.session as usize])
                            .collect();
                        if !open.is_empty() {
                            replies.hold(&open, at);
                            list.push((open, at));
                        }
                        continue;
                    }
                    2 => {
                        let first = &mut first[session as usize];
                        *first = to.max(*first);
                        list.iter_mut().for_each(|(needs, _)| needs.retain(|n| n.session != session || n.place >= *first));
                        replies.acknowledged(session, *first)
                    }
                    _ => {
                        list.iter_mut().for_each(|(needs, _)| needs.retain(|need| need.session != session));
                        replies.session_ended(session)
                    }
                };
                let mut expected: Vec<usize> = list.iter().filter(|(needs, _)| needs.is_empty()).map(|(_, at)| *at).collect();
                list.retain(|(needs, _)| !needs.is_empty());
                let mut released = released;
                released.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(&released, &expected);
                prop_assert_eq!(before - released.len(), replies.replies.len());
            }
        }
    }
}
