//! Replays the sessions of the previous server from the log. No I/O, no locks, no clock.
//!
//! [`SessionReplay`] applies the session operations of the log in order; [`SessionReplay::present`]
//! returns the sessions, locks and quarantined space that are left at its end. A session number is
//! never reused. So operations about an ended session have no effect. An operation that precedes
//! the description of its session is kept until the description follows.
//!
//! # Concurrency
//! Recovery owns the value; one thread uses it.

use std::collections::{BTreeMap, BTreeSet};

use rfs_proto::{Identity, SLOTS, speaks};

use super::{log::LogError, op::Mount};
use crate::{
    locks::{Locks, held_locks::Locked},
    space::{alloc::range::Range, quarantine::QuarantinedRange},
};

/// States whether a session can reconnect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// A session of a mount that reconnects.
    Mount(ReconnectingMount),
    /// A session that cannot reconnect.
    Abandoned,
}

/// A mount that reconnects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconnectingMount {
    /// Identity of the mount.
    pub mount: Identity,
    /// Version of the protocol of its last connection.
    pub version: u32,
    /// Name of its key; `None` for an export without keys.
    pub key: Option<String>,
    /// The mount may write.
    pub writes: bool,
    /// The mount caches attributes, names and pages.
    pub keeps: bool,
    /// The mount requires that no other session is attached.
    pub alone: bool,
}

/// The state of one session.
#[derive(Clone, Debug, Default)]
pub struct ReplayedSession {
    /// `None` while the log has no description of the session, only operations about it.
    kind: Option<SessionKind>,
    /// Open count and write access, by inode.
    pub opens: BTreeMap<u64, (u64, bool)>,
    /// Sequence number and reply of the last request, by slot.
    pub turns: BTreeMap<u32, (u64, Vec<u8>)>,
    /// First part of a value that the session sends in several requests.
    pub part: Vec<u8>,
}

/// The replayed sessions, with their locks and the space in quarantine.
#[derive(Debug, Default)]
pub struct SessionReplay {
    sessions: BTreeMap<u64, ReplayedSession>,
    locks: Locks,
    given_up: Quarantine,
}

/// The space in quarantine.
#[derive(Debug, Default)]
struct Quarantine {
    /// By first byte. Entries do not overlap.
    all: BTreeMap<u64, QuarantinedRange>,
    /// Inode and first byte of each entry of `all`.
    by_ino: BTreeSet<(u64, u64)>,
}

impl Quarantine {
    fn insert(&mut self, given: QuarantinedRange) {
        self.by_ino.insert((given.ino, given.range.start));
        self.all.insert(given.range.start, given);
    }

    fn remove(&mut self, start: u64) -> Option<QuarantinedRange> {
        let given = self.all.remove(&start)?;
        self.by_ino.remove(&(given.ino, start));
        Some(given)
    }

    /// Removes a session from the holders of all space that an inode has released so far.
    fn let_go(&mut self, session: u64, ino: u64) {
        let starts: Vec<u64> =
            self.by_ino.range((ino, 0)..=(ino, u64::MAX)).map(|(_, start)| *start).collect();
        for start in starts {
            let Some(given) = self.all.get_mut(&start) else { continue };
            given.holders.retain(|&holder| holder != session);
            if given.holders.is_empty() {
                self.remove(start);
            }
        }
    }
}

/// The state at the end of the log.
#[derive(Debug, Default)]
pub struct RemainingSessions {
    /// Sessions of mounts that reconnect.
    pub reconnecting: Vec<(u64, ReconnectingMount, ReplayedSession)>,
    /// Sessions that cannot reconnect.
    pub abandoned: Vec<u64>,
    /// Locks of the sessions that reconnect.
    pub locks: Locks,
    /// Space that a reconnecting session can still reach, by first byte.
    pub given_up: Vec<QuarantinedRange>,
}

impl SessionReplay {
    fn of(&mut self, session: u64) -> &mut ReplayedSession {
        self.sessions.entry(session).or_default()
    }

    /// Records that a mount's session is attached. A session cannot reconnect if this server does
    /// not speak the protocol version of its stored replies.
    pub fn attach(&mut self, session: u64, mount: &Mount<'_>) {
        let &Mount { version, mount, key, writes, keeps, alone } = mount;
        let key = key.map(String::from);
        let reconnecting = ReconnectingMount { mount, version, key, writes, keeps, alone };
        let kind = if speaks(version) { SessionKind::Mount(reconnecting) } else { SessionKind::Abandoned };
        self.of(session).kind = Some(kind);
    }

    /// Records an attached session that cannot reconnect.
    pub fn attach_abandoned(&mut self, session: u64) {
        self.of(session).kind = Some(SessionKind::Abandoned);
    }

    /// Records the end of a session.
    pub fn end(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.locks.forget_session(session);
    }

    /// Sets a session's open count and write access of an inode. A count of 0 also drops its locks
    /// there.
    pub fn open(&mut self, session: u64, ino: u64, open: (u64, bool)) {
        let opens = &mut self.of(session).opens;
        match open.0 {
            0 => {
                opens.remove(&ino);
                self.locks.forget(session, ino);
                // A later open of the inode returns the current layout, without the released space.
                self.given_up.let_go(session, ino);
            }
            _ => drop(opens.insert(ino, open)),
        }
    }

    /// Sets the lock state of a range of an inode.
    pub fn lock(&mut self, ino: u64, locked: &Locked) {
        self.locks.restore(ino, locked);
    }

    /// Records a slot's last reply, unless the log already has a later one.
    ///
    /// # Errors
    /// [`LogError::Nonsense`] if the slot is out of range or the sequence number is 0.
    pub fn turn(&mut self, session: u64, (slot, sequence): (u32, u64), reply: &[u8]) -> Result<(), LogError> {
        if slot >= SLOTS || sequence == 0 {
            return Err(LogError::Nonsense);
        }
        let last = self.of(session).turns.entry(slot).or_default();
        if sequence >= last.0 {
            *last = (sequence, reply.to_vec());
        }
        Ok(())
    }

    /// Sets the first part of a value that a session has sent.
    pub fn part(&mut self, session: u64, value: &[u8]) {
        self.of(session).part = value.to_vec();
    }

    /// Returns the sessions that can reach an inode's space. These include all sessions without
    /// reconnection, because the log does not record their open files.
    pub fn sessions_reaching(&self, ino: u64) -> Vec<u64> {
        let may =
            |has: &ReplayedSession| has.opens.contains_key(&ino) || has.kind == Some(SessionKind::Abandoned);
        self.sessions.iter().filter(|(_, has)| may(has)).map(|(&session, _)| session).collect()
    }

    /// Records ranges that an inode released while `holders` can reach them.
    ///
    /// # Errors
    /// [`LogError::Nonsense`] if a range ends beyond 2^64.
    pub fn give_up(&mut self, ino: u64, ranges: &[(u64, u64)], holders: &[u64]) -> Result<(), LogError> {
        for &(start, len) in ranges {
            start.checked_add(len).ok_or(LogError::Nonsense)?;
            let range = Range { start, len };
            self.reuse(range);
            self.given_up.insert(QuarantinedRange { range, ino, holders: holders.to_vec() });
        }
        Ok(())
    }

    /// Takes a range out of quarantine: a file uses it again.
    fn reuse(&mut self, range: Range) {
        let before = self.given_up.all.range(..range.end()).rev();
        let hit = before.take_while(|(_, given)| given.range.end() > range.start);
        let hit: Vec<u64> = hit.map(|(&start, _)| start).collect();
        for start in hit {
            let Some(given) = self.given_up.remove(start) else { continue };
            let end = given.range.end();
            let rest = [(start, range.start.max(start)), (range.end().min(end), end)];
            for (start, end) in rest.into_iter().filter(|(start, end)| start < end) {
                let range = Range { start, len: end - start };
                self.given_up.insert(QuarantinedRange { range, ..given.clone() });
            }
        }
    }

    /// Returns the state at the end of the log.
    ///
    /// `used` is the space of files; `is_there` tells whether an inode exists.
    pub fn present(mut self, used: &[Range], is_there: impl Fn(u64) -> bool) -> RemainingSessions {
        used.iter().for_each(|&range| self.reuse(range));
        let mut present = RemainingSessions::default();
        for (session, mut has) in self.sessions {
            has.opens.retain(|&ino, _| is_there(ino));
            match has.kind.take() {
                Some(SessionKind::Mount(mount)) => present.reconnecting.push((session, mount, has)),
                Some(SessionKind::Abandoned) => present.abandoned.push(session),
                None => {}
            }
        }
        let open = |session: u64, ino: u64| {
            let found = present.reconnecting.binary_search_by_key(&session, |(session, ..)| *session);
            found.is_ok_and(|at| present.reconnecting[at].2.opens.contains_key(&ino))
        };
        self.locks.retain(open);
        present.locks = self.locks;
        for mut given in self.given_up.all.into_values() {
            // Space that a session without reconnection can reach is quarantined elsewhere.
            given.holders.retain(|&session| open(session, given.ino));
            if !given.holders.is_empty() {
                present.given_up.push(given);
            }
        }
        present
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rfs_proto::{OLDEST_VERSION, VERSION};

    const B: u64 = rfs_proto::BLOCK;

    fn mount(version: u32) -> Mount<'static> {
        Mount { version, mount: Identity([5; 16]), key: Some("k"), writes: true, keeps: true, alone: false }
    }

    fn range(start: u64, len: u64) -> Range {
        Range { start: start * B, len: len * B }
    }

    #[test]
    fn replay_yields_the_remaining_sessions() {
        let mut sessions = SessionReplay::default();
        // An operation about a session may precede its description, or follow its end.
        sessions.open(1, 7, (2, true));
        sessions.turn(1, (3, 5), b"five").unwrap();
        sessions.turn(1, (3, 4), b"four").unwrap();
        sessions.attach(1, &mount(VERSION));
        sessions.attach(2, &mount(VERSION + 1));
        sessions.attach_abandoned(3);
        sessions.attach(5, &mount(OLDEST_VERSION));
        sessions.attach(6, &mount(OLDEST_VERSION - 1));
        sessions.attach(4, &mount(VERSION));
        sessions.end(4);
        sessions.open(4, 7, (1, false));
        sessions.open(1, 8, (1, false));
        sessions.open(1, 8, (0, false));
        sessions.open(1, 9, (1, false));
        sessions.part(1, b"part");
        let present = sessions.present(&[], |ino| ino != 9);
        let [(1, reconnecting, session), (5, older, _)] = &present.reconnecting[..] else {
            panic!("{present:?}")
        };
        assert_eq!((reconnecting.version, older.version), (VERSION, OLDEST_VERSION));
        assert_eq!((reconnecting.mount, reconnecting.key.as_deref()), (Identity([5; 16]), Some("k")));
        assert_eq!(session.opens, [(7, (2, true))].into());
        assert_eq!(session.turns, [(3, (5, b"five".to_vec()))].into());
        assert_eq!(session.part, b"part");
        assert_eq!(present.abandoned, [2, 3, 6]);
    }

    #[test]
    fn invalid_operations_are_rejected() {
        let mut sessions = SessionReplay::default();
        assert_eq!(sessions.turn(1, (SLOTS, 1), b""), Err(LogError::Nonsense));
        assert_eq!(sessions.turn(1, (0, 0), b""), Err(LogError::Nonsense));
        assert_eq!(sessions.give_up(1, &[(u64::MAX, 2)], &[1]), Err(LogError::Nonsense));
    }

    #[test]
    fn space_is_quarantined_while_a_session_with_the_inode_open_reaches_it() {
        let mut sessions = SessionReplay::default();
        sessions.attach(1, &mount(VERSION));
        sessions.attach_abandoned(2);
        sessions.open(1, 7, (1, true));
        sessions.give_up(7, &[(0, 8 * B), (20 * B, B)], &[1]).unwrap();
        sessions.give_up(8, &[(10 * B, B)], &[1]).unwrap();
        sessions.give_up(9, &[(12 * B, B)], &[2]).unwrap();
        // Released again in other pieces, and partly used by a file at the end.
        sessions.give_up(7, &[(3 * B, B)], &[1, 5]).unwrap();
        let present = sessions.present(&[range(4, 2), range(20, 4)], |_| true);
        let given = |start, len, ino, holders: &[u64]| QuarantinedRange {
            range: range(start, len),
            ino,
            holders: holders.to_vec(),
        };
        let expected = [given(0, 3, 7, &[1]), given(3, 1, 7, &[1]), given(6, 2, 7, &[1])];
        assert_eq!(present.given_up, expected);
    }

    /// A closed inode releases its quarantine; otherwise the range would stay out of use while the
    /// session has the inode open again.
    #[test]
    fn a_session_that_reopens_an_inode_does_not_hold_its_earlier_quarantine() {
        let mut sessions = SessionReplay::default();
        for session in [1, 2] {
            sessions.attach(session, &mount(VERSION));
            sessions.open(session, 7, (1, true));
        }
        sessions.open(1, 8, (1, true));
        sessions.give_up(7, &[(0, B), (2 * B, B)], &[1]).unwrap();
        sessions.give_up(7, &[(4 * B, 2 * B)], &[1, 2]).unwrap();
        sessions.give_up(8, &[(8 * B, B)], &[1]).unwrap();
        sessions.open(1, 7, (0, false));
        sessions.open(1, 7, (1, true));
        sessions.give_up(7, &[(5 * B, B)], &[1]).unwrap();
        let given = |start, ino, holders: &[u64]| QuarantinedRange {
            range: range(start, 1),
            ino,
            holders: holders.to_vec(),
        };
        let expected = [given(4, 7, &[2]), given(5, 7, &[1]), given(8, 8, &[1])];
        assert_eq!(sessions.present(&[], |_| true).given_up, expected);
    }
}
