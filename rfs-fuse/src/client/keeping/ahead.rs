//! Names that were asked for before anybody wanted them. Pure.
//!
//! Who looks at the names of a directory one after the other, in the directory's order, is given those that follow with one of
//! them. Every look but the first asks for one more; if that is what is looked at next, many are asked for. Who has gone through one directory like that,
//! and comes to another one, probably does it again: there the first look asks for many, until that was in vain. An
//! entry is handed out once, and goes when it is recalled or when this client changes it.

use std::collections::{HashMap, VecDeque};

use rfs_proto::Attr;

/// Entries kept, at most.
const ENTRIES: usize = 8192;
/// Asked for with a name, to learn in which order names are looked at.
const FEW: u32 = 2;
/// Asked for where they are.
const MANY: u32 = 128;
/// So many directories are remembered: those of a path, each of which is looked into again and again while a tree is walked.
const PLACES: usize = 8;

type Name = Box<[u8]>;

/// What was asked for ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    by_name: HashMap<(u64, Name), Attr>,
    by_ino: HashMap<u64, (u64, Name)>,
    /// Directories that were looked into, the last one at the end.
    places: VecDeque<Place>,
    /// Directories are gone through in their order.
    in_order: bool,
    /// The last one for which that was believed without having been seen.
    guess: Option<Guess>,
}

/// How a directory is looked into.
#[derive(Debug)]
struct Place {
    dir: u64,
    /// The last of the names that came with a look.
    following: Option<Name>,
    in_order: bool,
}

/// What came with the first look into a directory, and how much of it was of use.
#[derive(Clone, Copy, Debug)]
struct Guess {
    dir: u64,
    came: usize,
    used: usize,
}

impl Ahead {
    /// How many entries are to come with a name that is about to be asked for; 0: only the name.
    pub(crate) fn wanted(&mut self, dir: u64) -> u32 {
        if let Some(at) = self.places.iter().position(|place| place.dir == dir)
            && let Some(mut place) = self.places.remove(at)
        {
            let wanted = if std::mem::take(&mut place.in_order) { MANY } else { FEW };
            self.places.push_back(place);
            return wanted;
        }
        if self.places.len() == PLACES {
            self.places.pop_front();
        }
        self.places.push_back(Place { dir, following: None, in_order: false });
        let in_vain = self.guess.take().is_some_and(|guess| 2 * guess.used < guess.came);
        self.in_order &= !in_vain;
        if self.in_order {
            self.guess = Some(Guess { dir, came: 0, used: 0 });
            return MANY;
        }
        // A path is being walked.
        0
    }

    /// Entries that came behind a name, with which this client has nothing to do yet.
    pub(crate) fn came(&mut self, dir: u64, entries: impl Iterator<Item = (Name, Attr)>) {
        let (mut following, mut count) = (None, 0);
        for (name, attr) in entries {
            if self.by_name.len() >= ENTRIES {
                self.by_name.clear();
                self.by_ino.clear();
            }
            self.of_inode(attr.ino);
            self.of_name(dir, &name);
            following = Some(name.clone());
            count += 1;
            self.by_ino.insert(attr.ino, (dir, name.clone()));
            self.by_name.insert((dir, name), attr);
        }
        if let Some(place) = self.places.iter_mut().rfind(|place| place.dir == dir) {
            place.following = following;
        }
        if let Some(guess) = self.guess.as_mut().filter(|guess| guess.dir == dir) {
            guess.came += count;
        }
    }

    /// Hands a name's attributes out.
    pub(crate) fn take(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        let attr = self.of_name(dir, name)?;
        if let Some(guess) = self.guess.as_mut().filter(|guess| guess.dir == dir) {
            guess.used += 1;
        }
        // The last of those that came: the next look asks for more.
        if let Some(place) = self.places.iter_mut().rfind(|place| place.dir == dir)
            && place.following.as_deref() == Some(name)
        {
            place.in_order = true;
            self.in_order = true;
        }
        Some(attr)
    }

    /// A name is not what it was.
    pub(crate) fn of_name(&mut self, dir: u64, name: &[u8]) -> Option<Attr> {
        if self.by_name.is_empty() {
            return None;
        }
        let attr = self.by_name.remove(&(dir, Name::from(name)))?;
        self.by_ino.remove(&attr.ino);
        Some(attr)
    }

    /// An inode is not what it was, or is known in another way.
    pub(crate) fn of_inode(&mut self, ino: u64) {
        if self.by_ino.is_empty() {
            return;
        }
        if let Some(at) = self.by_ino.remove(&ino) {
            self.by_name.remove(&at);
        }
    }

    /// All names of all directories.
    pub(crate) fn forget_all(&mut self) {
        self.by_name.clear();
        self.by_ino.clear();
    }

    /// All names of a directory.
    pub(crate) fn of_directory(&mut self, dir: u64) {
        self.by_name.retain(|(parent, _), _| *parent != dir);
        self.by_ino.retain(|_, (parent, _)| *parent != dir);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rfs_proto::Marks;

    use super::*;
    use crate::client::fake::new_attr;

    fn attr(ino: u64) -> Attr {
        Attr { marks: Marks::KEEP, ..new_attr(ino, 0) }
    }

    fn name(i: u64) -> Name {
        i.to_string().into_bytes().into()
    }

    /// No two files have the same.
    fn number(dir: u64, i: u64) -> u64 {
        dir * 1_000_000 + i
    }

    /// Looks a name up in a directory of `names`; how many calls that is.
    fn look(ahead: &mut Ahead, dir: u64, names: u64, i: u64) -> u64 {
        if let Some(found) = ahead.take(dir, &name(i)) {
            assert_eq!(found.ino, number(dir, i));
            return 0;
        }
        let wanted = u64::from(ahead.wanted(dir));
        if wanted > 0 {
            let entries = (i + 1..names.min(i + wanted)).map(|i| (name(i), attr(number(dir, i))));
            ahead.came(dir, entries);
        }
        1
    }

    #[test]
    fn in_order_a_call_brings_many() {
        let mut ahead = Ahead::default();
        let calls: u64 = (0..10_000).map(|i| look(&mut ahead, 1, 10_000, i)).sum();
        assert!(calls <= 10_000 / u64::from(MANY) + 4, "{calls}");
    }

    #[test]
    fn out_of_order_it_brings_few() {
        let mut ahead = Ahead::default();
        let looked: Vec<u64> = (0..1000).map(|i| i * 7919 % 1000).collect();
        let calls: u64 = looked.iter().map(|i| look(&mut ahead, 1, 1000, *i)).sum();
        assert!(calls >= 1000 / u64::from(FEW), "{calls}");
        assert!(ahead.by_name.len() < 1000);
    }

    #[test]
    fn a_path_brings_nothing() {
        let mut ahead = Ahead::default();
        for dir in 1..20 {
            assert_eq!(ahead.wanted(dir), 0);
        }
    }

    const DIRS: u64 = 100;
    const FILES: u64 = 100;

    /// Looks at the first `files` names in each directory of a tree, on the way there at its own name; how many calls that is, and how many
    /// entries came for nothing.
    fn walk(ahead: &mut Ahead, files: u64) -> (u64, usize) {
        let calls = (0..DIRS).map(|dir| {
            let below = (0..files).map(|i| look(ahead, dir + 2, FILES, i)).sum::<u64>();
            below + look(ahead, 1, DIRS, dir)
        });
        (calls.sum(), ahead.by_name.len())
    }

    #[test]
    fn a_tree_in_order_takes_a_call_for_each_directory() {
        let (calls, left) = walk(&mut Ahead::default(), FILES);
        assert_eq!((calls, left), (DIRS + 5, 0));
    }

    #[test]
    fn who_looks_at_little_of_each_directory_is_not_taken_for_one_who_looks_at_all() {
        let mut ahead = Ahead::default();
        walk(&mut ahead, FILES);
        let known = FILES as usize - 2;
        // It was believed once.
        let (calls, left) = walk(&mut ahead, 2);
        assert!(left <= known + 2 * DIRS as usize, "{left}");
        assert!(calls >= 2 * DIRS - 4, "{calls}");
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut ahead = Ahead::default();
        for dir in 0..100 {
            ahead.came(dir, (0..1000).map(|i| (name(i), attr(dir * 1000 + i))));
            assert!(ahead.by_name.len() <= ENTRIES && ahead.by_ino.len() == ahead.by_name.len());
        }
    }

    proptest! {
        /// Both maps say the same, and what is not what it was is never handed out.
        #[test]
        fn nothing_old_is_handed_out(steps in prop::collection::vec((0..5_u8, 0..3_u64, 0..6_u64), 0..60)) {
            let mut ahead = Ahead::default();
            let mut kept: HashMap<(u64, u64), u64> = HashMap::new();
            for (step, dir, i) in steps {
                match step {
                    0 => {
                        let ino = dir * 100 + i;
                        ahead.came(dir, std::iter::once((name(i), attr(ino))));
                        kept.retain(|_, at| *at != ino);
                        kept.insert((dir, i), ino);
                    }
                    1 => prop_assert_eq!(ahead.take(dir, &name(i)).map(|attr| attr.ino), kept.remove(&(dir, i))),
                    2 => {
                        ahead.of_name(dir, &name(i));
                        kept.remove(&(dir, i));
                    }
                    3 => {
                        ahead.of_inode(dir * 100 + i);
                        kept.retain(|_, at| *at != dir * 100 + i);
                    }
                    _ => {
                        ahead.of_directory(dir);
                        kept.retain(|(parent, _), _| *parent != dir);
                    }
                }
                prop_assert_eq!(ahead.by_name.len(), kept.len());
                prop_assert_eq!(ahead.by_ino.len(), kept.len());
            }
        }
    }
}
