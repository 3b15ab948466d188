//! Grants to deliver: results of lock requests that waited, by session. No I/O, no locks, no clock.
//!
//! # Concurrency
//! None; one lock of its own protects the value.

use std::collections::HashMap;

use rfs_proto::Granted;

/// Maximum number of grants in a reply, which has room for more.
const MAX_GRANTED: usize = 1024;

/// Queues of grants, by session. `A` is the destination of a deferred reply.
#[derive(Debug)]
pub struct Grants<A>(HashMap<u64, Queue<A>>);

#[derive(Debug)]
struct Queue<A> {
    untold: Vec<Granted>,
    /// The last reply. It has arrived if the session asks again over the same connection.
    sent: Vec<Granted>,
    asker: Option<A>,
}

impl<A> Default for Queue<A> {
    fn default() -> Queue<A> {
        Queue { untold: Vec::new(), sent: Vec::new(), asker: None }
    }
}

impl<A> Queue<A> {
    fn next(&mut self) -> Option<Vec<Granted>> {
        let len = self.untold.len().min(MAX_GRANTED);
        (len > 0).then(|| {
            self.sent = self.untold.drain(..len).collect();
            self.sent.clone()
        })
    }
}

impl<A> Default for Grants<A> {
    fn default() -> Grants<A> {
        Grants(HashMap::new())
    }
}

impl<A> Grants<A> {
    /// Queues a grant for a session.
    pub fn push(&mut self, session: u64, granted: Granted) {
        self.0.entry(session).or_default().untold.push(granted);
    }

    /// Returns the number of queued grants of a session.
    pub fn untold(&self, session: u64) -> usize {
        self.0.get(&session).map_or(0, |queue| queue.untold.len())
    }

    /// Returns the next reply to a session, if there are grants.
    pub fn next(&mut self, session: u64) -> Option<Vec<Granted>> {
        let queue = self.0.get_mut(&session)?;
        queue.sent.clear();
        queue.next()
    }

    /// Makes `asker` the destination of the session's next reply. Returns the previous destination.
    pub fn wait(&mut self, session: u64, asker: A) -> Option<A> {
        self.0.entry(session).or_default().asker.replace(asker)
    }

    /// Returns a reply and its destination, if there are grants and a waiting request.
    pub fn answer(&mut self, session: u64) -> Option<(A, Vec<Granted>)> {
        let queue = self.0.get_mut(&session)?;
        let asker = queue.asker.take()?;
        match queue.next() {
            Some(granted) => Some((asker, granted)),
            None => {
                queue.asker = Some(asker);
                None
            }
        }
    }

    /// Records that a session continues over another connection: the last reply may be lost, so it
    /// is queued again. Returns the waiting request.
    pub fn resume(&mut self, session: u64) -> Option<A> {
        let queue = self.0.get_mut(&session)?;
        let lost = std::mem::take(&mut queue.sent);
        queue.untold.splice(..0, lost);
        queue.asker.take()
    }

    /// Removes a session. Returns its waiting request.
    pub fn end(&mut self, session: u64) -> Option<A> {
        self.0.remove(&session)?.asker
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{Errno, MAX_MESSAGE, Reply, encode_reply};

    use super::*;

    fn granted(ticket: u64) -> Granted {
        Granted { ticket, outcome: Err(Errno::EDEADLK) }
    }

    #[test]
    fn each_grant_is_sent_once() {
        let mut grants = Grants::default();
        assert_eq!((grants.next(1), grants.end(1)), (None, None));
        assert_eq!((grants.wait(1, 'a'), grants.wait(1, 'b'), grants.answer(1)), (None, Some('a'), None));
        grants.push(1, granted(5));
        grants.push(1, granted(6));
        grants.push(2, granted(7));
        assert_eq!(grants.untold(1), 2);
        assert_eq!(grants.answer(1), Some(('b', vec![granted(5), granted(6)])));
        assert_eq!((grants.answer(1), grants.answer(2), grants.untold(1)), (None, None, 0));
        assert_eq!((grants.next(2), grants.next(2)), (Some(vec![granted(7)]), None));
        assert_eq!((grants.wait(1, 'c'), grants.end(1), grants.end(1)), (None, Some('c'), None));
    }

    #[test]
    fn grants_that_may_be_lost_are_sent_again() {
        let mut grants = Grants::default();
        assert_eq!(grants.resume(1), None);
        grants.push(1, granted(5));
        grants.push(1, granted(6));
        assert_eq!(grants.next(1), Some(vec![granted(5), granted(6)]));
        grants.push(1, granted(7));
        assert_eq!(grants.resume(1), None::<char>);
        assert_eq!(grants.next(1), Some(vec![granted(5), granted(6), granted(7)]));
        // A further request confirms that the last reply has arrived.
        assert_eq!((grants.next(1), grants.wait(1, 'a')), (None, None));
        grants.push(1, granted(8));
        assert_eq!(grants.resume(1), Some('a'));
        assert_eq!((grants.answer(1), grants.next(1)), (None, Some(vec![granted(8)])));
    }

    #[test]
    fn a_reply_fits() {
        let mut grants = Grants::<()>::default();
        let outcome = Ok(rfs_proto::Locked { visits: u64::MAX, alone: true });
        let all: Vec<Granted> = (0..3000).map(|at| Granted { ticket: u64::MAX - at, outcome }).collect();
        all.iter().for_each(|granted| grants.push(1, *granted));
        let (mut told, mut bytes) = (Vec::new(), Vec::new());
        while let Some(next) = grants.next(1) {
            encode_reply(&Reply::Grants(next.clone()), &mut bytes);
            assert!(bytes.len() <= MAX_MESSAGE);
            told.extend(next);
        }
        assert_eq!(told, all);
    }
}
