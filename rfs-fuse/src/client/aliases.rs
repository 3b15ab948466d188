//! By which names whoever is told knows which inodes. Pure.
//!
//! The kernel decides by the owner that it saw last, and sees an owner when it looks a name up. So when an inode belongs to somebody else
//! now, the names by which it is known have to be looked up anew, and somebody has to know which these are: nothing else says it,
//! as a file has as many names as it likes.
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

/// The names that are known: never too few. A lookup may be answered late, when its name stands for something else; which of the two is told
/// last is not known here, so that a name may be one of several inodes.
#[derive(Debug, Default)]
pub(crate) struct Aliases {
    by_inode: HashMap<u64, Names>,
    by_name: HashMap<Alias, SmallVec<[u64; 1]>>,
}

impl Aliases {
    /// A name stands for an inode.
    pub(crate) fn add(&mut self, ino: u64, parent: u64, name: &[u8]) {
        let alias: Alias = (parent, name.into());
        let inodes = self.by_name.entry(alias.clone()).or_default();
        if !inodes.contains(&ino) {
            inodes.push(ino);
            self.by_inode.entry(ino).or_default().push(alias);
        }
    }

    /// A name is none any more. What it stood for.
    pub(crate) fn remove(&mut self, parent: u64, name: &[u8]) -> SmallVec<[u64; 1]> {
        let alias: Alias = (parent, name.into());
        let inodes = self.by_name.remove(&alias).unwrap_or_default();
        for ino in &inodes {
            if let Entry::Occupied(mut entry) = self.by_inode.entry(*ino) {
                entry.get_mut().retain(|one| *one != alias);
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
        for alias in self.by_inode.remove(&ino).unwrap_or_default() {
            if let Entry::Occupied(mut entry) = self.by_name.entry(alias) {
                entry.get_mut().retain(|one| *one != ino);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
    }

    /// The names of an inode.
    pub(crate) fn of(&self, ino: u64) -> Names {
        self.by_inode.get(&ino).cloned().unwrap_or_default()
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
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || (1..3u64, prop_oneof![Just("a"), Just("b"), Just("c")]);
        prop_oneof![
            4 => (1..6u64, place()).prop_map(|(ino, (parent, name))| Step::Add(ino, parent, name)),
            1 => place().prop_map(|(parent, name)| Step::Remove(parent, name)),
            3 => (place(), place(), any::<bool>()).prop_map(|(from, to, exchange)| Step::Rename(from, to, exchange)),
            1 => (1..6u64).prop_map(Step::Forget),
        ]
    }

    proptest! {
        /// Against a plain table of what each name stands for.
        #[test]
        fn agrees_with_a_table(steps in proptest::collection::vec(step(), 1..60)) {
            let mut aliases = Aliases::default();
            let mut table: BTreeMap<(u64, &str), BTreeSet<u64>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(ino, parent, name) => {
                        aliases.add(ino, parent, name.as_bytes());
                        table.entry((parent, name)).or_default().insert(ino);
                    }
                    Step::Remove(parent, name) => {
                        aliases.remove(parent, name.as_bytes());
                        table.remove(&(parent, name));
                    }
                    Step::Rename(from, to, exchange) => {
                        let bytes = |(parent, name): (u64, &'static str)| (parent, name.as_bytes());
                        aliases.rename(bytes(from), bytes(to), exchange);
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
                prop_assert_eq!(aliases.by_name.len(), table.len());
                prop_assert!(aliases.by_inode.values().all(|names| !names.is_empty()));
            }
        }
    }
}
