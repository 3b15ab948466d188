//! Open counts and write access, by session and inode. No I/O, no locks, no clock.
//!
//! The caller frees the space of an inode; [`OpenFiles::close`] reports the last close.
//!
//! # Concurrency
//! None; the shard lock protects the value.

use std::collections::{BTreeSet, HashMap};

/// Effect of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The session does not have the inode open any more.
    pub session_done: bool,
    /// No session has the inode open any more.
    pub all_done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    session: u64,
    opens: u64,
    /// The session may write, until its last close.
    writes: bool,
}

/// How often each session has each file open.
#[derive(Debug, Default)]
pub struct OpenFiles {
    by_ino: HashMap<u64, Vec<Holder>>,
    by_session: HashMap<u64, BTreeSet<u64>>,
}

impl OpenFiles {
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

    /// Returns a session's open count and write access of an inode.
    pub fn of(&self, session: u64, ino: u64) -> (u64, bool) {
        let holder = self.holders(ino).iter().find(|holder| holder.session == session);
        holder.map_or((0, false), |holder| (holder.opens, holder.writes))
    }

    /// Restores a session's open count and write access of an inode.
    pub fn restore(&mut self, session: u64, ino: u64, (opens, writes): (u64, bool)) {
        self.by_ino.entry(ino).or_default().push(Holder { session, opens, writes });
        self.by_session.entry(session).or_default().insert(ino);
    }

    /// Returns all pairs of session and open inode.
    pub fn all(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_session.iter().flat_map(|(&session, inos)| inos.iter().map(move |&ino| (session, ino)))
    }

    /// Grants a session that has the inode open write access until its last close. Returns true if
    /// it had none before.
    pub fn will_write(&mut self, session: u64, ino: u64) -> bool {
        let holders = self.by_ino.get_mut(&ino).map_or(&mut [][..], Vec::as_mut_slice);
        let holder = holders.iter_mut().find(|holder| holder.session == session);
        holder.is_some_and(|holder| !std::mem::replace(&mut holder.writes, true))
    }

    /// Returns true if another session may write to the inode.
    pub fn another_writes(&self, session: u64, ino: u64) -> bool {
        self.holders(ino).iter().any(|holder| holder.writes && holder.session != session)
    }

    /// Returns true if another session has the inode open.
    pub fn another_has(&self, session: u64, ino: u64) -> bool {
        self.holders(ino).iter().any(|holder| holder.session != session)
    }

    /// Takes one open back. Returns `None` if there is none.
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

    /// Closes all inodes of a session. Returns them in order, each with whether no session has it
    /// open any more.
    pub fn end_session(&mut self, session: u64) -> Vec<(u64, bool)> {
        let inos = self.by_session.remove(&session).unwrap_or_default();
        inos.into_iter().map(|ino| (ino, self.drop_holder(session, ino))).collect()
    }

    /// Returns true if the session has the inode open.
    pub fn holds(&self, session: u64, ino: u64) -> bool {
        self.by_session.get(&session).is_some_and(|inos| inos.contains(&ino))
    }

    /// Returns true if any session has the inode open.
    pub fn is_open(&self, ino: u64) -> bool {
        self.by_ino.contains_key(&ino)
    }

    /// Returns the other sessions that have the inode open.
    pub fn others(&self, session: u64, ino: u64) -> Vec<u64> {
        self.holders(ino).iter().map(|holder| holder.session).filter(|&holder| holder != session).collect()
    }

    /// Returns true if no session has an inode open.
    pub fn is_empty(&self) -> bool {
        self.by_ino.is_empty() && self.by_session.is_empty()
    }

    fn holders(&self, ino: u64) -> &[Holder] {
        self.by_ino.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// Removes a session from an inode's holders. Returns true if it was the last.
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
        let mut files = OpenFiles::default();
        assert_eq!(files.close(1, 7), None);
        files.open(1, 7);
        files.open(1, 7);
        files.open(2, 7);
        assert_eq!(files.others(1, 7), [2]);
        assert_eq!(files.others(3, 7), [1, 2]);
        assert!(files.others(1, 8).is_empty());
        assert!(files.another_has(1, 7) && !files.another_has(1, 8));
        assert_eq!(files.close(3, 7), None);
        assert_eq!(files.close(1, 7), MORE);
        assert!(files.holds(1, 7));
        assert_eq!(files.close(1, 7), MINE);
        assert!(!files.holds(1, 7) && files.is_open(7));
        assert_eq!(files.close(1, 7), None);
        assert_eq!(files.close(2, 7), LAST);
        assert!(!files.is_open(7));
        assert!(files.by_ino.is_empty() && files.by_session.is_empty());
    }

    #[test]
    fn writers() {
        let mut files = OpenFiles::default();
        assert!(!files.will_write(1, 7), "it has not opened it");
        files.open(1, 7);
        files.open(2, 7);
        assert!(!files.another_writes(2, 7));
        assert_eq!((files.will_write(1, 7), files.will_write(1, 7)), (true, false));
        assert!(files.another_writes(2, 7) && files.another_writes(3, 7) && !files.another_writes(1, 7));
        // Write access lasts until the last close.
        files.open(1, 7);
        files.close(1, 7);
        assert!(files.another_writes(2, 7));
        files.close(1, 7);
        assert!(!files.another_writes(2, 7));
        files.open(1, 7);
        assert!(!files.another_writes(2, 7));
        assert!(files.will_write(1, 7));
        files.end_session(1);
        assert!(!files.another_writes(2, 7));
    }

    #[test]
    fn a_session_ends() {
        let mut files = OpenFiles::default();
        for (session, ino) in [(1, 9), (1, 7), (1, 7), (2, 7)] {
            files.open(session, ino);
        }
        assert_eq!(files.end_session(1), [(7, false), (9, true)]);
        assert_eq!(files.end_session(1), []);
        assert_eq!(files.end_session(2), [(7, true)]);
        assert!(files.by_ino.is_empty() && files.by_session.is_empty());
    }
}
