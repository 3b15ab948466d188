//! Restores a file system that a previous server has left in a memory object or a snapshot.
//!
//! The log has the inodes, the table has the sizes and times that clients have written, and the
//! rest of the arena is free. A request that a killed server did not answer is there as a whole
//! or not at all. Bytes and sizes may be there in part, as after a write.
//!
//! Sessions of mounts that reconnect are restored from the log (`session_replay`). Clients of
//! other sessions may still write to memory that they have mapped. Until
//! [`LogUpkeep::before_is_over`], space that is given up stays in quarantine, and unlinked inodes
//! stay.
//!
//! # Concurrency
//! One thread restores before the server takes requests.

use std::{collections::HashSet, sync::Arc};

use rdmabox::Memory;
use rfs_proto::{BLOCK, Errno, FileKind, ROOT_INO};

use crate::{
    dispatch::{
        persistence::{log_upkeep::LogUpkeep, previous_mounts::PreviousMounts},
        state::{export::ExportState, journal::Journal, shards::Shards, store::Store},
        transaction::{locked_inodes::Plan, view::WriteView},
    },
    locks::Locks,
    memory_object::{
        log::{Full, Log},
        object::{Object, ObjectError},
        op::Op,
        replay::{NoTree, State},
        session_replay::{ReconnectingMount, RemainingSessions, ReplayedSession, SessionReplay},
    },
    metadata::{
        attr_table::Table,
        id_map::ByNumber,
        namespace::inode::{Body, Inode},
        root::Root,
    },
    space::{
        account::{Space, Zeroing},
        alloc::range::Range,
        bytes::{Bytes, Settled},
        file_extents::block_up,
        nonzero_bitmap::NonzeroBitmap,
        quarantine::ABANDONED_SESSIONS,
    },
};

/// The number of inode numbers that are skipped after those that a snapshot knows.
const GAP: u64 = 1 << 32;
/// The highest inode number. A program that stores it in a signed integer gets no negative value.
const LAST: u64 = i64::MAX as u64;

/// Returns an inode number that was not given out before a snapshot was restored at time `now`.
/// The snapshot knows only the numbers at its own time.
///
/// Since 1970 no server has made more inodes than nanoseconds have passed. So two restores of the
/// same snapshot give different numbers.
fn last_before(known: u64, now: i64) -> u64 {
    let last = known.saturating_add(GAP).max(u64::try_from(now).unwrap_or(0));
    last.min(LAST).max(known)
}

/// The state that a memory object keeps beside the memory, or that a snapshot had.
#[derive(Debug)]
pub struct RecoveredState {
    /// The log; `None` if the memory ends with the server.
    pub log: Option<Log>,
    /// The state in the log or the snapshot; `None` if the object is new.
    pub state: Option<State>,
    /// The blocks that may be nonzero; `None` if all free space is zero.
    pub dirt: Option<NonzeroBitmap>,
    /// The number of this start: larger than the numbers of all previous servers.
    pub starts: u64,
    /// Whether the previous server ended in order.
    pub clean: bool,
}

impl RecoveredState {
    /// Reads the state that an object keeps for the next server.
    ///
    /// # Errors
    /// The log is damaged. Nothing is changed.
    pub fn of(object: &Object) -> Result<RecoveredState, ObjectError> {
        let header = object.header();
        let (log, state) = object.log()?;
        let (log, dirt) = (Some(log), Some(object.dirt()));
        Ok(RecoveredState { log, state, dirt, starts: header.starts + 1, clean: header.clean })
    }

    /// Returns the bytes of space that the files of a state have.
    pub fn bytes_of_files(state: &State) -> u64 {
        let of = |inode: &Inode| match &inode.body {
            Body::File(map) => map.extents().map(|extent| extent.len).sum(),
            _ => 0u64,
        };
        state.inodes.values().map(of).fold(0, u64::saturating_add)
    }
}

/// Why the state makes no file system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The root directory is missing.
    #[error("the root directory is missing")]
    NoRoot,
    /// The directories make no tree.
    #[error(transparent)]
    Tree(#[from] NoTree),
    /// Two inodes have the same record, or an inode has none.
    #[error("inode {0} has no attribute record of its own")]
    Record(u64),
    /// Extents lie outside of the arena, or overlap.
    #[error("the extents of inode {0} are outside of the arena or overlap others")]
    Extents(u64),
    /// The state of a session is invalid.
    #[error("the state of session {0} is invalid")]
    Session(u64),
    /// The log has no room.
    #[error(transparent)]
    Full(#[from] Full),
}

/// Restores the file system of a memory object, or creates a file system in a new object.
/// `mode` says how dirty space is zeroed.
pub(in crate::dispatch) fn recover(
    (bytes, table): (Bytes, Arc<Memory>),
    mode: Zeroing,
    root: Root,
    started: i64,
    kept: RecoveredState,
) -> Result<ExportState, Damage> {
    let RecoveredState { log, state, dirt, starts, clean } = kept;
    // A snapshot was restored: the first server of a log has start 1.
    let restored = starts == 1;
    let journal = log.map(Journal::new);
    let Some(state) = state else {
        let space = Space::kept(bytes, mode, Vec::new(), Vec::new(), dirt, false);
        return in_new_object(space, Table::new(table), root, started, journal);
    };
    state.check_tree()?;
    let State { mut inodes, mut last_ino, slots, mut sessions } = state;
    if restored {
        last_ino = last_before(last_ino, started);
    }
    check_records(&mut inodes, &Table::new(Arc::clone(&table)))?;
    let mut used = extents(&inodes, bytes.len())?;
    // The state is a file system. From here on memory is changed.
    let slots_in_use: ByNumber<()> = inodes.values().map(|inode| (u64::from(inode.slot), ())).collect();
    let table = Table::kept(table, slots, |slot| slots_in_use.contains_key(&u64::from(slot)));
    if !clean {
        tell_settled(&bytes.settle());
    }
    let UnfinishedChanges { cut, held, unlinked } = close_all(&mut inodes, &table, &bytes, clean);
    if !cut.is_empty() {
        give_up(&cut, &inodes, &mut sessions, journal.as_ref())?;
        used = extents(&inodes, bytes.len())?;
    }
    let RemainingSessions { reconnecting, abandoned, locks, given_up } =
        sessions.present(&used, |ino| inodes.get(&ino).is_some_and(|inode| inode.kind == FileKind::Regular));
    if let Some(beyond) = given_up.last().filter(|given| given.range.end() > bytes.len()) {
        return Err(Damage::Extents(beyond.ino));
    }
    take_over(&mut inodes, &table, starts, (&reconnecting, &locks));
    let xattrs = inodes.values().map(Inode::xattr_bytes).sum();
    let before = !abandoned.is_empty();
    let space = Arc::new(Space::kept(bytes, mode, used, given_up, dirt, before));
    let journal = journal.map(|journal| (journal, locks));
    let store = Store::new(Shards::filled(inodes, last_ino), table, space, journal);
    store.xattrs.add(xattrs);
    // A session may have had the file open, and its client may still be writing through mapped
    // memory.
    for &ino in &held {
        let open = |meta: &mut WriteView<'_>| meta.open_files_mut(ino).open(ABANDONED_SESSIONS, ino);
        store.transact(Plan::new(&[ino]), None, open);
    }
    let export = ExportState::new(store);
    let mounts = PreviousMounts::of(&export);
    mounts.restore_all(reconnecting, &unlinked, last_ino)?;
    mounts.set_abandoned(abandoned)?;
    let upkeep = LogUpkeep::of(&export);
    upkeep.rewrite_at_start(restored)?;
    if !before {
        upkeep.before_is_over();
    }
    Ok(export)
}

/// Creates an empty file system in a new object.
fn in_new_object(
    space: Space,
    table: Table,
    root: Root,
    started: i64,
    journal: Option<Journal>,
) -> Result<ExportState, Damage> {
    let root = root.begin(&table, started).map_err(|_: Errno| Damage::NoRoot)?;
    let shards = Shards::filled([(ROOT_INO, root)].into_iter().collect(), ROOT_INO);
    let journal = journal.map(|journal| (journal, Locks::default()));
    let store = Store::new(shards, table, Arc::new(space), journal);
    let export = ExportState::new(store);
    LogUpkeep::of(&export).write_log_anew()?;
    Ok(export)
}

/// Space as offset and length in bytes.
type Lost = Vec<(u64, u64)>;

/// Files that the previous server left in the middle of a change.
struct UnfinishedChanges {
    /// Truncated files, with the space that they lost.
    cut: Vec<(u64, Lost)>,
    /// Inodes that clients of the previous server may still be writing to.
    held: Vec<u64>,
    /// Inodes without a name.
    unlinked: Vec<u64>,
}

/// Completes truncations that a killed server left unfinished, and finds the files that have to
/// stay open for its clients.
fn close_all(inodes: &mut ByNumber<Inode>, table: &Table, bytes: &Bytes, clean: bool) -> UnfinishedChanges {
    let zero = |range: Range| bytes.zero(range);
    let (mut held, mut cut, mut unlinked) = (Vec::new(), Vec::new(), Vec::new());
    for (&ino, inode) in inodes {
        // A truncation may have been in progress. The bytes beyond the new end must not come back.
        if !clean && table.is_being_changed(inode.slot) {
            let lost = close(inode, table, zero);
            if !lost.is_empty() {
                cut.push((ino, lost.iter().map(|range| (range.start, range.len)).collect()));
            }
        }
        if inode.nlink == 0 {
            unlinked.push(ino);
        }
        if inode.nlink == 0 || (!clean && loses_space(inode, table)) {
            held.push(ino);
        }
    }
    UnfinishedChanges { cut, held, unlinked }
}

/// Quarantines the space that truncated files lost, and logs the files without it.
fn give_up(
    cut: &[(u64, Lost)],
    inodes: &ByNumber<Inode>,
    sessions: &mut SessionReplay,
    journal: Option<&Journal>,
) -> Result<(), Damage> {
    for (ino, lost) in cut {
        let holders = sessions.sessions_reaching(*ino);
        // Logged first, because the extents of files take precedence in the log.
        if let Some(journal) = journal {
            journal.tell_or_stop(&Op::GivenUp(*ino, lost.clone(), holders.clone()));
        }
        sessions.give_up(*ino, lost, &holders).map_err(|_| Damage::Extents(*ino))?;
    }
    if let Some(journal) = journal {
        journal.describe_or_stop(cut.iter().filter_map(|(ino, _)| Some((*ino, inodes.get(ino)?))));
    }
    Ok(())
}

/// Gives inodes and their records values that are valid at this start.
fn take_over(
    inodes: &mut ByNumber<Inode>,
    table: &Table,
    starts: u64,
    (reconnecting, locks): (&[(u64, ReconnectingMount, ReplayedSession)], &Locks),
) {
    let open: HashSet<(u64, u64)> =
        reconnecting.iter().flat_map(|(id, _, has)| has.opens.keys().map(|&ino| (*id, ino))).collect();
    let locked: HashSet<u64> = locks.locked_inodes().collect();
    for (&ino, inode) in inodes {
        // Higher than any value that a previous server can have reached.
        inode.layout_generation = starts << 32;
        inode.visits = starts << 32;
        inode.was_locked = locked.contains(&ino);
        // Sessions of the previous server may cache pages.
        inode.pages_held = true;
        // A session that was appending and that reconnects continues.
        table.take_over(&inode.record_attr(ino), &inode.space(), |session| open.contains(&(session, ino)));
    }
}

/// Logs the result of settling the checksums of blocks that were being written.
fn tell_settled(Settled { open, unknown, places }: &Settled) {
    if *open > 0 {
        log::warn!(
            "{open} blocks were being written when the previous server ended: their checksums now match their contents"
        );
    }
    for place in places {
        log::warn!("the block at {place} of the arena was being written: damage to it cannot be detected");
    }
    let more = unknown - places.len() as u64;
    if more > 0 {
        log::warn!("the same is true of {more} more blocks");
    }
}

/// Checks that each inode has its own record, and takes the times from the records.
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

/// Returns whether a file would lose space, or bytes beyond its end, at its last close.
fn loses_space(inode: &Inode, table: &Table) -> bool {
    let size = table.size(inode.slot);
    let Body::File(map) = &inode.body else { return false };
    let keep = block_up(size).max(map.kept_to());
    map.reaches_beyond(keep) || map.pieces(size, keep).iter().any(|(_, place, _)| place.is_some())
}

/// Does the work of a file's last close. Returns the space that the file lost.
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

/// Returns the space of all files, in order.
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
