//! By which names whoever is told knows which inodes. Pure.
//!
//! The kernel decides by the owner that it saw last, and sees an owner when it looks a name up. So when an inode belongs to somebody else
//! now, the names by which it is known have to be looked up anew, and somebody has to know which these are: nothing else says it,
//! as a file has as many names as it likes.
//!
//! The caller may also keep that a name does not exist. Those names are noted, too, as a directory that is given up has to be
//! dropped name by name.
//!
//! Threading: none; the table of inodes has a lock over it.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use smallvec::SmallVec;

/// A directory, and a name in it.
pub(crate) type Alias = (u64, Arc<[u8]>);

/// The names of an inode, of which there is one as a rule.
pub(crate) type Names = SmallVec<[Alias; 1]>;

/// More absent names than these are not noted in all directories together, so that the caller must not keep them.
const MAX_ABSENT: usize = 100_000;

/// A name that is known.
#[derive(Debug, Default)]
struct Known {
    /// What it stands for; nothing, if it is known not to exist.
    inodes: SmallVec<[u64; 1]>,
    /// The caller has been told of it since the names of its directory were asked for last.
    told: bool,
}

/// The names that are known: never too few. A lookup may be answered late, when its name stands for something else; which of the two is told
/// last is not known here, so that a name may be one of several inodes.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_inode: HashMap<u64, Names>,
    /// By directory.
    by_name: HashMap<u64, HashMap<Arc<[u8]>, Known>>,
    /// Names that are known not to exist.
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

    /// A name stands for an inode.
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

    /// A name does not exist. Returns false if that is not noted, so that the caller must not be told to keep it.
    pub(crate) fn add_absent(&mut self, parent: u64, name: &[u8]) -> bool {
        if self.absent >= MAX_ABSENT {
            return false;
        }
        self.entry(parent, name.into()).told = true;
        true
    }

    /// Takes a name out.
    fn take(&mut self, parent: u64, name: &[u8]) -> Option<Known> {
        let Entry::Occupied(mut directory) = self.by_name.entry(parent) else { return None };
        let known = directory.get_mut().remove(name);
        if directory.get().is_empty() {
            directory.remove();
        }
        self.absent -= usize::from(known.as_ref().is_some_and(|known| known.inodes.is_empty()));
        known
    }

    /// A name is none any more. What it stood for.
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

    /// What one name stood for another one stands for, or the two have changed places.
    pub(crate) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let moved = self.remove(from.0, from.1);
        let other = if from == to { SmallVec::new() } else { self.remove(to.0, to.1) };
        moved.into_iter().for_each(|ino| self.add(ino, to.0, to.1));
        if exchange {
            other.into_iter().for_each(|ino| self.add(ino, from.0, from.1));
        }
    }

    /// An inode is known no longer.
    pub(crate) fn forget(&mut self, ino: u64) {
        for (parent, name) in self.by_inode.remove(&ino).unwrap_or_default() {
            let Some(known) = self.by_name.get_mut(&parent).and_then(|names| names.get_mut(&name)) else {
                continue;
            };
            known.inodes.retain(|one| *one != ino);
            if known.inodes.is_empty() {
                // It counts as absent until it is taken out.
                self.absent += 1;
                self.take(parent, &name);
            }
        }
        // A kernel that does not know a directory keeps no absent name of it.
        if let Entry::Occupied(mut directory) = self.by_name.entry(ino) {
            let before = directory.get().len();
            directory.get_mut().retain(|_, known| !known.inodes.is_empty());
            self.absent -= before - directory.get().len();
            if directory.get().is_empty() {
                directory.remove();
            }
        }
    }

    /// The names of an inode.
    pub(crate) fn of(&self, ino: u64) -> Names {
        self.by_inode.get(&ino).cloned().unwrap_or_default()
    }

    /// All names in a directory, absent ones too, which the caller is about to drop one by one ([`dropped`](Self::dropped)).
    pub(crate) fn in_directory(&mut self, parent: u64) -> Vec<Arc<[u8]>> {
        let names = self.by_name.get_mut(&parent).into_iter().flatten();
        let list = |(name, known): (&Arc<[u8]>, &mut Known)| {
            known.told = false;
            Arc::clone(name)
        };
        names.map(list).collect()
    }

    /// The caller goes by a name no more that was [listed](Self::in_directory). Told of it in
    /// between, the caller may have it again. A name that stands for an inode stays noted until the
    /// caller forgets the inode, because the caller remembers the inode by that name until it drops
    /// the name.
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

    proptest! {
        /// Against a plain table of what each name stands for.
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
                        // Told again meanwhile, the first one stays.
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
