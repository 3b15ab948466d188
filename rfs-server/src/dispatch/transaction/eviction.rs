//! Reports of a transaction to the candidates for eviction, and the transaction that evicts a file.
//!
//! # Concurrency
//! Belongs to a transaction. It takes the lock of the candidates under its shards, for moments. All
//! changes of a file's names and opens happen under the file's shard, so the candidates have them
//! in order.

use rfs_proto::FileKind;
use smallvec::SmallVec;

use super::{locked_inodes::Stop, view::WriteView};
use crate::{
    metadata::namespace::{
        inode::Inode,
        names::{Effects, Place},
        xattr::{PIN, XattrName},
    },
    session::registry::NO_SESSION,
    space::{
        eviction::{Candidate, Eviction, FileId, Home, Shortage},
        file_extents::FileMap,
    },
};

/// The fate of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Fate {
    /// It is gone, with its bytes.
    Gone(u64),
    /// It stays: it is pinned, or in use, or has changed.
    Stays,
    /// It stays, because it has no space that would be handed out again. It is the last candidate
    /// now.
    GivesNothing,
}

/// Why a file is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Cause {
    /// Bytes or inodes are short.
    Short(Shortage),
    /// It is too old.
    Old,
}

/// Returns true if an inode has the attribute that pins it.
fn has_pin(inode: &Inode) -> bool {
    inode.xattrs.as_ref().is_some_and(|xattrs| xattrs.get(XattrName::Plain(PIN)).is_ok())
}

impl WriteView<'_> {
    /// Tells the candidates of the names that this transaction has changed.
    pub(in crate::dispatch) fn track_names(&self, effects: &Effects, names: &[Place<'_>]) {
        let Some(eviction) = self.store.eviction.as_deref() else { return };
        let stands_for = |place: &Place<'_>| self.namespace.directory(place.parent).ok()?.get(place.name);
        let there: SmallVec<[Option<u64>; 2]> = names.iter().map(stands_for).collect();
        let mut inos: SmallVec<[u64; 6]> = effects.touched.iter().chain(&effects.made).copied().collect();
        inos.extend(there.iter().flatten().copied());
        inos.sort_unstable();
        inos.dedup();
        let gone: SmallVec<[(u64, &[u8]); 2]> =
            names.iter().map(|place| (place.parent, place.name)).collect();
        for ino in inos {
            let new: SmallVec<[(u64, &[u8]); 2]> = gone
                .iter()
                .zip(&there)
                .filter(|(_, there)| **there == Some(ino))
                .map(|(name, _)| *name)
                .collect();
            self.track_file(eviction, ino, &gone, &new);
        }
        if !effects.moved.is_empty() {
            // The directory may have been below a pinned one.
            let mut candidates = eviction.candidates();
            if candidates.has_pins() {
                candidates.look_again();
            }
        }
    }

    fn track_file(&self, eviction: &Eviction, ino: u64, gone: &[(u64, &[u8])], new: &[(u64, &[u8])]) {
        let Ok(inode) = self.namespace.get(ino) else { return };
        let (slot, kind, nlink) = (inode.slot, inode.kind, inode.nlink);
        match kind {
            FileKind::Regular if nlink == 0 => eviction.candidates().forget(slot),
            FileKind::Regular => {
                eviction.candidates().renamed(FileId { slot, ino }, gone, new);
                self.track_closed(ino);
            }
            FileKind::Directory if nlink == 0 => eviction.candidates().unpin_directory(ino),
            _ => {}
        }
    }

    /// Makes a named file a candidate, unless a session has it open.
    fn track_closed(&self, ino: u64) {
        self.track(ino, |eviction, file, changed, bytes| eviction.candidates().closed(file, changed, bytes));
    }

    /// Tells the candidates that the last session has closed a file.
    pub(in crate::dispatch) fn track_last_close(&self, ino: u64) {
        self.track(ino, |eviction, file, changed, bytes| eviction.candidates().used(file, changed, bytes));
    }

    fn track(&self, ino: u64, tell: impl FnOnce(&Eviction, FileId, i64, u64)) {
        let Some(eviction) = self.store.eviction.as_deref() else { return };
        let Ok(inode) = self.namespace.get(ino) else { return };
        if inode.kind == FileKind::Regular && inode.nlink > 0 && !self.open_files(ino).is_open(ino) {
            let changed = self.attr(ino).map_or(inode.ctime, |attr| attr.ctime);
            let bytes = self.file(ino).map_or(0, FileMap::bytes);
            tell(eviction, FileId { slot: inode.slot, ino }, changed, bytes);
        }
    }

    /// Tells the candidates that a session has opened a file.
    pub(in crate::dispatch) fn track_open(&self, ino: u64) {
        if let (Some(eviction), Ok(inode)) = (self.store.eviction.as_deref(), self.namespace.get(ino)) {
            eviction.candidates().opened(inode.slot);
        }
    }

    /// Tells the candidates that an extended attribute has changed, which may be a pin.
    pub(in crate::dispatch) fn track_pin(&self, ino: u64, name: XattrName<'_>) {
        let (Some(eviction), Ok(inode)) = (self.store.eviction.as_deref(), self.namespace.get(ino)) else {
            return;
        };
        if name != XattrName::Plain(PIN) {
            return;
        }
        match (inode.is_directory(), has_pin(inode)) {
            (true, true) => eviction.candidates().pin(ino),
            (true, false) => eviction.candidates().unpin_directory(ino),
            // The evictor looks at the attributes of a file itself.
            (false, true) => {}
            (false, false) => eviction.candidates().unpark_all(),
        }
    }

    /// Returns true for a directory that is pinned.
    pub(in crate::dispatch) fn is_pinned_directory(inode: &Inode) -> bool {
        inode.is_directory() && has_pin(inode)
    }

    /// Evicts a file, unless it is open, pinned or has changed. The transaction has locked the file
    /// and the directories of its names. It asks for the ancestors of the directories if any
    /// directory is pinned.
    pub(in crate::dispatch) fn evict(
        &mut self,
        candidate: &Candidate,
        cause: Cause,
        now: i64,
    ) -> Result<Fate, Stop> {
        let Some(eviction) = self.store.eviction.as_deref() else { return Ok(Fate::Stays) };
        let FileId { slot, ino } = candidate.file;
        if !eviction.candidates().is_current(candidate) {
            return Ok(Fate::Stays);
        }
        if self.open_files(ino).is_open(ino) {
            eviction.candidates().opened(slot);
            return Ok(Fate::Stays);
        }
        if !self.has_homes(candidate) {
            log::error!("eviction: inode {ino} has other names than it was given: it stays");
            eviction.candidates().forget(slot);
            return Ok(Fate::Stays);
        }
        let changed = self.attr(ino)?.ctime;
        if cause == Cause::Old && eviction.candidates().changed(slot, changed, now) {
            return Ok(Fate::Stays);
        }
        if self.is_pinned(eviction, candidate)? {
            eviction.candidates().park(slot);
            return Ok(Fate::Stays);
        }
        let bytes = self.file(ino)?.bytes();
        let gives = bytes > 0 && self.space.gives(self.file(ino)?.extents().map(|extent| extent.arena));
        if cause == Cause::Short(Shortage::Bytes) && !gives {
            eviction.candidates().pass_over(slot);
            return Ok(Fate::GivesNothing);
        }
        // Sessions hear of it as of another mount's unlink. One that is away keeps its session.
        self.is_awaited = false;
        for home in &candidate.homes {
            let (parent, name) = (home.parent, &*home.name);
            let effects = self.namespace.unlink(parent, name, now)?;
            self.settle(NO_SESSION, &effects, &[Place { parent, name }]);
        }
        Ok(Fate::Gone(bytes))
    }

    /// Returns true if a file has these names and no others.
    fn has_homes(&self, Candidate { file, homes }: &Candidate) -> bool {
        let Ok(inode) = self.namespace.get(file.ino) else { return false };
        let is_home = |home: &Home| {
            self.namespace.directory(home.parent).is_ok_and(|names| names.get(&home.name) == Some(file.ino))
        };
        inode.slot == file.slot && inode.nlink as usize == homes.len() && homes.iter().all(is_home)
    }

    /// Returns true if a file, or a directory above one of its names, is pinned.
    fn is_pinned(&self, eviction: &Eviction, Candidate { file, homes }: &Candidate) -> Result<bool, Stop> {
        if has_pin(self.namespace.get(file.ino)?) {
            return Ok(true);
        }
        if !eviction.candidates().has_pins() {
            return Ok(false);
        }
        for home in homes {
            let lineage = self.namespace.inodes().lineage(home.parent)?;
            if eviction.candidates().is_pinned(lineage) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
