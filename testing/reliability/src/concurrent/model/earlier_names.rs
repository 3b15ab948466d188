//! Names that a mount may use although they have changed.
//!
//! The kernel drops a recalled name under the lock of its directory. A change of that directory by
//! the same mount holds this lock. So the mount acknowledges the recall first, and the kernel drops
//! the name right after its own change. Until then a path walk on that mount may use the name as it
//! was. No I/O, no locks, no clock.

use super::{Act, Id, Path, ROOT, Resolved, State};
use crate::concurrent::operation::{Op, Renaming};

/// The most combinations of earlier names that one operation is tried with.
const MAX_WAYS: usize = 64;

/// A name as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EarlierName {
    mount: usize,
    dir: Id,
    leaf: &'static str,
    /// The object that had the name, if there was one.
    target: Option<Id>,
    /// When the mount has dropped it.
    until: u64,
    /// The mount has changed the name itself, and has the directory locked until then.
    is_own: bool,
}

/// A mount that looks names up, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) mount: usize,
    pub(crate) from: u64,
}

impl EarlierName {
    fn is_known_to(&self, walk: Walk) -> bool {
        self.mount == walk.mount && walk.from <= self.until
    }
}

impl State {
    /// Returns the names that differ between two states.
    fn changed_names(&self, before: &State) -> Vec<(Id, &'static str)> {
        let gone = before.names.keys().filter(|name| !self.names.contains_key(*name));
        let here = self.names.iter().filter(|(name, id)| before.names.get(*name) != Some(*id));
        gone.chain(here.map(|(name, _)| name)).copied().collect()
    }

    /// Returns the path of a directory that has a name.
    fn path_of(&self, dir: Id) -> Option<Path> {
        if dir == ROOT {
            return Some(".");
        }
        self.names.iter().find(|(name, id)| name.0 == ROOT && **id == dir).map(|(name, _)| name.1)
    }

    /// Notes the names that a change of the mount `changer` has taken from mounts. `drops` returns
    /// when a mount has dropped the names of a directory, if it drops them late.
    pub(crate) fn note_earlier_names(
        &mut self,
        before: &State,
        (changer, mounts): (usize, impl Iterator<Item = usize> + Clone),
        drops: impl Fn(usize, Path) -> Option<u64>,
    ) {
        for (dir, leaf) in self.changed_names(before) {
            let Some(path) = before.path_of(dir).or_else(|| self.path_of(dir)) else { continue };
            let target = before.names.get(&(dir, leaf)).copied();
            for mount in mounts.clone() {
                let Some(until) = drops(mount, path) else { continue };
                let earlier = EarlierName { mount, dir, leaf, target, until, is_own: mount == changer };
                if !self.earlier.contains(&earlier) {
                    self.earlier.push(earlier);
                }
            }
        }
    }

    /// Notes that a mount has changed names itself: its kernel knows them, and has moved an earlier
    /// name with a rename.
    pub(crate) fn note_own_change(&mut self, before: &State, mount: usize, op: &Op, found: Resolved) {
        let changed = self.changed_names(before);
        let is_changed = |one: &EarlierName| one.mount == mount && changed.contains(&(one.dir, one.leaf));
        let (gone, mut kept): (Vec<_>, Vec<_>) = self.earlier.iter().copied().partition(is_changed);
        if let (Op::Rename { how, .. }, Some(from), Some(to)) = (op, found.first, found.second) {
            let [from, to] = [from, to].map(|place| (place.parent, place.leaf));
            for one in gone {
                let place = match (one.dir, one.leaf) {
                    old if old == from => to,
                    new if new == to && *how == Renaming::Exchange => from,
                    _ => continue,
                };
                kept.push(EarlierName { dir: place.0, leaf: place.1, ..one });
            }
        }
        self.earlier = kept;
    }

    /// Walks the paths of an operation with each combination of names that its mount may not have
    /// dropped yet.
    pub(crate) fn resolve_by_earlier_names(&self, act: Act<'_>, walk: Walk) -> Vec<Resolved> {
        let mut ways: Vec<Vec<&EarlierName>> = vec![Vec::new()];
        for one in self.earlier.iter().filter(|one| one.is_known_to(walk) && act.op.uses(one)) {
            let is_new = |way: &&Vec<&EarlierName>| {
                way.iter().all(|other| (other.dir, other.leaf) != (one.dir, one.leaf))
            };
            let more: Vec<_> = ways.iter().filter(is_new).cloned().collect();
            ways.extend(more.into_iter().map(|mut way| {
                way.push(one);
                way
            }));
            ways.truncate(MAX_WAYS);
        }
        let mut all = Vec::new();
        for way in &ways[1..] {
            let mut as_it_was = self.clone();
            for one in way {
                match one.target {
                    Some(id) => as_it_was.names.insert((one.dir, one.leaf), id),
                    None => as_it_was.names.remove(&(one.dir, one.leaf)),
                };
            }
            let found = as_it_was.resolve(act);
            // The server knows whether the name of a new file is free.
            if !found.made && !all.contains(&found) {
                all.push(found);
            }
        }
        all
    }

    /// Returns true if a mount may list a name, or not list it, as it was.
    pub(crate) fn may_list_as_it_was(
        &self,
        found: Resolved,
        leaf: &str,
        walk: Walk,
        is_listed: bool,
    ) -> bool {
        let Some(dir) = found.first.and_then(|place| place.target) else { return false };
        let as_it_was = |one: &EarlierName| {
            // A listing waits for the lock of the directory.
            !one.is_own
                && (one.dir, one.leaf) == (dir, leaf)
                && one.is_known_to(walk)
                && one.target.is_some() == is_listed
        };
        self.earlier.iter().any(as_it_was)
    }
}

impl Op {
    /// Returns true if the kernel may take a name for this operation from its cache. It asks for a
    /// name that is about to be made. To remove or move a name, it waits for the lock of the
    /// directory.
    fn uses(&self, &EarlierName { dir, leaf, is_own, .. }: &EarlierName) -> bool {
        let is_locked = matches!(self, Op::Rename { .. } | Op::Unlink { .. } | Op::Rmdir { .. });
        let (paths, cached) = match *self {
            Op::Rename { from, to, how: Renaming::Exchange } => (vec![from, to], vec![from, to]),
            Op::Rename { from, to, .. } | Op::Link { from, to } => (vec![from, to], vec![from]),
            Op::Mkdir { path } => (vec![path], Vec::new()),
            Op::Open { path, how, .. } if how.create && how.exclusive => (vec![path], Vec::new()),
            Op::Open { path, .. }
            | Op::ReadName { path, .. }
            | Op::TruncateName { path, .. }
            | Op::StatName { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::SetAttribute { path }
            | Op::GetAttribute { path }
            | Op::List { path }
            | Op::Unlink { path }
            | Op::Rmdir { path } => (vec![path], vec![path]),
            _ => return false,
        };
        let is_parent = |path: &Path| dir == ROOT && path.split_once('/').is_some_and(|(up, _)| up == leaf);
        let is_last = |path: &Path| match path.split_once('/') {
            Some((_, last)) => dir != ROOT && last == leaf,
            None => dir == ROOT && *path == leaf,
        };
        paths.iter().any(is_parent) || !(is_own && is_locked) && cached.iter().any(is_last)
    }
}
