//! Cache holders: which sessions may cache which parts of an inode. No I/O, no locks, no clock.
//!
//! Most inodes have at most one holder. One holder takes an entry of 24 bytes; several take a
//! separate allocation. An inode without holders takes nothing. The module reports from which
//! sessions to recall; it sends no recalls.
//!
//! # Concurrency
//! None; each shard protects its own value with a lock.

use std::collections::hash_map::Entry;

use smallvec::SmallVec;

use crate::metadata::id_map::ByNumber;

/// No session has this number.
const NO_SESSION: u64 = 0;

/// A part of an inode that a session can cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Attributes, extended attributes and data; implies `Owner`.
    Attr,
    /// Names of a directory, including absent names.
    Names,
    /// User and group.
    Owner,
    /// The inode number: the session saw the inode while it had a name, and may use the number
    /// until it reports otherwise.
    Number,
    /// Pages, for a session with the inode open. They stay valid when only the attributes are
    /// recalled.
    Pages,
}

impl Part {
    fn bit(self) -> u64 {
        match self {
            Part::Attr => 1,
            Part::Names => 2,
            Part::Owner => 4,
            Part::Number => 8,
            Part::Pages => 16,
        }
    }

    /// Returns the bits that a new holder of this part gets.
    fn with(self) -> u64 {
        match self {
            Part::Attr => Part::Attr.bit() | Part::Owner.bit(),
            Part::Names | Part::Owner | Part::Number | Part::Pages => self.bit(),
        }
    }

    /// Returns the bits that a holder loses when this part changes.
    fn lost(self) -> u64 {
        match self {
            Part::Owner => Part::Attr.bit() | Part::Owner.bit(),
            Part::Names | Part::Attr | Part::Number | Part::Pages => self.bit(),
        }
    }
}

/// A session and its parts of an inode in one word: session number in the upper 48 bits, part bits
/// in the lower 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheHolder(u64);

impl CacheHolder {
    fn new(session: u64) -> CacheHolder {
        debug_assert!(session < 1 << 48);
        CacheHolder(session << 16)
    }

    fn session(self) -> u64 {
        self.0 >> 16
    }

    fn keeps(self, part: Part) -> bool {
        self.0 & part.bit() != 0
    }

    fn keeps_nothing(self) -> bool {
        self.0 & 0xffff == 0
    }

    fn add(&mut self, part: Part) {
        self.0 |= part.with();
    }

    /// Adds the parts of `other`, a value for the same session.
    fn add_parts_of(&mut self, other: CacheHolder) {
        debug_assert_eq!(self.session(), other.session());
        self.0 |= other.0;
    }

    fn remove(&mut self, part: Part) {
        self.0 &= !part.lost();
    }

    fn remove_all(&mut self) {
        self.0 &= !0xffff;
    }
}

/// Cache holders of an inode, at least one.
#[derive(Clone, Debug)]
enum List {
    One(CacheHolder),
    // Boxed, so that the usual entry is small.
    #[allow(clippy::box_collection)]
    Several(Box<Vec<CacheHolder>>),
}

impl List {
    fn as_mut_slice(&mut self) -> &mut [CacheHolder] {
        match self {
            List::One(holder) => std::slice::from_mut(holder),
            List::Several(holders) => holders,
        }
    }

    fn push(&mut self, holder: CacheHolder) {
        match self {
            List::One(first) => *self = List::Several(Box::new(vec![*first, holder])),
            List::Several(holders) => holders.push(holder),
        }
    }

    /// Removes holders without parts. Returns false if no holder is left.
    fn tidy(&mut self) -> bool {
        match self {
            List::One(holder) => !holder.keeps_nothing(),
            List::Several(holders) => {
                holders.retain(|holder| !holder.keeps_nothing());
                match holders.as_slice() {
                    [] => return false,
                    &[one] => *self = List::One(one),
                    _ => {}
                }
                true
            }
        }
    }
}

/// Session numbers; usually at most one.
pub type Sessions = SmallVec<[u64; 2]>;

/// Cache holders of an inode that lost its last name or was freed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FinalHolders {
    /// Holders of its names, except the given session.
    pub names: Sessions,
    /// Holders of its attributes, except the given session.
    pub attrs: Sessions,
    /// Sessions that may use its number.
    pub numbers: Sessions,
}

/// Cache holders of all inodes.
#[derive(Debug, Default)]
pub struct CacheHolders(ByNumber<List>);

impl CacheHolders {
    /// Returns true if a session may cache a part of an inode.
    pub fn keeps(&mut self, session: u64, ino: u64, part: Part) -> bool {
        let holders = self.0.get_mut(&ino).map(List::as_mut_slice).unwrap_or_default();
        holders.iter().any(|holder| holder.session() == session && holder.keeps(part))
    }

    /// Returns true if any session may cache a part of an inode.
    pub fn has_any(&mut self, ino: u64, part: Part) -> bool {
        let holders = self.0.get_mut(&ino).map(List::as_mut_slice).unwrap_or_default();
        holders.iter().any(|holder| holder.keeps(part))
    }

    /// Registers a session as holder of a part of an inode.
    pub fn add(&mut self, session: u64, ino: u64, part: Part) {
        self.add_all(session, ino, [part]);
    }

    /// Registers a session as holder of parts of an inode.
    pub fn add_all(&mut self, session: u64, ino: u64, parts: impl IntoIterator<Item = Part>) {
        let mut new = CacheHolder::new(session);
        parts.into_iter().for_each(|part| new.add(part));
        match self.0.entry(ino) {
            Entry::Vacant(entry) => {
                entry.insert(List::One(new));
            }
            Entry::Occupied(entry) => {
                let list = entry.into_mut();
                match list.as_mut_slice().iter_mut().find(|holder| holder.session() == session) {
                    Some(holder) => holder.add_parts_of(new),
                    None => list.push(new),
                }
            }
        }
    }

    /// Removes a part of an inode, and the parts that depend on it, from all sessions except `but`.
    /// Returns the sessions that held it, in the order of registration.
    pub fn take(&mut self, ino: u64, part: Part, but: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        self.change(ino, but, |holder| {
            if holder.keeps(part) {
                holder.remove(part);
                taken.push(holder.session());
            }
        });
        taken
    }

    /// Removes the attributes and the pages of an inode from all sessions except `but`. Returns the
    /// sessions that held either.
    pub fn take_contents(&mut self, ino: u64, but: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        self.change(ino, but, |holder| {
            if holder.keeps(Part::Attr) || holder.keeps(Part::Pages) {
                holder.remove(Part::Attr);
                holder.remove(Part::Pages);
                taken.push(holder.session());
            }
        });
        taken
    }

    /// Removes a part of an inode from a session. Returns true if the session held it.
    pub fn take_from(&mut self, session: u64, ino: u64, part: Part) -> bool {
        let Entry::Occupied(mut entry) = self.0.entry(ino) else { return false };
        let mut holders = entry.get_mut().as_mut_slice().iter_mut();
        let Some(holder) = holders.find(|holder| holder.session() == session && holder.keeps(part)) else {
            return false;
        };
        holder.remove(part);
        if !entry.get_mut().tidy() {
            entry.remove();
        }
        true
    }

    /// Returns the holders of a directory's names, except `but`, after a name changed. They keep
    /// the other names but lose the directory's attributes.
    pub fn name_changed(&mut self, ino: u64, but: u64) -> Vec<u64> {
        let mut holders = Vec::new();
        self.change(ino, but, |holder| {
            if holder.keeps(Part::Names) {
                holder.remove(Part::Attr);
                holders.push(holder.session());
            }
        });
        holders
    }

    /// Removes the names of an inode that lost its last name from all sessions except `but`, and
    /// its number from all sessions. Returns both.
    pub fn unnamed(&mut self, ino: u64, but: u64) -> FinalHolders {
        let mut last = FinalHolders::default();
        self.change(ino, NO_SESSION, |holder| {
            if holder.session() != but && holder.keeps(Part::Names) {
                holder.remove(Part::Names);
                last.names.push(holder.session());
            }
            if holder.keeps(Part::Number) {
                holder.remove(Part::Number);
                last.numbers.push(holder.session());
            }
        });
        last
    }

    /// Removes all parts of a freed inode from all sessions. Returns the holders of its names or
    /// attributes, except `but`.
    pub fn gone(&mut self, ino: u64, but: u64) -> FinalHolders {
        let mut last = FinalHolders::default();
        let Some(mut list) = self.0.remove(&ino) else { return last };
        for holder in list.as_mut_slice().iter().filter(|holder| holder.session() != but) {
            if holder.keeps(Part::Names) {
                last.names.push(holder.session());
            }
            if holder.keeps(Part::Attr) {
                last.attrs.push(holder.session());
            }
        }
        last
    }

    /// Removes all parts of an inode from a session.
    pub fn forget_one(&mut self, ino: u64, session: u64) {
        let Entry::Occupied(mut entry) = self.0.entry(ino) else { return };
        let holders = entry.get_mut().as_mut_slice().iter_mut();
        holders.filter(|holder| holder.session() == session).for_each(CacheHolder::remove_all);
        if !entry.get_mut().tidy() {
            entry.remove();
        }
    }

    /// Removes a session. Visits every inode with a cache holder.
    pub fn end_session(&mut self, session: u64) {
        self.0.retain(|_, list| {
            for holder in list.as_mut_slice().iter_mut().filter(|holder| holder.session() == session) {
                holder.remove_all();
            }
            list.tidy()
        });
    }

    /// Returns true if there is no cache holder.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn change(&mut self, ino: u64, but: u64, change: impl FnMut(&mut CacheHolder)) {
        if let Entry::Occupied(mut entry) = self.0.entry(ino) {
            let others = entry.get_mut().as_mut_slice().iter_mut();
            others.filter(|holder| holder.session() != but).for_each(change);
            if !entry.get_mut().tidy() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;
