//! Names in the model, and operations on files by name.

use std::{collections::BTreeSet, rc::Rc};

use libc::{EEXIST, ENODATA, ENOENT, ENOTEMPTY};

use super::{Act, Id, Inode, Open, Place, ROOT, Resolved, State, Step};
use crate::concurrent::operation::{How, LOCKED, Op, Outcome, Renaming};

impl State {
    /// Returns true if names can be made in a directory.
    fn is_there(&self, directory: Id) -> bool {
        directory == ROOT || self.names.values().any(|&id| id == directory)
    }

    fn get(&self, place: Place) -> Option<Id> {
        self.names.get(&(place.parent, place.leaf)).copied()
    }

    fn make(&mut self, id: Id, directory: bool) {
        let mode = if directory { 0o755 } else { 0o644 };
        self.inodes.insert(id, Inode { directory, bytes: Rc::default(), mode, owner: 0, attribute: None });
    }

    /// Finds the file that `open` names, or makes it. Returns whether it was made.
    pub(super) fn find_or_create(&mut self, place: Place, how: How, id: Id) -> Step<(Option<Place>, bool)> {
        match place.target {
            Some(_) if how.create && how.exclusive => Err(EEXIST),
            Some(_) => Ok((Some(place), false)),
            None if !how.create => Err(ENOENT),
            None => {
                self.make(id, false);
                self.names.insert((place.parent, place.leaf), id);
                Ok((Some(Place { target: Some(id), ..place }), true))
            }
        }
    }

    pub(super) fn perform_on_names(&mut self, act: Act<'_>, found: Resolved) -> Step<Outcome> {
        let Some(place) = found.first else { return Ok(Outcome::Nothing) };
        match *act.op {
            // The kernel asks for no removal of a name that it takes for absent.
            Op::Unlink { .. } | Op::Rmdir { .. } if place.target.is_none() => Err(ENOENT),
            Op::Unlink { .. } => self.unlink(place),
            Op::Mkdir { .. } => {
                self.free_name(place)?;
                self.make(act.id, true);
                self.names.insert((place.parent, place.leaf), act.id);
                Ok(Outcome::Done)
            }
            Op::Rmdir { .. } => {
                let id = self.get(place).ok_or(ENOENT)?;
                match self.names.keys().any(|name| name.0 == id) {
                    true => Err(ENOTEMPTY),
                    false => self.unlink(place),
                }
            }
            Op::Rename { how, .. } => self.rename(place, found.second.ok_or(ENOENT)?, how, act.seen),
            Op::Link { .. } => self.link(place, found.second.ok_or(ENOENT)?),
            _ => self.perform_on_object(act, found, place.target.ok_or(ENOENT)?),
        }
    }

    fn perform_on_object(&mut self, act: Act<'_>, found: Resolved, id: Id) -> Step<Outcome> {
        let inode = self.inodes.get_mut(&id).expect("an object that was resolved");
        match *act.op {
            Op::Open { slot, how, .. } => {
                if how.truncate && !found.made {
                    self.truncate(id, 0);
                }
                let How { write, append, direct, .. } = how;
                let open = Open { inode: id, write, append, direct, flock: None, ranges: [None; LOCKED] };
                self.handles.insert((act.worker, slot), open);
            }
            Op::List { .. } => {
                let names = self.names.keys().filter(|name| name.0 == id).map(|name| name.1.to_owned());
                return Ok(Outcome::Names(names.collect::<BTreeSet<_>>()));
            }
            Op::Chmod { mode, .. } => inode.mode = mode,
            Op::Chown { owner, .. } => inode.owner = owner,
            Op::SetAttribute { .. } => inode.attribute = Some(act.id),
            Op::GetAttribute { .. } => return inode.attribute.map(Outcome::Value).ok_or(ENODATA),
            Op::ReadName { at, len, .. } => return Ok(self.read(id, at, len)),
            Op::StatName { .. } => return Ok(Outcome::Attr(self.attr(id))),
            Op::TruncateName { size, .. } => return Ok(self.truncate(id, size)),
            _ => return Ok(Outcome::Nothing),
        }
        Ok(Outcome::Done)
    }

    /// Fails unless a name can be made in a place.
    fn free_name(&self, place: Place) -> Step<()> {
        match self.is_there(place.parent) {
            _ if self.get(place).is_some() => Err(EEXIST),
            true => Ok(()),
            false => Err(ENOENT),
        }
    }

    fn unlink(&mut self, place: Place) -> Step<Outcome> {
        self.names.remove(&(place.parent, place.leaf)).map(|_| Outcome::Done).ok_or(ENOENT)
    }

    fn link(&mut self, from: Place, to: Place) -> Step<Outcome> {
        let id = from.target.ok_or(ENOENT)?;
        self.free_name(to)?;
        // A file that has lost its last name gets none.
        self.names.values().any(|&named| named == id).then_some(()).ok_or(ENOENT)?;
        self.names.insert((to.parent, to.leaf), id);
        Ok(Outcome::Done)
    }

    /// Renames. The kernel looks the two names up one after the other. It ends there if they are
    /// one file, or if the new name is there and must not be. With another mount's rename in
    /// between, that is so though the old name has gone.
    fn rename(&mut self, from: Place, to: Place, how: Renaming, seen: &Outcome) -> Step<Outcome> {
        let before = self.get(to);
        match (from.target, seen) {
            (None, _) => return Err(ENOENT),
            (Some(id), Outcome::Done) if before == Some(id) && how != Renaming::NoReplace => {
                return Ok(Outcome::Done);
            }
            // The kernel does not ask for the other name of an exchange.
            (Some(_), _) if how == Renaming::Exchange && to.target.is_none() => return Err(ENOENT),
            (Some(_), Outcome::Done) if how == Renaming::Exchange && to.target == from.target => {
                return Ok(Outcome::Done);
            }
            (Some(_), Outcome::Failed(EEXIST)) if before.is_some() && how == Renaming::NoReplace => {
                return Err(EEXIST);
            }
            _ => {}
        }
        let id = self.get(from).ok_or(ENOENT)?;
        match how {
            Renaming::NoReplace if before.is_some() => return Err(EEXIST),
            Renaming::Exchange if before.is_none() => return Err(ENOENT),
            // Two names of one file: nothing is done.
            _ if before == Some(id) => return Ok(Outcome::Done),
            _ if !self.is_there(to.parent) => return Err(ENOENT),
            _ => {}
        }
        match (how, before) {
            (Renaming::Exchange, Some(before)) => self.names.insert((from.parent, from.leaf), before),
            _ => self.names.remove(&(from.parent, from.leaf)),
        };
        self.names.insert((to.parent, to.leaf), id);
        Ok(Outcome::Done)
    }
}
