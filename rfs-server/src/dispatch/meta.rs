//! The metadata as a step has it, and what keeps its parts in step: the records in the table follow the inodes, space goes back to the
//! arena when files shrink or go.
//!
//! Threading: belongs to one thread, which has locked the shards of the inodes that the step has asked for. It zeroes little: ends
//! of blocks, and space that a file keeps although it does not reach so far; the rest is left dirty for [`Space::tidy`]
//! after the locks.

use rfs_proto::{Attr, Errno, FileKind, Reply, record};
use seeded_faults::{Fault, seeded};
use smallvec::SmallVec;

use super::{
    held::{Held, Stop},
    journal::{self, Journal, Number, Said},
    once,
    order::Guard,
    pending::{Due, Pending},
    quota::Quota,
    shards::{Mode, Reading, Writing},
    store::Store,
    tape::Written,
};
use crate::{
    alloc::Range,
    durable::log::Full,
    files::{FileMap, block_up},
    leases::Leases,
    locks::Locks,
    namespace::{Body, Effects, Inode, Inodes, Namespace, Place},
    orphans::Release,
    recalls::Need,
    sessions::Session,
    space::{Space, UNLOGGED},
    table::Table,
};

/// The metadata, of which a step has some inodes.
pub(crate) struct View<'a, M: Mode> {
    pub(super) namespace: Namespace<Held<'a, M>>,
    pub(super) table: &'a Table,
    pub(super) space: &'a Space,
    pub(super) xattrs: &'a Quota,
    pub(super) store: &'a Store,
    pub(super) pending: &'a Pending,
    /// Whose request it is, if it is one.
    pub(super) asker: Option<&'a Session>,
    /// Recalls that the step has caused, and those of others that it has to wait for.
    pub(super) needs: Vec<Need>,
    /// Sessions that the step has told something that it does not wait for.
    pub(super) heard: SmallVec<[u64; 1]>,
    /// The inode that has lost its last name in it, if the asker may use it still.
    pub(super) unlinked: Option<u64>,
    /// Replies that have become due in it.
    pub(super) due: Due,
    /// What it gives up.
    pub(super) freed: Freed,
    /// The file that it has given another size. Its record is open until that is logged, so that the next server makes an end of it.
    pub(super) unpublished: Option<u64>,
    /// What clients had written of files that it has cut or removed, if a snapshot may have to know.
    pub(super) lost: SmallVec<[Written; 1]>,
    /// What it has come to, if that is to be logged.
    pub(super) said: Option<Said<'a>>,
}

/// Messages of a step to other sessions.
#[derive(Debug, Default)]
pub(super) struct Caused {
    /// Recalls that a request waits for.
    pub(super) needs: Vec<Need>,
    /// Sessions that were told something that no request waits for.
    pub(super) heard: SmallVec<[u64; 1]>,
}

impl Caused {
    pub(super) fn is_empty(&self) -> bool {
        self.needs.is_empty() && self.heard.is_empty()
    }
}

/// What a step gives up. It is given up when the step is over and its changes are logged: until then the next server would take it for
/// what it was.
#[derive(Debug, Default)]
pub(super) struct Freed {
    space: Vec<Ranges>,
    slots: Vec<u32>,
}

/// Space of an inode.
#[derive(Debug)]
struct Ranges {
    /// The inode, and the first generation of its layout without them.
    of: (u64, u64),
    ranges: Vec<Range>,
    /// The sessions that can still reach them.
    holders: Vec<u64>,
}

impl Freed {
    /// Space that somebody can still reach.
    pub(super) fn reachable(&self) -> impl Iterator<Item = (u64, &[Range], &[u64])> {
        let all = self.space.iter().map(|given| (given.of.0, &given.ranges[..], &given.holders[..]));
        all.filter(|(_, ranges, holders)| !ranges.is_empty() && !holders.is_empty())
    }
}

/// The metadata, to look at.
pub(crate) type Look<'a> = View<'a, Reading>;

/// The metadata, to change.
pub(crate) type Meta<'a> = View<'a, Writing>;

impl<M: Mode> View<'_, M> {
    /// Asks for an inode. A step asks for all before it changes any.
    pub(super) fn need(&mut self, ino: u64) -> Result<(), Stop> {
        self.namespace.need(ino)
    }

    /// What it led to. Its locks are given up.
    pub(super) fn into_outcome(self) -> (Caused, Due) {
        (Caused { needs: self.needs, heard: self.heard }, self.due)
    }

    /// Who has an inode open, and others of its shard.
    pub(super) fn leases(&self, ino: u64) -> &Leases {
        &self.namespace.inodes().shard(ino).leases
    }

    /// File locks. Nothing else is asked for while they are had.
    pub(super) fn locks(&self) -> Guard<'_, Locks> {
        self.store.locks()
    }

    /// Attributes with what clients wrote to the record.
    pub(super) fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let mut attr = self.namespace.get(ino)?.attr(ino);
        if attr.kind == FileKind::Regular {
            attr.size = self.table.size(attr.slot);
            attr.blocks = self.namespace.get(ino)?.space().visible(attr.size);
        }
        (attr.mtime, attr.ctime) =
            record::effective_times(attr.mtime, attr.ctime, self.table.write_time(attr.slot));
        Ok(attr)
    }

    /// The inode and the extents of a regular file. EISDIR for directories, EINVAL for the rest.
    pub(super) fn file(&self, ino: u64) -> Result<&FileMap, Errno> {
        match &self.namespace.get(ino)?.body {
            Body::File(map) => Ok(map),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }
}

impl Meta<'_> {
    /// Who has an inode open, to change.
    pub(super) fn leases_mut(&mut self, ino: u64) -> &mut Leases {
        &mut self.namespace.inodes_mut().shard_mut(ino).leases
    }

    /// What a session has open of an inode has changed. Only those that come back find it again.
    pub(super) fn opens_changed(&mut self, session: u64, ino: u64) {
        if self.asker.is_some_and(|asker| asker.id() == session && asker.comes_back()) {
            self.namespace.inodes_mut().opens_changed(session, ino);
        }
    }

    /// The log and the asker, if that says what he has open.
    pub(super) fn asker_in_log(&self) -> Option<(&Journal, &Session)> {
        Some((self.store.journal.as_ref()?, self.asker.filter(|asker| asker.comes_back())?))
    }

    /// The step comes to this reply, to a request that is carried out once.
    pub(super) fn say(&mut self, number: Option<Number>, reply: &Reply) {
        if let (Some(asker), Some(number)) = (self.asker, number) {
            self.said = Some(Said::new(asker, number, &once::short(reply)));
        }
    }

    /// The step is over: logs what it has changed, and gives up what it has given up.
    #[inline]
    pub(super) fn commit(&mut self) {
        if self.note().is_some_and(|noted| noted.is_err()) {
            // What it has given up stays away from everybody until the next start, and is told when the log is written anew: from then on
            // it is nobody's there, too.
            self.freed.slots.clear();
            self.freed.space.iter_mut().for_each(|given| given.holders.push(UNLOGGED));
        }
        if !self.lost.is_empty() {
            self.store.tape.lose(&self.lost);
        }
        if let Some(ino) = self.unpublished.take() {
            self.publish(ino);
        }
        for Ranges { of, ranges, holders } in std::mem::take(&mut self.freed.space) {
            self.space.quarantine(of, &ranges, &holders);
            self.recall_layout(of, &holders);
        }
        for slot in self.freed.slots.drain(..) {
            self.table.release(slot);
        }
    }

    /// Says what the step has changed, and what it has come to, to those who have to know.
    #[inline]
    fn note(&mut self) -> Option<Result<(), Full>> {
        let (journal, tape) = (self.store.journal.as_ref(), self.store.tape.rolling());
        if journal.is_none() && tape.is_none() {
            return None;
        }
        let lost = &mut self.lost;
        let (freed, said) = (&self.freed, self.said.take().filter(|_| journal.is_some()));
        journal::in_words(&mut self.namespace, said.is_some(), |inodes, changes, ops| {
            if let Some(tape) = tape.filter(|_| !ops.is_empty()) {
                let inode = |&ino: &u64| Some((ino, inodes.get(ino).ok()?));
                if tape.say(ops, changes.inodes.iter().filter_map(inode), self.table) {
                    // It was before the moment.
                    lost.clear();
                }
            }
            journal.map_or(Ok(()), |journal| journal.note(inodes, changes, freed, said, ops))
        })
    }

    /// Publishes what the server owns of an inode's record. Inodes that are gone have none.
    pub(super) fn publish(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish(&inode.attr(ino), &inode.space());
        }
    }

    /// Publishes the whole record of a new inode.
    pub(super) fn publish_new(&self, ino: u64) {
        if let Ok(inode) = self.namespace.get(ino) {
            self.table.publish_all(&inode.attr(ino), &inode.space());
        }
    }

    /// Publishes what an operation of a session on names changed, recalls it from others, and lets an inode go that has neither
    /// name nor opener.
    pub(super) fn settle(&mut self, session: u64, effects: &Effects, names: &[Place<'_>]) {
        for &name in names {
            self.name_changed(session, name);
        }
        for &ino in &effects.moved {
            self.name_changed(session, Place { parent: ino, name: b".." });
        }
        for &ino in &effects.touched {
            self.publish(ino);
            self.attr_changed(session, ino);
        }
        if let Some(ino) = effects.orphaned {
            let open = self.leases(ino).is_open(ino) && !seeded(Fault::UnlinkedFreed);
            let idle_bytes = if open { None } else { Some(self.file(ino).map_or(0, FileMap::bytes)) };
            let held = self.orphaned(session, ino, idle_bytes) && !seeded(Fault::UnlinkedFreed);
            match (idle_bytes, held) {
                (None, _) => {}
                (Some(bytes), true) => self.store.idle.add(bytes),
                (Some(_), false) => self.remove(session, ino),
            }
        }
    }

    /// An unlinked inode is not open any more, and stays for the sessions that may use it. Its
    /// space counts as free.
    fn rest(&mut self, ino: u64) {
        let bytes = self.file(ino).map_or(0, FileMap::bytes);
        if self.namespace.inodes_mut().shard_mut(ino).orphans.rest(ino, bytes) {
            self.store.idle.add(bytes);
        }
    }

    /// An unlinked inode is opened again.
    pub(super) fn wake(&mut self, ino: u64) {
        if self.namespace.inodes().shard(ino).orphans.is_empty() {
            return;
        }
        if let Some(bytes) = self.namespace.inodes_mut().shard_mut(ino).orphans.wake(ino) {
            self.store.idle.remove(bytes);
        }
    }

    /// A session uses an unlinked inode no more.
    pub(super) fn forget(&mut self, session: u64, ino: u64) {
        let shard = self.namespace.inodes_mut().shard_mut(ino);
        let release = shard.orphans.release(ino, session);
        if let Release::Free(Some(bytes)) = release {
            self.store.idle.remove(bytes);
        }
        match release {
            Release::Unknown => {}
            Release::Free(_) if !shard.leases.is_open(ino) => self.remove(session, ino),
            Release::Held | Release::Free(_) => shard.keepers.get_mut().forget_one(ino, session),
        }
    }

    /// No session uses an unlinked inode any more, but for those that have it open.
    pub(super) fn orphan_released(&mut self, session: u64, ino: u64) {
        if let Some(bytes) = self.namespace.inodes_mut().shard_mut(ino).orphans.remove(ino) {
            self.store.idle.remove(bytes);
        }
        if !self.leases(ino).is_open(ino) {
            self.remove(session, ino);
        }
    }

    /// Sessions may use an unlinked inode that the server before has left.
    pub(super) fn restore_orphan(&mut self, ino: u64, holders: &[u64]) {
        self.namespace.inodes_mut().shard_mut(ino).orphans.add(ino, holders.into(), None);
    }

    /// The extents of a regular file, to change. EISDIR for directories, EINVAL for the rest.
    pub(super) fn file_mut(&mut self, ino: u64) -> Result<&mut FileMap, Errno> {
        match &mut self.namespace.get_mut(ino)?.body {
            Body::File(map) => Ok(map),
            Body::Directory(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Gives up a file's space behind `size`, but for what is kept up to `keep`, which is zeroed. `session` asked for it
    /// and writes nothing there any more; what other sessions can reach is quarantined.
    pub(super) fn cut(&mut self, session: u64, ino: u64, size: u64, keep: u64) -> Result<(), Errno> {
        let map = self.file(ino)?;
        let keep = block_up(size).max(keep);
        let rest = if seeded(Fault::TailNotZeroed) { Vec::new() } else { map.pieces(size, keep) };
        let given_up = if map.reaches_beyond(keep) { self.file_mut(ino)?.cut(keep) } else { Vec::new() };
        self.give_up(session, ino, &given_up, &rest)
    }

    /// A file is about to be cut or removed.
    pub(super) fn loses(&mut self, ino: u64, slot: u32) {
        if self.store.tape.is_in_use() {
            let (size, time) = (self.table.size(slot), self.table.write_time(slot));
            self.lost.push(Written { ino, size, time });
        }
    }

    /// Hands space back that a file lost, and zeroes pieces that it keeps.
    pub(super) fn give_up(
        &mut self,
        session: u64,
        ino: u64,
        given_up: &[Range],
        zeroed: &[(u64, Option<u64>, u64)],
    ) -> Result<(), Errno> {
        let mut changed = !given_up.is_empty();
        for &(_, place, len) in zeroed {
            if let Some(start) = place {
                self.space.zero(Range { start, len });
                changed = true;
            }
        }
        if !changed {
            return Ok(());
        }
        // Also where no space goes: what was zeroed may have been under somebody's write.
        let inode = self.namespace.inodes_mut().passing_mut(ino)?;
        // The next server begins with a higher one.
        inode.layout_generation += 1;
        let of = (ino, inode.layout_generation);
        if !given_up.is_empty() {
            let holders = self.leases(ino).others(session, ino);
            self.freed.space.push(Ranges { of, ranges: given_up.to_vec(), holders });
        }
        Ok(())
    }

    /// A file has become shorter, which had a layout of this generation before. Every session that has the file open
    /// may go by its old size, so that the layout is recalled even if the file gives up no space.
    pub(super) fn size_fell(&mut self, session: u64, ino: u64, before: u64) -> Result<(), Errno> {
        let inode = self.namespace.inodes_mut().passing_mut(ino)?;
        if inode.layout_generation == before {
            inode.layout_generation += 1;
        }
        let of = (ino, inode.layout_generation);
        // With the space that goes, the layout is recalled already.
        if !self.freed.space.iter().any(|given| given.of == of) {
            let holders = self.leases(ino).others(session, ino);
            self.freed.space.push(Ranges { of, ranges: Vec::new(), holders });
        }
        Ok(())
    }

    /// Zeroes the bytes behind the end of a file, in its last block, which a session may have written there late.
    ///
    /// A write under way may put its bytes there and is about to raise the size. It reads the record behind that, so
    /// that it finds the record open, or with another layout generation, and writes again.
    pub(super) fn sweep_tail(&mut self, ino: u64) {
        let Ok(inode) = self.namespace.get(ino) else { return };
        let slot = inode.slot;
        // Clients do not write where there are checksums.
        if self.file(ino).is_err() || self.space.bytes().are_checked() {
            return;
        }
        self.table.begin(slot);
        let size = self.table.size(slot);
        let pieces = self.file(ino).map(|map| map.pieces(size, block_up(size))).unwrap_or_default();
        let places = pieces.into_iter().filter_map(|(_, place, len)| Some(Range { start: place?, len }));
        let dirty: SmallVec<[Range; 1]> =
            places.filter(|range| !self.space.bytes().is_zero(*range)).collect();
        if let (false, Ok(inode)) = (dirty.is_empty(), self.namespace.inodes_mut().passing_mut(ino)) {
            inode.layout_generation += 1;
            dirty.iter().for_each(|range| self.space.zero(*range));
        }
        self.publish(ino);
    }

    /// A session is about to change or to read an inode. How often that was another one than the time before.
    pub(super) fn visit(&mut self, session: u64, ino: u64) -> Result<u64, Errno> {
        let inode = self.namespace.inodes_mut().passing_mut(ino)?;
        if inode.visitor != session {
            inode.visitor = session;
            inode.visits += 1;
        }
        Ok(inode.visits)
    }

    /// A session's lease on an inode ended; if it was the last, space behind the end of the file comes back, and an
    /// inode without names goes.
    pub(super) fn lease_ended(&mut self, session: u64, ino: u64, last: bool) {
        self.space.lease_ended(ino, session);
        let Ok(inode) = self.namespace.get(ino) else { return };
        if inode.was_locked && !seeded(Fault::LocksOutlive) {
            self.store.change_locks(|locks| locks.closed(session, ino));
        }
        self.table.end_append(inode.slot, session);
        if last && inode.nlink == 0 {
            match self.namespace.inodes().shard(ino).orphans.is_held(ino) {
                true => self.rest(ino),
                false => self.remove(session, ino),
            }
        } else if last {
            let (size, generation) = (self.table.size(inode.slot), inode.layout_generation);
            let keep = self.file(ino).map_or(0, |map| map.kept_to());
            // It was open, so that it is a regular file, and cutting cannot fail.
            if self.cut(session, ino, size, keep).is_ok() {
                self.publish(ino);
            }
            if self.namespace.get(ino).is_ok_and(|inode| inode.layout_generation != generation) {
                self.attr_changed(session, ino);
            }
        }
    }

    /// Takes an inode out that nobody can reach, after what a session did.
    fn remove(&mut self, session: u64, ino: u64) {
        self.inode_gone(session, ino);
        let Some(inode) = self.namespace.remove_inode(ino) else { return };
        self.xattrs.give_back(inode.xattr_bytes());
        let Inode { slot, body, layout_generation, .. } = inode;
        if let Body::File(mut map) = body {
            self.loses(ino, slot);
            let mut ranges = map.cut(0);
            if seeded(Fault::SpaceLeaked) {
                ranges.pop();
            }
            self.freed.space.push(Ranges { of: (ino, layout_generation), ranges, holders: Vec::new() });
        }
        self.freed.slots.push(slot);
    }
}
