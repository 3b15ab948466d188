//! What a log says of the sessions of the server before. Pure.
//!
//! A session's number is never given to another one, so that what is said of one that has left means nothing, and of one that the log
//! comes to describe later is kept until then.
//!
//! Threading: none; recovery has it to itself.

use std::collections::{BTreeMap, BTreeSet};

use rfs_proto::{Identity, SLOTS, VERSION};

use super::{
    log::LogError,
    op::{Locked, Mount},
};
use crate::{alloc::Range, locks::Locks};

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A mount's that comes back.
    Mount(Returning),
    /// Nobody's who comes back.
    Stranger,
}

/// A mount that comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returning {
    /// Which one.
    pub mount: Identity,
    /// The name of its key.
    pub key: Option<String>,
    /// It may change something.
    pub writes: bool,
    /// It keeps what it is told.
    pub keeps: bool,
    /// Nobody else may be attached.
    pub alone: bool,
}

/// What a session has.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// `None` if only late news of it are in the log.
    whose: Option<Whose>,
    /// How often it has each inode open, and whether it may write to it.
    pub opens: BTreeMap<u64, (u64, bool)>,
    /// Number and reply of the last request of each slot.
    pub turns: BTreeMap<u32, (u64, Vec<u8>)>,
    /// The beginning of a value.
    pub part: Vec<u8>,
}

/// Space that was given up while somebody could reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Where.
    pub range: Range,
    /// By which inode.
    pub ino: u64,
    /// The sessions that can, while they have it open.
    pub holders: Vec<u64>,
}

/// The sessions.
#[derive(Debug, Default)]
pub struct Before {
    sessions: BTreeMap<u64, Session>,
    locks: Locks,
    given_up: AllGivenUp,
}

/// All that was given up.
#[derive(Debug, Default)]
struct AllGivenUp {
    /// By first byte; none lies over another.
    all: BTreeMap<u64, GivenUp>,
    /// Inodes, and where what they gave up begins.
    by_ino: BTreeSet<(u64, u64)>,
}

impl AllGivenUp {
    fn insert(&mut self, given: GivenUp) {
        self.by_ino.insert((given.ino, given.range.start));
        self.all.insert(given.range.start, given);
    }

    fn remove(&mut self, start: u64) -> Option<GivenUp> {
        let given = self.all.remove(&start)?;
        self.by_ino.remove(&(given.ino, start));
        Some(given)
    }

    /// A session reaches nothing any more of what an inode has given up so far.
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

/// What there is in the end.
#[derive(Debug, Default)]
pub struct Present {
    /// Those of mounts that come back, with what they have.
    pub returning: Vec<(u64, Returning, Session)>,
    /// The others.
    pub strangers: Vec<u64>,
    /// What is locked.
    pub locks: Locks,
    /// In order.
    pub given_up: Vec<GivenUp>,
}

impl Before {
    fn of(&mut self, session: u64) -> &mut Session {
        self.sessions.entry(session).or_default()
    }

    /// A session of a mount is attached. One that speaks another version of the protocol cannot come back.
    pub fn come(&mut self, session: u64, mount: &Mount<'_>) {
        let &Mount { version, mount, key, writes, keeps, alone } = mount;
        let returning = Returning { mount, key: key.map(String::from), writes, keeps, alone };
        let whose = if version == VERSION { Whose::Mount(returning) } else { Whose::Stranger };
        self.of(session).whose = Some(whose);
    }

    /// Another one is.
    pub fn come_as_stranger(&mut self, session: u64) {
        self.of(session).whose = Some(Whose::Stranger);
    }

    /// A session has ended.
    pub fn leave(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.locks.forget_session(session);
    }

    /// A session has an inode open so often, and may write to it.
    pub fn open(&mut self, session: u64, ino: u64, open: (u64, bool)) {
        let opens = &mut self.of(session).opens;
        match open.0 {
            0 => {
                opens.remove(&ino);
                self.locks.forget(session, ino);
                // If it opens the inode again it finds another layout.
                self.given_up.let_go(session, ino);
            }
            _ => drop(opens.insert(ino, open)),
        }
    }

    /// An owner has this of an inode.
    pub fn lock(&mut self, ino: u64, locked: &Locked) {
        self.locks.restore(ino, locked);
    }

    /// What a session asked for under a number has led to this.
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

    /// A session has sent the beginning of a value.
    pub fn part(&mut self, session: u64, value: &[u8]) {
        self.of(session).part = value.to_vec();
    }

    /// The sessions that can reach an inode's space: nobody knows what those that do not come back have open.
    pub fn who_may_reach(&self, ino: u64) -> Vec<u64> {
        let may = |has: &Session| has.opens.contains_key(&ino) || has.whose == Some(Whose::Stranger);
        self.sessions.iter().filter(|(_, has)| may(has)).map(|(&session, _)| session).collect()
    }

    /// An inode has given up space that these sessions can reach.
    pub fn give_up(&mut self, ino: u64, ranges: &[(u64, u64)], holders: &[u64]) -> Result<(), LogError> {
        for &(start, len) in ranges {
            start.checked_add(len).ok_or(LogError::Nonsense)?;
            let range = Range { start, len };
            self.reuse(range);
            self.given_up.insert(GivenUp { range, ino, holders: holders.to_vec() });
        }
        Ok(())
    }

    /// A range is somebody's again: whoever had it before does not reach it any more.
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
                self.given_up.insert(GivenUp { range, ..given.clone() });
            }
        }
    }

    /// What there is. `used`: the space of files. `is_there`: inodes that are.
    pub fn present(mut self, used: &[Range], is_there: impl Fn(u64) -> bool) -> Present {
        used.iter().for_each(|&range| self.reuse(range));
        let mut present = Present::default();
        for (session, mut has) in self.sessions {
            has.opens.retain(|&ino, _| is_there(ino));
            match has.whose.take() {
                Some(Whose::Mount(mount)) => present.returning.push((session, mount, has)),
                Some(Whose::Stranger) => present.strangers.push(session),
                None => {}
            }
        }
        let open = |session: u64, ino: u64| {
            let found = present.returning.binary_search_by_key(&session, |(session, ..)| *session);
            found.is_ok_and(|at| present.returning[at].2.opens.contains_key(&ino))
        };
        self.locks.retain(open);
        present.locks = self.locks;
        for mut given in self.given_up.all.into_values() {
            // What strangers can reach is kept from everybody in any case.
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

    const B: u64 = rfs_proto::BLOCK;

    fn mount(version: u32) -> Mount<'static> {
        Mount { version, mount: Identity([5; 16]), key: Some("k"), writes: true, keeps: true, alone: false }
    }

    fn range(start: u64, len: u64) -> Range {
        Range { start: start * B, len: len * B }
    }

    #[test]
    fn who_is_there_and_what_he_has() {
        let mut before = Before::default();
        // News of a session may come before it is described, and after it has left.
        before.open(1, 7, (2, true));
        before.turn(1, (3, 5), b"five").unwrap();
        before.turn(1, (3, 4), b"four").unwrap();
        before.come(1, &mount(VERSION));
        before.come(2, &mount(VERSION + 1));
        before.come_as_stranger(3);
        before.come(4, &mount(VERSION));
        before.leave(4);
        before.open(4, 7, (1, false));
        before.open(1, 8, (1, false));
        before.open(1, 8, (0, false));
        before.open(1, 9, (1, false));
        before.part(1, b"part");
        let present = before.present(&[], |ino| ino != 9);
        let [(1, returning, session)] = &present.returning[..] else { panic!("{present:?}") };
        assert_eq!((returning.mount, returning.key.as_deref()), (Identity([5; 16]), Some("k")));
        assert_eq!(session.opens, [(7, (2, true))].into());
        assert_eq!(session.turns, [(3, (5, b"five".to_vec()))].into());
        assert_eq!(session.part, b"part");
        assert_eq!(present.strangers, [2, 3]);
    }

    #[test]
    fn nonsense() {
        let mut before = Before::default();
        assert_eq!(before.turn(1, (SLOTS, 1), b""), Err(LogError::Nonsense));
        assert_eq!(before.turn(1, (0, 0), b""), Err(LogError::Nonsense));
        assert_eq!(before.give_up(1, &[(u64::MAX, 2)], &[1]), Err(LogError::Nonsense));
    }

    #[test]
    fn space_is_kept_from_others_while_who_can_reach_it_has_the_inode_open() {
        let mut before = Before::default();
        before.come(1, &mount(VERSION));
        before.come_as_stranger(2);
        before.open(1, 7, (1, true));
        before.give_up(7, &[(0, 8 * B), (20 * B, B)], &[1]).unwrap();
        before.give_up(8, &[(10 * B, B)], &[1]).unwrap();
        before.give_up(9, &[(12 * B, B)], &[2]).unwrap();
        // Given up again, in other pieces, and in use in the end.
        before.give_up(7, &[(3 * B, B)], &[1, 5]).unwrap();
        let present = before.present(&[range(4, 2), range(20, 4)], |_| true);
        let given = |start, len, ino, holders: &[u64]| GivenUp {
            range: range(start, len),
            ino,
            holders: holders.to_vec(),
        };
        let expected = [given(0, 3, 7, &[1]), given(3, 1, 7, &[1]), given(6, 2, 7, &[1])];
        assert_eq!(present.given_up, expected);
    }

    /// What was out of reach by its last close would be kept from everybody for as long as it has the inode open again.
    #[test]
    fn who_has_closed_and_opens_again_does_not_reach_what_was_given_up_before() {
        let mut before = Before::default();
        for session in [1, 2] {
            before.come(session, &mount(VERSION));
            before.open(session, 7, (1, true));
        }
        before.open(1, 8, (1, true));
        before.give_up(7, &[(0, B), (2 * B, B)], &[1]).unwrap();
        before.give_up(7, &[(4 * B, 2 * B)], &[1, 2]).unwrap();
        before.give_up(8, &[(8 * B, B)], &[1]).unwrap();
        before.open(1, 7, (0, false));
        before.open(1, 7, (1, true));
        before.give_up(7, &[(5 * B, B)], &[1]).unwrap();
        let given =
            |start, ino, holders: &[u64]| GivenUp { range: range(start, 1), ino, holders: holders.to_vec() };
        let expected = [given(4, 7, &[2]), given(5, 7, &[1]), given(8, 8, &[1])];
        assert_eq!(before.present(&[], |_| true).given_up, expected);
    }
}
