//! The names under which the caller knows inodes. No I/O, no locks, no clock.
//!
//! The kernel checks permissions by the owner that it saw at the last lookup. When the owner of
//! an inode changes, the kernel has to look all its names up again. A file can have any number of
//! names, so the client records them. The caller may also cache that a name does not exist. Those
//! names are recorded because a directory that is given up has to be dropped name by name.
//!
//! # Concurrency
//! The caller holds the lock that the table of inodes keeps over this.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use smallvec::SmallVec;

/// A directory, and a name in it.
pub(crate) type Alias = (u64, Arc<[u8]>);

/// The names of an inode, usually one.
pub(crate) type Names = SmallVec<[Alias; 1]>;

/// Maximum number of absent names in all directories together. The caller must not cache others.
const MAX_ABSENT: usize = 100_000;

/// The content of the caller's cache under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedName {
    /// Nothing: the caller has cached no inode under the name, or has to drop it.
    Nothing,
    /// This inode.
    Inode(u64),
    /// One of several inodes, or the caller caches no names.
    Uncertain,
}

/// A recorded name.
#[derive(Debug, Default)]
struct Known {
    /// Inodes that the name may stand for; empty if the name is absent.
    inodes: SmallVec<[u64; 1]>,
    /// True if the caller was told of the name since the last listing of its directory's names.
    told: bool,
}

/// The recorded names, never too few. A late reply may name the inode of an earlier time. The
/// order in which the caller is told is unknown here, so a name may stand for several inodes.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_inode: HashMap<u64, Names>,
    /// Names by directory.
    by_name: HashMap<u64, HashMap<Arc<[u8]>, Known>>,
    /// Number of absent names.
    absent: usize,
}

impl Aliases {
    fn entry(&mut self, parent: u64, name: Arc<[u8]>) -> &mut Known {
        let absent = &mut self.absent;
        self.by_name.entry(parent).or_default().entry(name).or_insert_with(|| {
            *absent += 1;
            Known::default()
        })
    }

    /// Notes that a name stands for an inode.
    pub(crate) fn add(&mut self, ino: u64, parent: u64, name: &[u8]) {
        let alias: Alias = (parent, name.into());
        let known = self.entry(parent, Arc::clone(&alias.1));
        known.told = true;
        let was_absent = known.inodes.is_empty();
        if !known.inodes.contains(&ino) {
            known.inodes.push(ino);
            self.by_inode.entry(ino).or_default().push(alias);
        }
        self.absent -= usize::from(was_absent);
    }

    /// Notes that a name is absent. Returns false if the limit is reached: the caller must not
    /// cache it then.
    pub(crate) fn add_absent(&mut self, parent: u64, name: &[u8]) -> bool {
        if self.absent >= MAX_ABSENT {
            return false;
        }
        self.entry(parent, name.into()).told = true;
        true
    }

    /// Removes a name from its directory.
    fn take(&mut self, parent: u64, name: &[u8]) -> Option<Known> {
        let Entry::Occupied(mut directory) = self.by_name.entry(parent) else { return None };
        let known = directory.get_mut().remove(name);
        if directory.get().is_empty() {
            directory.remove();
        }
        self.absent -= usize::from(known.as_ref().is_some_and(|known| known.inodes.is_empty()));
        known
    }

    /// Removes a name. Returns the inodes that it stood for.
    pub(crate) fn remove(&mut self, parent: u64, name: &[u8]) -> SmallVec<[u64; 1]> {
        let inodes = self.take(parent, name).map(|known| known.inodes).unwrap_or_default();
        for ino in &inodes {
            if let Entry::Occupied(mut entry) = self.by_inode.entry(*ino) {
                entry.get_mut().retain(|one| (one.0, &*one.1) != (parent, name));
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        inodes
    }

    /// Moves the inodes of one name to another, or exchanges them.
    pub(crate) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let moved = self.remove(from.0, from.1);
        let other = if from == to { SmallVec::new() } else { self.remove(to.0, to.1) };
        moved.into_iter().for_each(|ino| self.add(ino, to.0, to.1));
        if exchange {
            other.into_iter().for_each(|ino| self.add(ino, from.0, from.1));
        }
    }

    /// Removes the names of an inode that the caller has forgotten.
    pub(crate) fn forget(&mut self, ino: u64) {
        for (parent, name) in self.by_inode.remove(&ino).unwrap_or_default() {
            let Some(known) = self.by_name.get_mut(&parent).and_then(|names| names.get_mut(&name)) else {
                continue;
            };
            known.inodes.retain(|one| *one != ino);
            if known.inodes.is_empty() {
                // The name counts as absent until it is removed.
                self.absent += 1;
                self.take(parent, &name);
            }
        }
        // A kernel that has forgotten a directory caches no absent names of it.
        if let Entry::Occupied(mut directory) = self.by_name.entry(ino) {
            let before = directory.get().len();
            directory.get_mut().retain(|_, known| !known.inodes.is_empty());
            self.absent -= before - directory.get().len();
            if directory.get().is_empty() {
                directory.remove();
            }
        }
    }

    /// Returns the entry that the caller may have cached under a name.
    pub(crate) fn cached(&self, parent: u64, name: &[u8]) -> CachedName {
        match self.inodes_of(parent, name) {
            [] => CachedName::Nothing,
            [ino] => CachedName::Inode(*ino),
            _ => CachedName::Uncertain,
        }
    }

    /// Returns the inodes that a name may stand for.
    pub(crate) fn inodes_of(&self, parent: u64, name: &[u8]) -> &[u64] {
        let known = self.by_name.get(&parent).and_then(|names| names.get(name));
        known.map_or(&[][..], |known| &known.inodes)
    }

    /// Returns the names of an inode.
    pub(crate) fn of(&self, ino: u64) -> Names {
        self.by_inode.get(&ino).cloned().unwrap_or_default()
    }

    /// Returns all names in a directory, including absent ones. The caller drops each and then
    /// calls [`dropped`](Self::dropped).
    pub(crate) fn in_directory(&mut self, parent: u64) -> Vec<Arc<[u8]>> {
        let names = self.by_name.get_mut(&parent).into_iter().flatten();
        let list = |(name, known): (&Arc<[u8]>, &mut Known)| {
            known.told = false;
            Arc::clone(name)
        };
        names.map(list).collect()
    }

    /// Notes that the caller has dropped a name of [`in_directory`](Self::in_directory).
    ///
    /// If the caller was told of the name in between, it may have the name again. A name that
    /// stands for an inode stays recorded until the caller forgets the inode, because the caller
    /// finds the inode by it.
    pub(crate) fn dropped(&mut self, parent: u64, name: &[u8]) {
        let goes = |known: &Known| !known.told && known.inodes.is_empty();
        if self.by_name.get(&parent).and_then(|names| names.get(name)).is_some_and(goes) {
            self.remove(parent, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64, u64, &'static str),
        Remove(u64, &'static str),
        Rename((u64, &'static str), (u64, &'static str), bool),
        Forget(u64),
        Absent(u64, &'static str),
        Drop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || (1..3u64, prop_oneof![Just("a"), Just("b"), Just("c")]);
        prop_oneof![
            4 => (1..6u64, place()).prop_map(|(ino, (parent, name))| Step::Add(ino, parent, name)),
            1 => place().prop_map(|(parent, name)| Step::Remove(parent, name)),
            3 => (place(), place(), any::<bool>()).prop_map(|(from, to, exchange)| Step::Rename(from, to, exchange)),
            1 => (1..6u64).prop_map(Step::Forget),
            2 => place().prop_map(|(parent, name)| Step::Absent(parent, name)),
            1 => (1..3u64).prop_map(Step::Drop),
        ]
    }

    #[test]
    fn a_name_is_cached_if_it_stands_for_one_inode() {
        let mut aliases = Aliases::default();
        assert_eq!(aliases.cached(1, b"a"), CachedName::Nothing);
        assert!(aliases.add_absent(1, b"a"));
        assert_eq!(aliases.cached(1, b"a"), CachedName::Nothing);
        aliases.add(5, 1, b"a");
        assert_eq!(aliases.cached(1, b"a"), CachedName::Inode(5));
        aliases.add(6, 1, b"a");
        assert_eq!(aliases.cached(1, b"a"), CachedName::Uncertain);
        aliases.rename((1, b"a"), (2, b"b"), false);
        assert_eq!(aliases.cached(1, b"a"), CachedName::Nothing);
        aliases.forget(5);
        assert_eq!(aliases.cached(2, b"b"), CachedName::Inode(6));
    }

    proptest! {
        /// Compares with a plain table of names.
        #[test]
        fn agrees_with_a_table(steps in proptest::collection::vec(step(), 1..60)) {
            let mut aliases = Aliases::default();
            let mut table: BTreeMap<(u64, &str), BTreeSet<u64>> = BTreeMap::new();
            let mut absent: BTreeSet<(u64, &str)> = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Add(ino, parent, name) => {
                        aliases.add(ino, parent, name.as_bytes());
                        absent.remove(&(parent, name));
                        table.entry((parent, name)).or_default().insert(ino);
                    }
                    Step::Remove(parent, name) => {
                        aliases.remove(parent, name.as_bytes());
                        absent.remove(&(parent, name));
                        table.remove(&(parent, name));
                    }
                    Step::Rename(from, to, exchange) => {
                        let bytes = |(parent, name): (u64, &'static str)| (parent, name.as_bytes());
                        aliases.rename(bytes(from), bytes(to), exchange);
                        absent.retain(|place| *place != from && *place != to);
                        let [moved, other] = [from, to].map(|place| table.get(&place).cloned().unwrap_or_default());
                        if from != to {
                            table.insert(from, if exchange { other } else { BTreeSet::new() });
                            table.insert(to, moved);
                        }
                    }
                    Step::Forget(ino) => {
                        aliases.forget(ino);
                        table.values_mut().for_each(|inodes| {
                            inodes.remove(&ino);
                        });
                        absent.retain(|(parent, _)| *parent != ino);
                    }
                    Step::Absent(parent, name) => {
                        prop_assert!(aliases.add_absent(parent, name.as_bytes()));
                        if !table.contains_key(&(parent, name)) {
                            absent.insert((parent, name));
                        }
                    }
                    Step::Drop(parent) => {
                        let names = aliases.in_directory(parent);
                        prop_assert_eq!(names.len(), aliases.by_name.get(&parent).map_or(0, HashMap::len));
                        // The first name is told again meanwhile, so it stays.
                        let kept = names.first().map(|name| name.to_vec());
                        let stays = kept.as_ref().is_some_and(|name| aliases.add_absent(parent, name));
                        prop_assert_eq!(stays, kept.is_some());
                        names.iter().for_each(|name| aliases.dropped(parent, name));
                        let goes = |place: &(u64, &str)| {
                            place.0 == parent && Some(place.1.as_bytes()) != kept.as_deref()
                        };
                        absent.retain(|place| !goes(place));
                    }
                }
                table.retain(|_, inodes| !inodes.is_empty());
                for ino in 1..6 {
                    let mut names = aliases.of(ino).to_vec();
                    names.sort();
                    let expected = table.iter().filter(|(_, inodes)| inodes.contains(&ino));
                    let expected: Vec<Alias> =
                        expected.map(|((parent, name), _)| (*parent, name.as_bytes().into())).collect();
                    prop_assert_eq!(names, expected);
                }
                let known: usize = aliases.by_name.values().map(HashMap::len).sum();
                prop_assert_eq!((known, aliases.absent), (table.len() + absent.len(), absent.len()));
                prop_assert!(aliases.by_inode.values().all(|names| !names.is_empty()));
            }
        }
    }
}
