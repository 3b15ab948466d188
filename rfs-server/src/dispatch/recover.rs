//! A file system made of what the server before has left: the log says which inodes there are, the table has what clients have written
//! of them, and the rest of the arena is free.
//!
//! A server that was killed may have been in the middle of a request that it has not answered. What that has changed of names,
//! attributes and space is there as a whole or not at all; bytes and sizes may be there in part, as with a write.
//!
//! The sessions of mounts that come back are in the log, with what they have (`before`). What others of before could reach, they may still
//! reach for a while, and write to it where they have it mapped. If there were any, until [`Dispatcher::before_is_over`] space that is given
//! up is handed out to nobody, inodes without names stay, and files have what they lose when nobody has them open any more.
//!
//! Threading: a server that starts has everything to itself.

use std::{collections::HashSet, sync::Arc, time::Instant};

use rdmabox::Memory;
use rfs_proto::{BLOCK, Errno, FileKind, ROOT_INO};

use super::{
    Dispatcher, Root,
    held::Plan,
    journal::Journal,
    meta::{Look, Meta},
    shards::{SHARDS, Shards},
    store::Store,
};
use crate::{
    alloc::Range,
    bytes::{Bytes, Settled},
    clock::Clock,
    durable::{
        Dirt, Log, Object, ObjectError,
        before::Present,
        log::Full,
        op::Op,
        replay::{NoTree, State},
    },
    files::block_up,
    locks::Locks,
    namespace::{Body, Inode},
    numbers::ByNumber,
    space::{Space, Zeroing},
    table::Table,
};

/// Stands for all sessions of the servers before that do not come back. No session has this number.
pub(crate) const BEFORE: u64 = u64::MAX;

/// So many numbers at least are left out behind those that a snapshot knows of.
const GAP: u64 = 1 << 32;
/// Where a program that takes a number for one with a sign has its last one.
const LAST: u64 = i64::MAX as u64;

/// The last inode number that may have been given before a snapshot was restored at this moment, which says only what had been given
/// when it was made. Since 1970 nobody has made more inodes than nanoseconds have passed, so that also what is restored twice from the same
/// snapshot gives other numbers the second time.
fn last_before(known: u64, now: i64) -> u64 {
    let last = known.saturating_add(GAP).max(u64::try_from(now).unwrap_or(0));
    last.min(LAST).max(known)
}

/// What a memory object keeps besides the memory that is lent, or what a snapshot had.
#[derive(Debug)]
pub struct Kept {
    /// The log; `None` if the memory goes with the server.
    pub log: Option<Log>,
    /// What it says, or the snapshot; `None` if the object is new.
    pub state: Option<State>,
    /// Which blocks may hold bytes; `None` if all that no file has is zero.
    pub dirt: Option<Dirt>,
    /// The number of this start: larger than those of all servers before.
    pub starts: u64,
    /// The last server has ended in order.
    pub clean: bool,
}

impl Kept {
    /// What an object keeps for the next server.
    ///
    /// # Errors
    /// Its log makes no sense. Nothing is changed.
    pub fn of(object: &Object) -> Result<Kept, ObjectError> {
        let header = object.header();
        let (log, state) = object.log()?;
        let (log, dirt) = (Some(log), Some(object.dirt()));
        Ok(Kept { log, state, dirt, starts: header.starts + 1, clean: header.clean })
    }
}

/// Why what is kept makes no file system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It has no root directory.
    #[error("there is no root directory")]
    NoRoot,
    /// Its directories make no tree.
    #[error(transparent)]
    Tree(#[from] NoTree),
    /// Two inodes have one record, or one has none.
    #[error("the record of inode {0} is not its own")]
    Record(u64),
    /// Extents lie outside of the arena, or over each other.
    #[error("the extents of inode {0} are not its own")]
    Extents(u64),
    /// What is said of a session means nothing.
    #[error("what session {0} has makes no sense")]
    Session(u64),
    /// There is no room to say so.
    #[error(transparent)]
    Full(#[from] Full),
}

impl Dispatcher {
    /// The file system that is kept in a memory object, or a new one in a new object. Dirty space is cleaned as `mode` says.
    pub fn kept(
        (bytes, table): (impl Into<Bytes>, Arc<Memory>),
        mode: Zeroing,
        root: Root,
        clock: Arc<dyn Clock>,
        kept: Kept,
    ) -> Result<Dispatcher, Damage> {
        let Kept { log, state, dirt, starts, clean } = kept;
        let (bytes, started): (Bytes, i64) = (bytes.into(), clock.now());
        // From a snapshot: the log of the first server is a new one.
        let restored = starts == 1;
        let journal = log.map(Journal::new);
        let Some(state) = state else {
            let table = Table::new(table);
            let root = root.begin(&table, started).map_err(|_: Errno| Damage::NoRoot)?;
            let shards = Shards::filled([(ROOT_INO, root)].into_iter().collect(), ROOT_INO);
            let space = Space::kept(bytes, mode, Vec::new(), Vec::new(), dirt, false);
            let journal = journal.map(|journal| (journal, Locks::default()));
            let store = Store::new(shards, table, Arc::new(space), journal);
            let dispatcher = Dispatcher::over(store, clock, started);
            dispatcher.write_log_anew()?;
            return Ok(dispatcher);
        };
        state.check_tree()?;
        let State { mut inodes, mut last_ino, slots, mut sessions } = state;
        if restored {
            last_ino = last_before(last_ino, started);
        }
        check_records(&mut inodes, &Table::new(Arc::clone(&table)))?;
        let mut used = extents(&inodes, bytes.len())?;
        // It is one. From here on it is changed.
        let slots_in_use: ByNumber<()> = inodes.values().map(|inode| (u64::from(inode.slot), ())).collect();
        let table = Table::kept(table, slots, |slot| slots_in_use.contains_key(&u64::from(slot)));
        let (mut held, mut cut, mut unlinked) = (Vec::new(), Vec::new(), Vec::new());
        if !clean {
            tell_settled(&bytes.settle());
        }
        let zero = |range: Range| bytes.zero(range);
        for (&ino, inode) in &mut inodes {
            // A truncation may have been under way, and the bytes behind the new end must not come back.
            if !clean && table.is_being_changed(inode.slot) {
                let lost = close(inode, &table, zero);
                if !lost.is_empty() {
                    cut.push((ino, lost.iter().map(|range| (range.start, range.len)).collect::<Vec<_>>()));
                }
            }
            if inode.nlink == 0 {
                unlinked.push(ino);
            }
            if inode.nlink == 0 || (!clean && loses_space(inode, &table)) {
                held.push(ino);
            }
        }
        for (ino, lost) in &cut {
            let holders = sessions.who_may_reach(*ino);
            // First, as whatever files have counts.
            if let Some(journal) = &journal {
                journal.tell_or_stop(&Op::GivenUp(*ino, lost.clone(), holders.clone()));
            }
            sessions.give_up(*ino, lost, &holders).map_err(|_| Damage::Extents(*ino))?;
        }
        if !cut.is_empty() {
            if let Some(journal) = &journal {
                journal.describe_or_stop(cut.iter().filter_map(|(ino, _)| Some((*ino, inodes.get(ino)?))));
            }
            used = extents(&inodes, bytes.len())?;
        }
        let Present { returning, strangers, locks, given_up } = sessions
            .present(&used, |ino| inodes.get(&ino).is_some_and(|inode| inode.kind == FileKind::Regular));
        if let Some(beyond) = given_up.last().filter(|given| given.range.end() > bytes.len()) {
            return Err(Damage::Extents(beyond.ino));
        }
        let open: HashSet<(u64, u64)> =
            returning.iter().flat_map(|(id, _, has)| has.opens.keys().map(|&ino| (*id, ino))).collect();
        let locked: HashSet<u64> = locks.locked_inodes().collect();
        for (&ino, inode) in &mut inodes {
            // More than any server before can have got to.
            inode.layout_generation = starts << 32;
            inode.visits = starts << 32;
            inode.was_locked = locked.contains(&ino);
            // Who was appending, and comes back, goes on.
            table.take_over(&inode.attr(ino), &inode.space(), |session| open.contains(&(session, ino)));
        }
        let xattrs = inodes.values().map(Inode::xattr_bytes).sum();
        let before = !strangers.is_empty();
        let space = Arc::new(Space::kept(bytes, mode, used, given_up, dirt, before));
        let journal = journal.map(|journal| (journal, locks));
        let store = Store::new(Shards::filled(inodes, last_ino), table, space, journal);
        store.xattrs.add(xattrs);
        // Somebody may have had it open, and may be writing to it now, with memory that is mapped.
        for &ino in &held {
            store.once(Plan::new(&[ino]), None, |meta: &mut Meta<'_>| meta.leases_mut(ino).open(BEFORE, ino));
        }
        let dispatcher = Dispatcher::over(store, clock, started);
        let sessions: Vec<u64> = returning.iter().map(|&(id, ..)| id).collect();
        for (id, mount, has) in returning {
            dispatcher.restore(id, mount, has)?;
            dispatcher.store.returned.add(id, last_ino);
        }
        for ino in unlinked {
            let restore = |meta: &mut Meta<'_>| meta.restore_orphan(ino, &sessions);
            dispatcher.store.once(Plan::new(&[ino]), None, restore);
        }
        dispatcher.wait_for_strangers(strangers)?;
        if dispatcher.has_long_log()
            || dispatcher.store.journal.as_ref().is_some_and(|j| j.log().is_incomplete())
        {
            match dispatcher.write_log_anew() {
                // Nothing else says what there is.
                Err(e) if restored => return Err(e.into()),
                // Where there is no room for it, files can be read all the same.
                Err(e) => log::error!("the log cannot be written anew: {e}"),
                Ok(()) => {}
            }
        }
        if !before {
            dispatcher.before_is_over();
        }
        Ok(dispatcher)
    }

    /// The arena's account.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.store.space
    }

    /// Those of before that do not come back can reach nothing any more.
    pub fn before_is_over(&self) {
        self.note_strangers_left();
        self.store.space.before_is_over();
        self.each_shard(|meta| {
            for (ino, last) in meta.namespace.inodes_mut().only().leases.end_session(BEFORE) {
                meta.lease_ended(BEFORE, ino, last);
            }
        });
        self.store.space.tidy();
    }

    /// Whether the log has grown so long that it is worth to be written anew.
    pub fn has_long_log(&self) -> bool {
        self.store.journal.as_ref().is_some_and(|journal| journal.log().is_long() || journal.is_behind())
    }

    /// Waits until there is something to do for what is kept: until `deadline`, or until the log has grown, if that is asked for. False
    /// if the end has come.
    pub(crate) fn await_upkeep(&self, deadline: Option<Instant>, growth: bool) -> bool {
        self.store.journal.as_ref().is_some_and(|journal| journal.log().await_growth(deadline, growth))
    }

    /// Nobody is to wait any more.
    pub(crate) fn end_upkeep(&self) {
        if let Some(journal) = &self.store.journal {
            journal.log().end_waiting();
        }
    }

    /// True if nobody has anything open, none of those of before either, and all that has been changed is logged.
    pub(crate) fn is_settled(&self) -> bool {
        let mut open = false;
        self.each_shard(|meta| open |= !meta.namespace.inodes_mut().only().leases.is_empty());
        !open
            && !self.store.space.is_before()
            && !self.store.journal.as_ref().is_some_and(|journal| journal.is_behind())
    }

    /// Writes the log anew, shard by shard, while requests go on: changes that they make meanwhile go behind what is written. One thread
    /// at a time. An error leaves both the old log and what there is of the new one, which say everything together.
    pub fn write_log_anew(&self) -> Result<(), Full> {
        let Some(journal) = &self.store.journal else { return Ok(()) };
        // Whoever has not been logged by now has what he changed locked until it can be described.
        let behind = journal.times_behind();
        journal.log().exchange();
        for at in 0..SHARDS {
            let describe = |look: &mut Look<'_>| {
                let shard = look.namespace.inodes_mut().only();
                journal.describe(shard.inodes.iter().map(|(&ino, inode)| (ino, inode)))?;
                let returns =
                    |session| self.sessions.get(session).is_some_and(|session| session.comes_back());
                journal.describe_opens(&shard.leases, returns)
            };
            self.store.once(Plan::shard(at), None, describe).0?;
        }
        journal.count(self.store.shards.last_number(), self.store.table.used_slots())?;
        self.describe_sessions(journal)?;
        journal.log().complete()?;
        journal.caught_up(behind);
        Ok(())
    }
}

/// Says what became of the checksums of blocks that were being changed.
fn tell_settled(Settled { open, unknown, places }: &Settled) {
    if *open > 0 {
        log::warn!(
            "{open} blocks were being changed when the server before ended: their checksums say what is there now"
        );
    }
    for place in places {
        log::warn!(
            "the block at {place} of the arena was being changed: nothing says whether it is damaged, too"
        );
    }
    let more = unknown - places.len() as u64;
    if more > 0 {
        log::warn!("as little is known of {more} more");
    }
}

/// Each inode has a record of its own, and gets the times that were published there last.
fn check_records(inodes: &mut ByNumber<Inode>, table: &Table) -> Result<(), Damage> {
    for (&ino, inode) in inodes {
        if table.owner(inode.slot) != Some(ino) {
            return Err(Damage::Record(ino));
        }
        if let Some(published) = table.published(ino, inode.slot) {
            (inode.atime, inode.mtime, inode.ctime) = (published.atime, published.mtime, published.ctime);
        }
    }
    Ok(())
}

/// Whether a file would lose space, or bytes behind its end, when nobody has it open any more.
fn loses_space(inode: &Inode, table: &Table) -> bool {
    let size = table.size(inode.slot);
    let Body::File(map) = &inode.body else { return false };
    let keep = block_up(size).max(map.kept_to());
    map.reaches_beyond(keep) || map.pieces(size, keep).iter().any(|(_, place, _)| place.is_some())
}

/// What happens when nobody has a file open any more. What space it has lost.
fn close(inode: &mut Inode, table: &Table, zero: impl Fn(Range)) -> Vec<Range> {
    let size = table.size(inode.slot);
    let Body::File(map) = &mut inode.body else { return Vec::new() };
    let keep = block_up(size).max(map.kept_to());
    let lost = if map.reaches_beyond(keep) { map.cut(keep) } else { Vec::new() };
    map.take_touched();
    for (_, place, len) in map.pieces(size, keep) {
        if let Some(start) = place {
            zero(Range { start, len });
        }
    }
    lost
}

/// The space of all files, in order.
fn extents(inodes: &ByNumber<Inode>, len: u64) -> Result<Vec<Range>, Damage> {
    let mut all: Vec<(Range, u64)> = Vec::new();
    for (&ino, inode) in inodes {
        if let Body::File(map) = &inode.body {
            all.extend(map.extents().map(|extent| (Range { start: extent.arena, len: extent.len }, ino)));
        }
    }
    all.sort_unstable();
    let mut end = 0;
    for &(range, ino) in &all {
        let whole = range.start.is_multiple_of(BLOCK) && range.len.is_multiple_of(BLOCK);
        if !whole || range.start < end || range.len > len || range.start > len - range.len {
            return Err(Damage::Extents(ino));
        }
        end = range.end();
    }
    Ok(all.into_iter().map(|(range, _)| range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_behind_all_that_may_have_been_given() {
        assert_eq!(last_before(7, -1), 7 + GAP);
        assert_eq!(last_before(7, 7 + GAP as i64), 7 + GAP);
        assert_eq!(last_before(7, 8 + GAP as i64), 8 + GAP);
        assert_eq!([LAST - 1, LAST].map(|known| last_before(known, 0)), [LAST; 2]);
        assert_eq!(last_before(LAST + 5, i64::MAX), LAST + 5);
    }
}
