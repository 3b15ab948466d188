//! A file system in memory: the effect of each operation on a small tree, and its answer.
//!
//! [`State`] is a value: it is copied before each step, so that a search can go back. An operation
//! by name takes two steps, as in a kernel: [`State::resolve`] walks the path, [`State::perform`]
//! acts on the result of the walk. No I/O, no locks, no clock.

mod data;
mod earlier_names;
mod locks;
mod names;

use std::{collections::BTreeMap, fmt, rc::Rc};

use libc::{EBADF, ENOENT};

pub(crate) use self::earlier_names::{EarlierName, Walk};
use super::operation::{Attr, LOCKED, Lock, Op, Outcome, Path, Runs};

/// Number of an object: of the operation that made it, so that the order of operations does not
/// matter for it.
pub(crate) type Id = u64;
/// An open file: the worker, and its slot.
pub(crate) type Handle = (usize, u8);

/// The directory that always exists.
pub(crate) const ROOT: Id = 0;

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) directory: bool,
    pub(crate) bytes: Rc<Vec<u8>>,
    pub(crate) mode: u32,
    pub(crate) owner: u32,
    /// Value of the extended attribute, if it is set.
    pub(crate) attribute: Option<u64>,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) inode: Id,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) direct: bool,
    flock: Option<Lock>,
    ranges: [Option<Lock>; LOCKED],
}

/// The whole tree with all open files and locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) inodes: BTreeMap<Id, Inode>,
    pub(crate) names: BTreeMap<(Id, &'static str), Id>,
    pub(crate) handles: BTreeMap<Handle, Open>,
    /// Names that mounts may still use as they were. Empty between rounds.
    pub(crate) earlier: Vec<EarlierName>,
}

/// The end of a path: its directory, its last component, and the object that the walk found
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) parent: Id,
    pub(crate) leaf: &'static str,
    pub(crate) target: Option<Id>,
}

/// The results of an operation's path walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resolved {
    /// The error of the walk.
    failed: Option<i32>,
    first: Option<Place>,
    second: Option<Place>,
    /// The walk has made the file (O_CREAT).
    made: bool,
    /// Offset of an append that another mount's write may overtake.
    end: Option<u64>,
    /// Bytes that the first step has written.
    written: u64,
}

impl Resolved {
    /// Returns true if the first step has written a part, and the outcome tells its length.
    pub(crate) fn has_written(&self, outcome: &Outcome) -> bool {
        self.written > 0 && *outcome == Outcome::Count(self.written)
    }
}

/// An operation in its circumstances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act<'a> {
    pub(crate) worker: usize,
    pub(crate) id: Id,
    pub(crate) op: &'a Op,
    /// The file system's answer, for operations that have several correct answers.
    pub(crate) seen: &'a Outcome,
    /// Other operations that change sizes ran at the same time, or the kernel may use an old size.
    pub(crate) resized: bool,
    /// The operation used the kernel's page cache.
    pub(crate) paged: bool,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((dir, leaf), id) in &self.names {
            let inode = &self.inodes[id];
            let (owner, attribute, bytes) = (inode.owner, inode.attribute, Runs(&inode.bytes));
            writeln!(
                f,
                "  name {dir}/{leaf}: {id}, mode {:o}, owner {owner}, {attribute:?}, {bytes}",
                inode.mode
            )?;
        }
        for ((worker, slot), open) in &self.handles {
            let (id, bytes) = (open.inode, Runs(&self.inodes[&open.inode].bytes));
            let word = |is: bool, word: &'static str| if is { word } else { "" };
            let (write, append) = (word(open.write, " write"), word(open.append, " append"));
            let (direct, flock) = (word(open.direct, " direct"), open.flock);
            writeln!(
                f,
                "  worker {worker} slot {slot}: {id}{write}{append}{direct}, lock {flock:?}, {bytes}"
            )?;
        }
        Ok(())
    }
}

type Step<T> = std::result::Result<T, i32>;

impl State {
    /// Returns a tree that has nothing but its directory.
    pub(crate) fn empty() -> State {
        let root = Inode { directory: true, bytes: Rc::default(), mode: 0o755, owner: 0, attribute: None };
        let inodes = [(ROOT, root)].into();
        State { inodes, names: BTreeMap::new(), handles: BTreeMap::new(), earlier: Vec::new() }
    }

    /// Returns the attributes of an object.
    pub(crate) fn attr(&self, id: Id) -> Attr {
        let inode = &self.inodes[&id];
        let links = match inode.directory {
            true => 0,
            false => self.names.values().filter(|&&named| named == id).count() as u64,
        };
        let (directory, size) = (inode.directory, inode.bytes.len() as u64);
        Attr { directory, size, mode: inode.mode, owner: inode.owner, links }
    }

    /// Returns the object that a path names.
    pub(crate) fn lookup(&self, path: Path) -> Option<Id> {
        self.place(path).ok()?.target
    }

    /// Walks a path.
    fn place(&self, path: Path) -> Step<Place> {
        if path == "." {
            return Ok(Place { parent: ROOT, leaf: path, target: Some(ROOT) });
        }
        let (parent, leaf) = match path.split_once('/') {
            Some((dir, leaf)) => (*self.names.get(&(ROOT, dir)).ok_or(ENOENT)?, leaf),
            None => (ROOT, path),
        };
        Ok(Place { parent, leaf, target: self.names.get(&(parent, leaf)).copied() })
    }

    /// Closes all open files of a worker, as when its client is killed.
    pub(crate) fn close_all(&mut self, worker: usize) {
        self.handles.retain(|handle, _| handle.0 != worker);
    }

    /// Forgets objects that have neither name nor open file.
    pub(crate) fn collect(&mut self) {
        let (names, handles) = (&self.names, &self.handles);
        self.inodes.retain(|id, _| {
            *id == ROOT
                || names.values().any(|named| named == id)
                || handles.values().any(|open| open.inode == *id)
        });
    }

    /// Does the first step of an operation: walks its paths. Creates the file of an `open` that
    /// creates.
    pub(crate) fn resolve(&mut self, act: Act<'_>) -> Resolved {
        let mut found = Resolved::default();
        if let Err(error) = self.try_resolve(act, &mut found) {
            found.failed = Some(error);
        }
        found
    }

    fn try_resolve(&mut self, act: Act<'_>, found: &mut Resolved) -> Step<()> {
        match *act.op {
            Op::Open { slot, path, how } if !self.handles.contains_key(&(act.worker, slot)) => {
                let place = self.place(path)?;
                (found.first, found.made) = self.find_or_create(place, how, act.id)?;
            }
            Op::ReadName { path, .. }
            | Op::TruncateName { path, .. }
            | Op::StatName { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::SetAttribute { path }
            | Op::GetAttribute { path }
            | Op::List { path } => {
                let place = self.place(path)?;
                place.target.ok_or(ENOENT)?;
                found.first = Some(place);
            }
            Op::Unlink { path } | Op::Mkdir { path } | Op::Rmdir { path } => {
                found.first = Some(self.place(path)?);
            }
            Op::Rename { from, to, .. } => {
                found.first = Some(self.place(from)?);
                found.second = Some(self.place(to)?);
            }
            Op::Link { from, to } => {
                let place = self.place(from)?;
                place.target.ok_or(ENOENT)?;
                found.first = Some(place);
                found.second = Some(self.place(to)?);
            }
            Op::Write { slot, at, len } => {
                let open = self.handles.get(&(act.worker, slot)).filter(|open| open.write);
                let Some(open) = open.cloned() else { return Ok(()) };
                if open.append {
                    let end = self.inodes[&open.inode].bytes.len() as u64;
                    found.end = act.resized.then_some(end);
                } else if act.paged {
                    found.written = self.write_first_page(open.inode, act.id, at, len);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Does the last step of an operation. Returns the answer that the file system has to give. If
    /// several answers are right and the file system's answer (`act.seen`) is among them, returns
    /// `act.seen`.
    pub(crate) fn perform(&mut self, act: Act<'_>, found: Resolved) -> Outcome {
        if let Some(error) = found.failed {
            return Outcome::Failed(error);
        }
        self.try_perform(act, found).unwrap_or_else(Outcome::Failed)
    }

    fn try_perform(&mut self, act: Act<'_>, found: Resolved) -> Step<Outcome> {
        let slots = match *act.op {
            Op::Close { slot }
            | Op::Write { slot, .. }
            | Op::Read { slot, .. }
            | Op::Truncate { slot, .. }
            | Op::Allocate { slot, .. }
            | Op::Stat { slot }
            | Op::Seek { slot, .. }
            | Op::LockFile { slot, .. }
            | Op::LockRange { slot, .. } => [slot, slot],
            Op::Copy { from, to, .. } => [from, to],
            _ => return self.perform_on_names(act, found),
        };
        let [first, second] = slots.map(|slot| (act.worker, slot));
        let (Some(open), Some(target)) = (self.handles.get(&first), self.handles.get(&second)) else {
            return Ok(Outcome::Nothing);
        };
        let (open, target) = (open.clone(), target.clone());
        match *act.op {
            Op::Close { .. } => {
                self.handles.remove(&first);
                Ok(Outcome::Done)
            }
            Op::Stat { .. } => Ok(Outcome::Attr(self.attr(open.inode))),
            Op::LockFile { lock, .. } => self.lock_file(first, lock),
            Op::LockRange { lock, at, len, .. } => {
                self.lock_range(first, lock, at.into()..usize::from(at + len))
            }
            Op::Write { at, len, .. } => self.write(&open, act.id, found, (at, len)),
            Op::Read { at, len, .. } => Ok(self.read(open.inode, at, len)),
            Op::Truncate { size, .. } => match open.write {
                true => Ok(self.truncate(open.inode, size)),
                false => Err(libc::EINVAL),
            },
            Op::Allocate { space, at, len, .. } => match open.write {
                true => Ok(self.allocate(open.inode, space, at, len)),
                false => Err(EBADF),
            },
            Op::Copy { at, target: to, len, .. } => self.copy(act, [&open, &target], (at, to, len)),
            Op::Seek { hole, at, .. } => self.seek(open.inode, hole, at, act.seen),
            _ => Ok(Outcome::Nothing),
        }
    }
}

#[cfg(test)]
mod tests;
