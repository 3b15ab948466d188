//! Prefetch of attributes for programs that look up a directory's names in order. No I/O, no
//! locks, no clock.
//!
//! Each lookup but the first also fetches one following name. If that name is looked up next, later
//! lookups fetch many. A program that went through one directory in order probably does so in the
//! next. There the first lookup already fetches many, until a guess fails. An entry is used once. A
//! recall or an own change removes it.

use std::collections::{HashMap, VecDeque};

use rfs_proto::Attr;

/// Maximum number of entries.
const MAX_ENTRIES: usize = 8192;
/// Entries of a lookup that tests for the order.
const TEST_ENTRIES: u32 = 2;
/// Entries of a lookup in order.
const ORDERED_ENTRIES: u32 = 128;
/// Number of directories that are remembered. During a tree walk, all directories of the current
/// path are looked into repeatedly.
const RECENT_DIRECTORIES: usize = 8;

type Name = Box<[u8]>;

/// The prefetched entries, and the recent directories.
#[derive(Debug, Default)]
pub(crate) struct LookupPrefetch {
    by_name: HashMap<(u64, Name), Attr>,
    by_ino: HashMap<u64, (u64, Name)>,
    /// Directories with recent lookups, the latest at the end.
    recent: VecDeque<RecentDirectory>,
    /// True if the program goes through directories in order.
    in_order: bool,
    /// Last directory for which the order was guessed.
    guess: Option<Guess>,
}

/// The lookups in one directory.
#[derive(Debug)]
struct RecentDirectory {
    dir: u64,
    /// Last name that came with a lookup.
    following: Option<Name>,
    in_order: bool,
}

/// Entries that the guess for a directory fetched, and those that were used.
#[derive(Clone, Copy, Debug)]
struct Guess {
    dir: u64,
    came: usize,
    used: usize,
}

impl LookupPrefetch {
    /// Returns the number of entries to fetch with the next lookup; 0 for a plain lookup.
    pub(crate) fn entries_to_fetch(&mut self, dir: u64) -> u32 {
        if let Some(at) = self.recent.iter().position(|directory| directory.dir == dir)
            && let Some(mut directory) = self.recent.remove(at)
        {
            let wanted = if std::mem::take(&mut directory.in_order) { ORDERED_ENTRIES } else { TEST_ENTRIES };
            self.recent.push_back(directory);
            return wanted;
        }
        if self.recent.len() == RECENT_DIRECTORIES {
            self.recent.pop_front();
        }
        self.recent.push_back(RecentDirectory { dir, following: None, in_order: false });
        let guess_failed = self.guess.take().is_some_and(|guess| 2 * guess.used < guess.came);
        self.in_order &= !guess_failed;
        if self.in_order {
            self.guess = Some(Guess { dir, came: 0, used: 0 });
            return ORDERED_ENTRIES;
        }
        // The program is walking a path.
        0
    }

    /// Adds entries that came with a lookup. This client does not reference their inodes.
    pub(crate) fn came(&mut self, dir: u64, entries: impl Iterator<Item = (Name, Attr)>) {
        let (mut following, mut count) = (None, 0);
        for (name, attr) in entries {
            if self.by_name.len() >= MAX_ENTRIES {
                self.by_name.clear();
                self.by_ino.clear();
            }
            self.remove_inode(attr.ino);
            self.remove_name(dir, &name);
            following = Some(name.clone());
            count += 1;
            self.by_ino.insert(attr.ino, (dir, name.clone()));
            self.by_name.insert((dir, name), attr);
        }
        if let Some(directory) = self.recent.iter_mut().rfind(|directory| directory.dir == dir) {
            directory.following = following;
        }
        if let Some(guess) = self.guess.as_mut().filter(|guess| guess.dir == dir) {
            guess.came += count;
        }
    }

    /// Takes a name's attributes.
    pub(crate) fn take(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        let attr = self.remove_name(dir, name)?;
        if let Some(guess) = self.guess.as_mut().filter(|guess| guess.dir == dir) {
            guess.used += 1;
        }
        // This is the last prefetched name, so the next lookup fetches more.
        if let Some(directory) = self.recent.iter_mut().rfind(|directory| directory.dir == dir)
            && directory.following.as_deref() == Some(name)
        {
            directory.in_order = true;
            self.in_order = true;
        }
        Some(attr)
    }

    /// Removes a name that has changed.
    pub(crate) fn remove_name(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        if self.by_name.is_empty() {
            return None;
        }
        let attr = self.by_name.remove(&(dir, Name::from(name)))?;
        self.by_ino.remove(&attr.ino);
        Some(attr)
    }

    /// Removes an inode that has changed, or is referenced now.
    pub(crate) fn remove_inode(&mut self, ino: u64) {
        if self.by_ino.is_empty() {
            return;
        }
        if let Some(at) = self.by_ino.remove(&ino) {
            self.by_name.remove(&at);
        }
    }

    /// Removes all entries.
    pub(crate) fn forget_all(&mut self) {
        self.by_name.clear();
        self.by_ino.clear();
    }

    /// Removes all entries of a directory.
    pub(crate) fn remove_directory(&mut self, dir: u64) {
        self.by_name.retain(|(parent, _), _| *parent != dir);
        self.by_ino.retain(|_, (parent, _)| *parent != dir);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rfs_proto::Marks;

    use super::*;
    use crate::tests::fake::new_attr;

    fn attr(ino: u64) -> Attr {
        Attr { marks: Marks::KEEP, ..new_attr(ino, 0) }
    }

    fn name(i: u64) -> Name {
        i.to_string().into_bytes().into()
    }

    /// Returns an inode number. It is unique across directories.
    fn number(dir: u64, i: u64) -> u64 {
        dir * 1_000_000 + i
    }

    /// Looks a name up in a directory of `names` names. Returns the number of calls.
    fn look(prefetch: &mut LookupPrefetch, dir: u64, names: u64, i: u64) -> u64 {
        if let Some(found) = prefetch.take(dir, &name(i)) {
            assert_eq!(found.ino, number(dir, i));
            return 0;
        }
        let wanted = u64::from(prefetch.entries_to_fetch(dir));
        if wanted > 0 {
            let entries = (i + 1..names.min(i + wanted)).map(|i| (name(i), attr(number(dir, i))));
            prefetch.came(dir, entries);
        }
        1
    }

    #[test]
    fn a_lookup_in_order_fetches_many() {
        let mut prefetch = LookupPrefetch::default();
        let calls: u64 = (0..10_000).map(|i| look(&mut prefetch, 1, 10_000, i)).sum();
        assert!(calls <= 10_000 / u64::from(ORDERED_ENTRIES) + 4, "{calls}");
    }

    #[test]
    fn a_lookup_out_of_order_fetches_few() {
        let mut prefetch = LookupPrefetch::default();
        let looked: Vec<u64> = (0..1000).map(|i| i * 7919 % 1000).collect();
        let calls: u64 = looked.iter().map(|i| look(&mut prefetch, 1, 1000, *i)).sum();
        assert!(calls >= 1000 / u64::from(TEST_ENTRIES), "{calls}");
        assert!(prefetch.by_name.len() < 1000);
    }

    #[test]
    fn a_path_walk_prefetches_nothing() {
        let mut prefetch = LookupPrefetch::default();
        for dir in 1..20 {
            assert_eq!(prefetch.entries_to_fetch(dir), 0);
        }
    }

    const DIRS: u64 = 100;
    const FILES: u64 = 100;

    /// Walks a tree: looks up each directory's own name and its first `files` names. Returns the
    /// number of calls and of unused entries.
    fn walk(prefetch: &mut LookupPrefetch, files: u64) -> (u64, usize) {
        let calls = (0..DIRS).map(|dir| {
            let below = (0..files).map(|i| look(prefetch, dir + 2, FILES, i)).sum::<u64>();
            below + look(prefetch, 1, DIRS, dir)
        });
        (calls.sum(), prefetch.by_name.len())
    }

    #[test]
    fn a_tree_walk_in_order_takes_one_call_per_directory() {
        let (calls, left) = walk(&mut LookupPrefetch::default(), FILES);
        assert_eq!((calls, left), (DIRS + 5, 0));
    }

    #[test]
    fn a_walk_that_looks_at_few_names_per_directory_stops_the_prefetch() {
        let mut prefetch = LookupPrefetch::default();
        walk(&mut prefetch, FILES);
        let known = FILES as usize - 2;
        // The guess is tried once.
        let (calls, left) = walk(&mut prefetch, 2);
        assert!(left <= known + 2 * DIRS as usize, "{left}");
        assert!(calls >= 2 * DIRS - 4, "{calls}");
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let mut prefetch = LookupPrefetch::default();
        for dir in 0..100 {
            prefetch.came(dir, (0..1000).map(|i| (name(i), attr(dir * 1000 + i))));
            assert!(prefetch.by_name.len() <= MAX_ENTRIES && prefetch.by_ino.len() == prefetch.by_name.len());
        }
    }

    proptest! {
        /// Both maps agree, and a changed entry is never used.
        #[test]
        fn changed_entries_are_never_used(steps in prop::collection::vec((0..5_u8, 0..3_u64, 0..6_u64), 0..60)) {
            let mut prefetch = LookupPrefetch::default();
            let mut kept: HashMap<(u64, u64), u64> = HashMap::new();
            for (step, dir, i) in steps {
                match step {
                    0 => {
                        let ino = dir * 100 + i;
                        prefetch.came(dir, std::iter::once((name(i), attr(ino))));
                        kept.retain(|_, at| *at != ino);
                        kept.insert((dir, i), ino);
                    }
                    1 => prop_assert_eq!(prefetch.take(dir, &name(i)).map(|attr| attr.ino), kept.remove(&(dir, i))),
                    2 => {
                        prefetch.remove_name(dir, &name(i));
                        kept.remove(&(dir, i));
                    }
                    3 => {
                        prefetch.remove_inode(dir * 100 + i);
                        kept.retain(|_, at| *at != dir * 100 + i);
                    }
                    _ => {
                        prefetch.remove_directory(dir);
                        kept.retain(|(parent, _), _| *parent != dir);
                    }
                }
                prop_assert_eq!(prefetch.by_name.len(), kept.len());
                prop_assert_eq!(prefetch.by_ino.len(), kept.len());
            }
        }
    }
}
