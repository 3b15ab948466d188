//! What is known of the names in directories: which ones there are not. Pure.
//!
//! Of a directory that was listed to its end a superset of its names is known: those listed, those made here since, and those
//! that were recalled. What is not among them does not exist. Of others, single names are known not to exist. Both stay true
//! while what other clients change is recalled, and this client says what it changes itself.
//!
//! What was asked for before a change of this client's own and answered after it is not believed, as with
//! recalls ([`Mark`]).

use std::collections::{HashMap, HashSet};

/// Names kept in all directories together, at most.
const NAMES: usize = 200_000;
/// A directory counts as so many, besides those that are known of it.
const DIRECTORY: usize = 16;
/// A longer directory is not worth it.
const LONGEST: usize = 50_000;
/// Looked up so often in vain, a directory is listed.
const MISSES: u32 = 4;
/// And, if that came to nothing, after so many more.
const MISSES_AGAIN: u32 = 16;

type Name = Box<[u8]>;

/// A moment in the order of this client's own changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// A listing under way, by number: pages that were asked for during another one do not belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingId(u64);

#[derive(Debug)]
struct Listing {
    id: ListingId,
    /// All names up to this cookie are there.
    to: u64,
    names: HashSet<Name>,
}

#[derive(Debug, Default)]
struct Directory {
    /// The last change of this client's own began or ended.
    changed: u64,
    /// Names that it is changing.
    changing: Vec<Name>,
    /// Names that do not exist; in a directory that is not known to its end.
    absent: HashSet<Name>,
    /// A superset of its names.
    all: Option<HashSet<Name>>,
    listing: Option<Listing>,
    misses: u32,
    /// It was made here a moment ago: it is empty, or nearly so.
    new: bool,
    /// It is listed after so many; none yet: after [`MISSES`].
    patience: Option<u32>,
}

impl Directory {
    fn names(&self) -> usize {
        let listing = self.listing.as_ref().map_or(0, |listing| listing.names.len());
        DIRECTORY + self.absent.len() + self.all.as_ref().map_or(0, HashSet::len) + listing
    }

    /// A name of which nothing is known.
    fn may_exist(&mut self, name: &[u8]) {
        self.absent.remove(name);
        for names in
            [self.all.as_mut(), self.listing.as_mut().map(|listing| &mut listing.names)].into_iter().flatten()
        {
            names.insert(name.into());
        }
    }

    fn does_not_exist(&mut self, name: &[u8]) {
        match &mut self.all {
            Some(all) => {
                all.remove(name);
            }
            None => {
                self.absent.insert(name.into());
            }
        }
    }
}

/// All directories.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    clock: u64,
    /// What began before is not believed: it is not known what changed since.
    floor: u64,
    by_ino: HashMap<u64, Directory>,
    names: usize,
}

impl Directories {
    /// Now, for what is asked now.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// Does something with a directory and counts its names.
    fn with<R>(&mut self, dir: u64, act: impl FnOnce(&mut Directory) -> R) -> R {
        let before = self.by_ino.get(&dir).map_or(0, Directory::names);
        let directory = self.by_ino.entry(dir).or_default();
        let outcome = act(directory);
        let after = directory.names();
        self.names = self.names + after - before;
        if self.names > NAMES {
            self.forget_some(dir);
        }
        outcome
    }

    /// Makes room, but not in the directory that is used now unless nothing else is left.
    fn forget_some(&mut self, but: u64) {
        self.floor = self.clock + 1;
        self.clock += 1;
        let mut names = self.names;
        self.by_ino.retain(|ino, directory| {
            if names <= NAMES / 2 || *ino == but || !directory.changing.is_empty() {
                return true;
            }
            names -= directory.names();
            false
        });
        self.names = names;
    }

    /// True if nothing of this client's own changed in the directory since, or is about to.
    pub(crate) fn is_calm(&self, dir: u64, since: Mark) -> bool {
        since.0 >= self.floor
            && self.by_ino.get(&dir).is_none_or(|d| d.changing.is_empty() && d.changed <= since.0)
    }

    /// True if a name is known not to exist.
    pub(crate) fn is_absent(&self, dir: u64, name: &[u8]) -> bool {
        let Some(directory) = self.by_ino.get(&dir) else { return false };
        match &directory.all {
            Some(all) => !all.contains(name),
            None => directory.absent.contains(name),
        }
    }

    /// True if the whole directory is known.
    #[cfg(test)]
    pub(crate) fn is_complete(&self, dir: u64) -> bool {
        self.by_ino.get(&dir).is_some_and(|directory| directory.all.is_some())
    }

    /// A change of this client's own begins: what the name stands for is not known until it ends.
    pub(crate) fn begins(&mut self, dir: u64, name: &[u8]) {
        self.clock += 1;
        let now = self.clock;
        self.with(dir, |directory| {
            directory.changing.push(name.into());
            directory.changed = now;
            directory.may_exist(name);
        });
    }

    /// It has ended; `gone`: the name does not exist now, unless another change is under way.
    pub(crate) fn ended(&mut self, dir: u64, name: &[u8], gone: bool) {
        self.clock += 1;
        let now = self.clock;
        self.with(dir, |directory| {
            if let Some(at) = directory.changing.iter().position(|changing| **changing == *name) {
                directory.changing.swap_remove(at);
            }
            directory.changed = now;
            if gone && directory.changing.is_empty() {
                directory.does_not_exist(name);
            }
        });
    }

    /// Another client changed a name.
    pub(crate) fn recalled(&mut self, dir: u64, name: &[u8]) {
        if self.by_ino.contains_key(&dir) {
            self.with(dir, |directory| directory.may_exist(name));
        }
    }

    /// A directory was made here.
    pub(crate) fn made(&mut self, dir: u64) {
        self.with(dir, |directory| directory.new = true);
    }

    /// True, once, for a directory that was made here: to list it costs no more than to look a name up in it.
    pub(crate) fn is_new(&mut self, dir: u64) -> bool {
        self.by_ino.get_mut(&dir).is_some_and(|directory| std::mem::take(&mut directory.new))
    }

    /// Nothing is known of a directory any more.
    pub(crate) fn forget(&mut self, dir: u64) {
        if self.by_ino.contains_key(&dir) {
            self.with(dir, |directory| {
                directory.absent.clear();
                directory.all = None;
                directory.listing = None;
            });
        }
    }

    /// All names of all directories were.
    pub(crate) fn forget_all(&mut self) {
        let known: Vec<u64> = self.by_ino.keys().copied().collect();
        known.into_iter().for_each(|dir| self.forget(dir));
        // What is on its way is not believed.
        self.floor = self.clock + 1;
        self.clock += 1;
    }

    /// A name was asked for at `since`, and there is none; `recalled`: another client may have changed that meanwhile. True if
    /// it is time to list the directory.
    pub(crate) fn missed(&mut self, dir: u64, name: &[u8], since: Mark, recalled: bool) -> bool {
        let calm = !recalled && self.is_calm(dir, since);
        self.with(dir, |directory| {
            if calm {
                directory.does_not_exist(name);
            }
            directory.misses = directory.misses.saturating_add(1);
            directory.all.is_none() && directory.misses >= directory.patience.unwrap_or(MISSES)
        })
    }

    /// A page behind `cookie` is about to be asked for: which listing it belongs to, if there is one or one begins with it, and
    /// up to where that has got.
    pub(crate) fn lists(&mut self, dir: u64, cookie: u64) -> Option<(ListingId, u64)> {
        self.clock += 1;
        let id = ListingId(self.clock);
        self.with(dir, |directory| {
            if directory.all.is_some() || (directory.listing.is_none() && cookie > 0) {
                return None;
            }
            let changing = &directory.changing;
            let listing = directory.listing.get_or_insert_with(|| {
                // What is being changed now may come into being behind where the listing has got.
                Listing { id, to: 0, names: changing.iter().cloned().collect() }
            });
            Some((listing.id, listing.to))
        })
    }

    /// A page came: names behind `from` and up to `to`, or to the end. True if the directory is known now.
    pub(crate) fn listed<'n>(
        &mut self,
        (dir, id): (u64, ListingId),
        (from, to): (u64, u64),
        names: impl Iterator<Item = &'n [u8]>,
        end: bool,
    ) -> bool {
        self.with(dir, |directory| {
            let Some(listing) = &mut directory.listing else { return false };
            if listing.id != id || from > listing.to {
                return false;
            }
            listing.to = listing.to.max(to);
            listing.names.extend(names.map(Name::from));
            if listing.names.len() > LONGEST {
                directory.listing = None;
                directory.misses = 0;
                directory.patience = Some(u32::MAX);
                return false;
            }
            if end && let Some(listing) = directory.listing.take() {
                directory.all = Some(listing.names);
                directory.absent = HashSet::new();
                directory.misses = 0;
                directory.patience = Some(MISSES_AGAIN);
            }
            directory.all.is_some()
        })
    }
}

#[cfg(test)]
mod tests;
