//! Who has which inode open, and who to write: layout leases, counted by session and inode. Pure.
//!
//! Threading: none; the lock of their shard protects them. It frees nothing itself: it tells when the last one closed.

use std::collections::{BTreeSet, HashMap};

/// What a close did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The session has the inode open no more: its lease ended.
    pub session_done: bool,
    /// No session has it open any more.
    pub all_done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    session: u64,
    opens: u64,
    /// It may write, until its last close.
    writes: bool,
}

/// The leases.
#[derive(Debug, Default)]
pub struct Leases {
    by_ino: HashMap<u64, Vec<Holder>>,
    by_session: HashMap<u64, BTreeSet<u64>>,
}

impl Leases {
    /// Counts one open.
    pub fn open(&mut self, session: u64, ino: u64) {
        let holders = self.by_ino.entry(ino).or_default();
        match holders.iter_mut().find(|holder| holder.session == session) {
            Some(holder) => holder.opens += 1,
            None => {
                holders.push(Holder { session, opens: 1, writes: false });
                self.by_session.entry(session).or_default().insert(ino);
            }
        }
    }

    /// How often a session has an inode open, and whether it may write to it.
    pub fn of(&self, session: u64, ino: u64) -> (u64, bool) {
        let holder = self.holders(ino).iter().find(|holder| holder.session == session);
        holder.map_or((0, false), |holder| (holder.opens, holder.writes))
    }

    /// A session of the server before has an inode open so often, and may write to it or not.
    pub fn restore(&mut self, session: u64, ino: u64, (opens, writes): (u64, bool)) {
        self.by_ino.entry(ino).or_default().push(Holder { session, opens, writes });
        self.by_session.entry(session).or_default().insert(ino);
    }

    /// Who has what open: sessions and inodes.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_session.iter().flat_map(|(&session, inos)| inos.iter().map(move |&ino| (session, ino)))
    }

    /// A session that has the inode open may write to it from now on, until its last close. True if it might not before.
    pub fn will_write(&mut self, session: u64, ino: u64) -> bool {
        let holders = self.by_ino.get_mut(&ino).map_or(&mut [][..], Vec::as_mut_slice);
        let holder = holders.iter_mut().find(|holder| holder.session == session);
        holder.is_some_and(|holder| !std::mem::replace(&mut holder.writes, true))
    }

    /// True if another session may write to the inode.
    pub fn another_writes(&self, session: u64, ino: u64) -> bool {
        self.holders(ino).iter().any(|holder| holder.writes && holder.session != session)
    }

    /// True if another session has the inode open.
    pub fn another_has(&self, session: u64, ino: u64) -> bool {
        self.holders(ino).iter().any(|holder| holder.session != session)
    }

    /// Takes one open back. `None` if there is none.
    pub fn close(&mut self, session: u64, ino: u64) -> Option<Closed> {
        let holders = self.by_ino.get_mut(&ino)?;
        let holder = holders.iter_mut().find(|holder| holder.session == session)?;
        holder.opens -= 1;
        if holder.opens > 0 {
            return Some(Closed { session_done: false, all_done: false });
        }
        let all_done = self.drop_holder(session, ino);
        if let Some(inos) = self.by_session.get_mut(&session) {
            inos.remove(&ino);
            if inos.is_empty() {
                self.by_session.remove(&session);
            }
        }
        Some(Closed { session_done: true, all_done })
    }

    /// Ends all leases of a session: the inodes, in order, each with whether nobody has it open any more.
    pub fn end_session(&mut self, session: u64) -> Vec<(u64, bool)> {
        let inos = self.by_session.remove(&session).unwrap_or_default();
        inos.into_iter().map(|ino| (ino, self.drop_holder(session, ino))).collect()
    }

    /// True if the session has the inode open.
    pub fn holds(&self, session: u64, ino: u64) -> bool {
        self.by_session.get(&session).is_some_and(|inos| inos.contains(&ino))
    }

    /// True if any session has the inode open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.by_ino.contains_key(&ino)
    }

    /// The sessions that have the inode open, but for one.
    pub fn others(&self, session: u64, ino: u64) -> Vec<u64> {
        self.holders(ino).iter().map(|holder| holder.session).filter(|&holder| holder != session).collect()
    }

    /// True if nobody has anything open.
    pub fn is_empty(&self) -> bool {
        self.by_ino.is_empty() && self.by_session.is_empty()
    }

    fn holders(&self, ino: u64) -> &[Holder] {
        self.by_ino.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// Takes a session off an inode's list: true if it was the last.
    fn drop_holder(&mut self, session: u64, ino: u64) -> bool {
        let Some(holders) = self.by_ino.get_mut(&ino) else { return true };
        holders.retain(|holder| holder.session != session);
        let last = holders.is_empty();
        if last {
            self.by_ino.remove(&ino);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MORE: Option<Closed> = Some(Closed { session_done: false, all_done: false });
    const MINE: Option<Closed> = Some(Closed { session_done: true, all_done: false });
    const LAST: Option<Closed> = Some(Closed { session_done: true, all_done: true });

    #[test]
    fn counts() {
        let mut leases = Leases::default();
        assert_eq!(leases.close(1, 7), None);
        leases.open(1, 7);
        leases.open(1, 7);
        leases.open(2, 7);
        assert_eq!(leases.others(1, 7), [2]);
        assert_eq!(leases.others(3, 7), [1, 2]);
        assert_eq!(leases.others(1, 8), []);
        assert!(leases.another_has(1, 7) && !leases.another_has(1, 8));
        assert_eq!(leases.close(3, 7), None);
        assert_eq!(leases.close(1, 7), MORE);
        assert!(leases.holds(1, 7));
        assert_eq!(leases.close(1, 7), MINE);
        assert!(!leases.holds(1, 7) && leases.is_open(7));
        assert_eq!(leases.close(1, 7), None);
        assert_eq!(leases.close(2, 7), LAST);
        assert!(!leases.is_open(7));
        assert!(leases.by_ino.is_empty() && leases.by_session.is_empty());
    }

    #[test]
    fn writers() {
        let mut leases = Leases::default();
        assert!(!leases.will_write(1, 7), "it has not opened it");
        leases.open(1, 7);
        leases.open(2, 7);
        assert!(!leases.another_writes(2, 7));
        assert_eq!((leases.will_write(1, 7), leases.will_write(1, 7)), (true, false));
        assert!(leases.another_writes(2, 7) && leases.another_writes(3, 7) && !leases.another_writes(1, 7));
        // It sticks until the last close.
        leases.open(1, 7);
        leases.close(1, 7);
        assert!(leases.another_writes(2, 7));
        leases.close(1, 7);
        assert!(!leases.another_writes(2, 7));
        leases.open(1, 7);
        assert!(!leases.another_writes(2, 7));
        assert!(leases.will_write(1, 7));
        leases.end_session(1);
        assert!(!leases.another_writes(2, 7));
    }

    #[test]
    fn a_session_ends() {
        let mut leases = Leases::default();
        for (session, ino) in [(1, 9), (1, 7), (1, 7), (2, 7)] {
            leases.open(session, ino);
        }
        assert_eq!(leases.end_session(1), [(7, false), (9, true)]);
        assert_eq!(leases.end_session(1), []);
        assert_eq!(leases.end_session(2), [(7, true)]);
        assert!(leases.by_ino.is_empty() && leases.by_session.is_empty());
    }
}
