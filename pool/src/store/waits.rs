//! Replies that wait for the end of sessions.
//!
//! A fence, and the welcome of a session that follows earlier ones, are answered when sessions have
//! ended. A welcome is void when its session ends first.
//!
//! # Concurrency
//! Plain values. The service has a lock around them, and answers without it.

use std::collections::HashSet;

/// Replies that wait.
#[derive(Debug)]
pub(super) struct Waits<R>(Vec<Wait<R>>);

#[derive(Debug)]
struct Wait<R> {
    /// Sessions that have to end. It has at least one.
    sessions: HashSet<u64>,
    /// The session that may do nothing before the reply, and whose end voids it.
    newcomer: Option<u64>,
    reply: R,
}

/// Replies that wait no more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Released<R> {
    /// Replies to give.
    pub(super) due: Vec<R>,
    /// Replies that reach no session any more.
    pub(super) void: Vec<R>,
}

impl<R> Default for Waits<R> {
    fn default() -> Waits<R> {
        Waits(Vec::new())
    }
}

impl<R> Waits<R> {
    /// Keeps a reply until the sessions have ended. It may be the welcome of a `newcomer`.
    pub(super) fn add(&mut self, sessions: &[u64], newcomer: Option<u64>, reply: R) {
        debug_assert!(!sessions.is_empty());
        self.0.push(Wait { sessions: sessions.iter().copied().collect(), newcomer, reply });
    }

    /// Returns true while the session waits for its welcome.
    pub(super) fn is_newcomer(&self, session: u64) -> bool {
        self.0.iter().any(|wait| wait.newcomer == Some(session))
    }

    /// Notes that a session can reach nothing any more.
    pub(super) fn leave(&mut self, session: u64) -> Released<R> {
        let mut released = Released { due: Vec::new(), void: Vec::new() };
        for mut wait in std::mem::take(&mut self.0) {
            wait.sessions.remove(&session);
            if wait.newcomer == Some(session) {
                released.void.push(wait.reply);
            } else if wait.sessions.is_empty() {
                released.due.push(wait.reply);
            } else {
                self.0.push(wait);
            }
        }
        released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(due: &[&'static str], void: &[&'static str]) -> Released<&'static str> {
        Released { due: due.to_vec(), void: void.to_vec() }
    }

    #[test]
    fn a_reply_waits_for_all_of_its_sessions() {
        let mut waits = Waits::default();
        waits.add(&[10, 11], None, "fence");
        waits.add(&[10], Some(12), "welcome");
        assert!(waits.is_newcomer(12) && !waits.is_newcomer(10));
        assert_eq!(waits.leave(20), released(&[], &[]));
        assert_eq!(waits.leave(10), released(&["welcome"], &[]));
        assert!(!waits.is_newcomer(12));
        assert_eq!(waits.leave(11), released(&["fence"], &[]));
        assert_eq!(waits.leave(11), released(&[], &[]), "a reply is given once");
    }

    #[test]
    fn the_welcome_of_a_session_that_has_ended_is_void() {
        let mut waits = Waits::default();
        waits.add(&[10], Some(11), "first");
        waits.add(&[10, 11], Some(12), "second");
        assert_eq!(waits.leave(11), released(&[], &["first"]));
        assert_eq!(waits.leave(10), released(&["second"], &[]));
    }
}
