//! Known absences of names in directories. No I/O, no locks, no clock.
//!
//! For a completely listed directory, the cache has a superset of its names: listed names, names
//! created here since, and recalled names. Every other name is absent. For other directories, the
//! cache has single absent names. Both stay true while other clients' changes are recalled and
//! this client notes its own.
//!
//! A reply to a request from before an own change, but answered after it, is ignored ([`Mark`]).

use std::collections::{HashMap, HashSet};

/// Maximum number of names of all directories.
const MAX_NAMES: usize = 200_000;
/// Weight of a directory in that number, besides its names.
const DIRECTORY_WEIGHT: usize = 16;
/// Maximum number of names of a completely listed directory.
const MAX_LISTED_NAMES: usize = 50_000;
/// Number of failed lookups after which a directory is listed.
const MISSES: u32 = 4;
/// The same number after a first listing.
const MISSES_AGAIN: u32 = 16;

type Name = Box<[u8]>;

/// A time in the order of this client's own changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark(u64);

/// Number of a listing in progress. Pages that were requested for another listing are not part of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListingId(u64);

#[derive(Debug)]
struct Listing {
    id: ListingId,
    /// Cookie up to which all names are known.
    to: u64,
    names: HashSet<Name>,
}

#[derive(Debug, Default)]
struct Directory {
    /// Time at which this client's last change began or ended.
    changed: u64,
    /// Names that this client is changing.
    changing: Vec<Name>,
    /// Absent names. Unused if `all` is known.
    absent: HashSet<Name>,
    /// Superset of the names.
    all: Option<HashSet<Name>>,
    listing: Option<Listing>,
    misses: u32,
    /// True if the directory was created here just now, and is nearly empty.
    new: bool,
    /// Number of failed lookups before the next listing; `None` stands for [`MISSES`].
    list_after: Option<u32>,
}

impl Directory {
    fn names(&self) -> usize {
        let listing = self.listing.as_ref().map_or(0, |listing| listing.names.len());
        DIRECTORY_WEIGHT + self.absent.len() + self.all.as_ref().map_or(0, HashSet::len) + listing
    }

    /// Notes that a name may exist.
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

/// The state of all directories.
#[derive(Debug, Default)]
pub(crate) struct DirNames {
    clock: u64,
    /// Replies to requests from before this time are ignored, because later changes are not known.
    floor: u64,
    by_ino: HashMap<u64, Directory>,
    names: usize,
}

impl DirNames {
    /// Returns the current time, to note before a request.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// Changes a directory's state and updates the number of names.
    fn with<R>(&mut self, dir: u64, act: impl FnOnce(&mut Directory) -> R) -> R {
        let before = self.by_ino.get(&dir).map_or(0, Directory::names);
        let directory = self.by_ino.entry(dir).or_default();
        let outcome = act(directory);
        let after = directory.names();
        self.names = self.names + after - before;
        if self.names > MAX_NAMES {
            self.forget_some(dir);
        }
        outcome
    }

    /// Forgets directories to make room. Keeps `but`, which is in use.
    fn forget_some(&mut self, but: u64) {
        self.floor = self.clock + 1;
        self.clock += 1;
        let mut names = self.names;
        self.by_ino.retain(|ino, directory| {
            if names <= MAX_NAMES / 2 || *ino == but || !directory.changing.is_empty() {
                return true;
            }
            names -= directory.names();
            false
        });
        self.names = names;
    }

    /// Returns true if this client has changed no name in the directory since, and is changing
    /// none.
    pub(crate) fn is_calm(&self, dir: u64, since: Mark) -> bool {
        since.0 >= self.floor
            && self.by_ino.get(&dir).is_none_or(|d| d.changing.is_empty() && d.changed <= since.0)
    }

    /// Returns true if a name is known to be absent.
    pub(crate) fn is_absent(&self, dir: u64, name: &[u8]) -> bool {
        let Some(directory) = self.by_ino.get(&dir) else { return false };
        match &directory.all {
            Some(all) => !all.contains(name),
            None => directory.absent.contains(name),
        }
    }

    /// Returns true if all names of the directory are known.
    #[cfg(test)]
    pub(crate) fn is_complete(&self, dir: u64) -> bool {
        self.by_ino.get(&dir).is_some_and(|directory| directory.all.is_some())
    }

    /// Notes the begin of an own change. The name's state is unknown until the change ends.
    pub(crate) fn begins(&mut self, dir: u64, name: &[u8]) {
        self.clock += 1;
        let now = self.clock;
        self.with(dir, |directory| {
            directory.changing.push(name.into());
            directory.changed = now;
            directory.may_exist(name);
        });
    }

    /// Notes the end of an own change. With `gone`, the name is absent now, unless another change
    /// is in flight.
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

    /// Notes that another client has changed a name.
    pub(crate) fn recalled(&mut self, dir: u64, name: &[u8]) {
        if self.by_ino.contains_key(&dir) {
            self.with(dir, |directory| directory.may_exist(name));
        }
    }

    /// Notes that a directory was created here.
    pub(crate) fn made(&mut self, dir: u64) {
        self.with(dir, |directory| directory.new = true);
    }

    /// Returns true once for a directory that was created here. Listing it costs as much as one
    /// lookup.
    pub(crate) fn is_new(&mut self, dir: u64) -> bool {
        self.by_ino.get_mut(&dir).is_some_and(|directory| std::mem::take(&mut directory.new))
    }

    /// Forgets the names of a directory.
    pub(crate) fn forget(&mut self, dir: u64) {
        if self.by_ino.contains_key(&dir) {
            self.with(dir, |directory| {
                directory.absent.clear();
                directory.all = None;
                directory.listing = None;
            });
        }
    }

    /// Forgets the names of all directories.
    pub(crate) fn forget_all(&mut self) {
        let known: Vec<u64> = self.by_ino.keys().copied().collect();
        known.into_iter().for_each(|dir| self.forget(dir));
        // Replies in flight are ignored.
        self.floor = self.clock + 1;
        self.clock += 1;
    }

    /// Notes that a lookup, requested at `since`, found no name. `recalled` tells whether another
    /// client may have changed it meanwhile. Returns true if the directory is due to be listed.
    pub(crate) fn missed(&mut self, dir: u64, name: &[u8], since: Mark, recalled: bool) -> bool {
        let calm = !recalled && self.is_calm(dir, since);
        self.with(dir, |directory| {
            if calm {
                directory.does_not_exist(name);
            }
            directory.misses = directory.misses.saturating_add(1);
            directory.all.is_none() && directory.misses >= directory.list_after.unwrap_or(MISSES)
        })
    }

    /// Returns the listing that a page behind `cookie` will belong to, and the cookie that it has
    /// reached. The page at cookie 0 begins a listing.
    pub(crate) fn lists(&mut self, dir: u64, cookie: u64) -> Option<(ListingId, u64)> {
        self.clock += 1;
        let id = ListingId(self.clock);
        self.with(dir, |directory| {
            if directory.all.is_some() || (directory.listing.is_none() && cookie > 0) {
                return None;
            }
            let changing = &directory.changing;
            let listing = directory.listing.get_or_insert_with(|| {
                // A name that is being changed may appear behind the cookie that the listing has
                // reached.
                Listing { id, to: 0, names: changing.iter().cloned().collect() }
            });
            Some((listing.id, listing.to))
        })
    }

    /// Adds a page: the names behind `from` up to `to`, or to the end. Returns true if the
    /// directory is known now.
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
            if listing.names.len() > MAX_LISTED_NAMES {
                directory.listing = None;
                directory.misses = 0;
                directory.list_after = Some(u32::MAX);
                return false;
            }
            if end && let Some(listing) = directory.listing.take() {
                directory.all = Some(listing.names);
                directory.absent = HashSet::new();
                directory.misses = 0;
                directory.list_after = Some(MISSES_AGAIN);
            }
            directory.all.is_some()
        })
    }
}

#[cfg(test)]
mod tests;
