//! Removes files that no session has open, because space runs short or because they are old.
//!
//! The evictor's thread keeps part of the space free ([`Evictions::run`]). A request that finds no
//! space all the same removes files itself, and is tried again ([`Evictions::make_room`]).
//!
//! # Concurrency
//! Any thread. Each file goes in a transaction of its own, under the eviction lock. No lock is held
//! between two files.

use std::{
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{BLOCK, Errno, MAX_FILE_SIZE, Reply, Request};

use crate::{
    dispatch::{
        state::{journal::Journal, shards::SHARDS, store::Store},
        transaction::{
            eviction::{Cause, Fate},
            locked_inodes::Plan,
            view::{ReadView, WriteView},
        },
    },
    metadata::{clock::Clock, id_map::ByNumber},
    space::{
        eviction::{Candidate, Eviction, EvictionCounts, EvictionPolicy, FileId, Filling, Reason, Shortage},
        file_extents::block_up,
    },
};

/// The longest time that a request waits for freed space which a session or a snapshot can reach.
const FREED_SPACE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for which a request evicts files.
const EVICTION_TIME_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks at that space.
const FREED_SPACE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often a request that finds no space is tried again with more space.
const MAX_TRIES: u32 = 4;
/// The least space by which a request is tried again with more.
const RETRY_STEP: u64 = 1 << 20;
/// After this many candidates in turn that have no space to hand out again, a run ends.
const MAX_FRUITLESS_CANDIDATES: u64 = 1000;
/// The shortest sleep of the evictor if no request wakes it.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// The shortest time between two lines of the log.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The space or inode that a request may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Need {
    /// Space for a range of a file: its inode, the first byte, and the end.
    Range(u64, u64, u64),
    /// An inode.
    Inode,
}

impl Need {
    /// Returns the need of a request; `None` if it takes no space and no inode.
    pub(in crate::dispatch) fn of(request: &Request<'_>) -> Option<Need> {
        let (ino, offset, len) = match *request {
            Request::Allocate { ino, offset, len } | Request::Fallocate { ino, offset, len, .. } => {
                (ino, offset, len)
            }
            Request::Copy { to, to_offset, len, .. } => (to, to_offset, len),
            Request::Write { ino, offset, data, .. } => (ino, offset, data.len() as u64),
            Request::Create { .. }
            | Request::Tmpfile { .. }
            | Request::Mknod { .. }
            | Request::Mkdir { .. }
            | Request::Symlink { .. }
            | Request::Rename { whiteout: Some(_), .. } => return Some(Need::Inode),
            _ => return None,
        };
        Some(Need::Range(ino, offset, offset.saturating_add(len).min(MAX_FILE_SIZE)))
    }
}

/// Bytes and inodes that have to be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    bytes: u64,
    inodes: u64,
}

/// How space counts that sessions or a snapshot can still reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quarantined {
    /// As free space, because it becomes free by itself.
    Counts,
    /// As used space, because a request needs space now.
    Excluded,
}

/// The activity of the eviction of an export.
#[derive(Clone, Copy, Debug)]
pub struct EvictionActivity {
    /// The rules.
    pub policy: EvictionPolicy,
    /// The counters.
    pub counts: EvictionCounts,
    /// Time since the last file went.
    pub last_age: Option<Duration>,
}

/// Evicts files of an export.
#[derive(Clone, Copy)]
pub struct Evictions<'a> {
    pub(in crate::dispatch) store: &'a Store,
    pub(in crate::dispatch) clock: &'a dyn Clock,
}

impl Evictions<'_> {
    /// Removes files that are too old. If the export is filled above the high mark, also removes
    /// the least recently used files down to the low mark. Returns the time until the next run.
    pub fn run(self) -> Option<Duration> {
        let eviction = self.store.eviction.as_deref()?;
        let is_high = eviction.policy().by_use && self.filling().is_high();
        let (mut shortage, mut fruitless) = (self.filling().shortage().filter(|_| is_high), 0);
        while !eviction.is_stopping() && !self.is_log_behind() {
            let Some(fate) = self.evict_next(eviction, shortage) else { break };
            self.store.space.tidy();
            fruitless = if fate == Fate::GivesNothing { fruitless + 1 } else { 0 };
            let goes_on = shortage.is_some() && fruitless < MAX_FRUITLESS_CANDIDATES;
            shortage = self.filling().shortage().filter(|_| goes_on);
        }
        let now = self.clock.now();
        let due = eviction.candidates().next_expiry();
        let until = due.map(|due| Duration::from_nanos(due.saturating_sub(now).max(0).unsigned_abs()));
        let unsaid = eviction.log_counts(LOG_PAUSE);
        // A file that is too old stays while the log is behind.
        let until = until.map(|until| until.max(MIN_PAUSE));
        until.into_iter().chain(unsaid).chain(eviction.policy().longest_pause()).min()
    }

    /// Returns the activity of the eviction; `None` if the export has no eviction.
    pub fn activity(self) -> Option<EvictionActivity> {
        let eviction = self.store.eviction.as_deref()?;
        let (counts, now) = (eviction.counts(), self.clock.now());
        let age = Duration::from_nanos(now.saturating_sub(counts.last).max(0).unsigned_abs());
        let last_age = Some(age).filter(|_| counts.last != 0);
        Some(EvictionActivity { policy: eviction.policy(), counts, last_age })
    }

    /// Wakes the evictor if the export is filled above the high mark.
    pub(in crate::dispatch) fn check_marks(self) {
        if let Some(eviction) = &self.store.eviction
            && eviction.policy().by_use
            && self.filling().is_high()
        {
            eviction.wake();
        }
    }

    /// Removes files until a request that has found no space has enough, and tries it again.
    /// Returns the last outcome.
    ///
    /// Freed space may be in quarantine while a snapshot or a session can reach it. One thread of
    /// the process waits for such space at a time, so that others receive the acknowledgements. A
    /// request that does not wait evicts more instead.
    pub(in crate::dispatch) fn make_room(
        self,
        need: Need,
        mut retry: impl FnMut() -> Result<Reply, Errno>,
    ) -> Result<Reply, Errno> {
        let full = Err(Errno::ENOSPC);
        let Some(eviction) = self.store.eviction.as_deref().filter(|eviction| eviction.policy().by_use)
        else {
            return full;
        };
        eviction.count_wait();
        eviction.wake();
        let (start, lack) = (Instant::now(), self.lack(need));
        let (mut waiting, mut tries, mut wanted) = (None, 0, lack);
        loop {
            let quarantined = if tries == 0 { Quarantined::Counts } else { Quarantined::Excluded };
            let can_be_met =
                start.elapsed() < EVICTION_TIME_LIMIT && self.is_attainable(eviction, lack, quarantined);
            if can_be_met {
                let has_more = self.is_attainable(eviction, wanted, quarantined);
                let room = if has_more { wanted } else { lack };
                self.evict_until(eviction, (room, quarantined), start + EVICTION_TIME_LIMIT);
            }
            self.store.space.tidy();
            let outcome = retry();
            if outcome != full {
                return outcome;
            }
            let may_come = self.store.space.open_totals().quarantined > 0
                && self.is_attainable(eviction, lack, Quarantined::Counts);
            waiting = match may_come && start.elapsed() < FREED_SPACE_TIMEOUT {
                true => waiting.or_else(Eviction::try_wait),
                false => None,
            };
            if waiting.is_some() {
                thread::sleep(FREED_SPACE_POLL_INTERVAL);
                continue;
            }
            tries += 1;
            if !can_be_met || tries == MAX_TRIES {
                eviction.count_failure();
                return full;
            }
            if lack.bytes > 0 && tries > 1 {
                wanted.bytes = wanted.bytes.saturating_add(lack.bytes.max(RETRY_STEP));
            }
        }
    }

    /// Evicts files until there is room, or no file is left that would free any, or it is `end`.
    fn evict_until(self, eviction: &Eviction, (room, quarantined): (Room, Quarantined), end: Instant) {
        let shortage = if room.inodes > 0 { Shortage::Inodes } else { Shortage::Bytes };
        let (all, mut fruitless) = (eviction.candidates().totals().0, 0);
        while !self.has_room(room, quarantined) && fruitless <= all && !self.is_log_behind() {
            if Instant::now() >= end {
                break;
            }
            match self.evict_next(eviction, Some(shortage)) {
                Some(Fate::GivesNothing) => fruitless += 1,
                Some(Fate::Gone(_) | Fate::Stays) => fruitless = 0,
                None => break,
            }
        }
    }

    /// Makes the files and pins of a restored file system known, in the order of their last access
    /// or change.
    pub(in crate::dispatch) fn collect(self) {
        let Some(eviction) = self.store.eviction.as_deref() else { return };
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for at in 0..SHARDS {
            self.store.transact(Plan::shard(at), None, |look: &mut ReadView<'_>| {
                let inos: Vec<u64> = look.namespace.inodes_mut().only().inodes.keys().copied().collect();
                for ino in inos {
                    let Ok(inode) = look.namespace.get(ino) else { continue };
                    if WriteView::is_pinned_directory(inode) {
                        eviction.candidates().pin(ino);
                    }
                    let entries = inode.directory().into_iter().flat_map(|directory| directory.after(0));
                    names.extend(entries.map(|(_, name, child)| (child, ino, Box::<[u8]>::from(name))));
                    if let (Some(_), Ok(attr)) = (inode.file(), look.attr(ino)) {
                        files.push((attr.atime.max(attr.ctime), FileId { slot: inode.slot, ino }));
                    }
                }
            });
        }
        let slots: ByNumber<u32> = files.iter().map(|(_, file)| (file.ino, file.slot)).collect();
        for (ino, parent, name) in names {
            if let Some(&slot) = slots.get(&ino) {
                eviction.candidates().renamed(FileId { slot, ino }, &[], &[(parent, &*name)]);
            }
        }
        files.sort_unstable_by_key(|&(time, file)| (time, file.ino));
        for (_, FileId { ino, .. }) in files {
            self.store
                .transact(Plan::new(&[ino]), None, |meta: &mut WriteView<'_>| meta.track_last_close(ino));
        }
    }

    /// Evicts the next file. Returns `None` if there is none. It may stay for a reason of its own.
    fn evict_next(self, eviction: &Eviction, shortage: Option<Shortage>) -> Option<Fate> {
        let _lock = eviction.begin();
        let now = self.clock.now();
        let next = {
            let candidates = eviction.candidates();
            let expired = candidates.expired(now).map(|file| (file, Cause::Old));
            let oldest = || Some((candidates.oldest()?, Cause::Short(shortage?)));
            expired.or_else(oldest)
        };
        let (candidate, cause) = next?;
        let fate = self.evict(&candidate, cause, now);
        match fate {
            Ok(Fate::Gone(bytes)) => {
                let reason = if cause == Cause::Old { Reason::Age } else { Reason::Space };
                eviction.count(reason, bytes, now);
            }
            Ok(Fate::Stays | Fate::GivesNothing) => {}
            Err(errno) => {
                log::error!("eviction: inode {} stays: {errno}", candidate.file.ino);
                eviction.candidates().forget(candidate.file.slot);
            }
        }
        Some(fate.unwrap_or(Fate::Stays))
    }

    fn evict(self, candidate: &Candidate, cause: Cause, now: i64) -> Result<Fate, Errno> {
        let mut inos: Vec<u64> = candidate.homes.iter().map(|home| home.parent).collect();
        inos.push(candidate.file.ino);
        let step = |meta: &mut WriteView<'_>| meta.evict(candidate, cause, now);
        // No request waits for the recalls: sessions hear of them as of another mount's unlink.
        self.store.transact_retrying(Plan::new(&inos), None, step).0
    }

    /// Returns how full the export is. Space that is about to be free counts as free.
    fn filling(self) -> Filling {
        self.filling_with(Quarantined::Counts)
    }

    /// Returns how full the export is. Stores whose space is not handed out do not count.
    fn filling_with(self, quarantined: Quarantined) -> Filling {
        let (totals, idle) = (self.store.space.open_totals(), &self.store.idle);
        let soon = if quarantined == Quarantined::Counts { totals.quarantined } else { 0 };
        Filling {
            bytes: totals.len,
            free_bytes: totals.available() + idle.bytes() + soon,
            inodes: self.store.table.slots().into(),
            free_inodes: u64::from(self.store.table.free_slots()) + idle.inodes(),
        }
    }

    /// Returns the room that has to be free for a request.
    fn lack(self, need: Need) -> Room {
        let Need::Range(ino, offset, end) = need else { return Room { bytes: 0, inodes: 1 } };
        let (first, end) = (offset / BLOCK * BLOCK, block_up(end));
        let there = |look: &mut ReadView<'_>| {
            look.file(ino).map_or(0, |map| map.within(first, end).map(|extent| extent.len).sum::<u64>())
        };
        let (there, _) = self.store.transact(Plan::new(&[ino]), None, there);
        Room { bytes: end.saturating_sub(first).saturating_sub(there), inodes: 0 }
    }

    fn has_room(self, need: Room, quarantined: Quarantined) -> bool {
        let filling = self.filling_with(quarantined);
        filling.free_bytes >= need.bytes && filling.free_inodes >= need.inodes
    }

    /// Returns false if even the eviction of all candidates would not suffice.
    fn is_attainable(self, eviction: &Eviction, need: Room, quarantined: Quarantined) -> bool {
        let ((files, bytes), filling) = (eviction.candidates().totals(), self.filling_with(quarantined));
        filling.free_bytes + bytes >= need.bytes && filling.free_inodes + files >= need.inodes
    }

    /// Returns true if the log lacks changes. Then space that files give up is lost until the next
    /// start.
    fn is_log_behind(self) -> bool {
        self.store.journal.as_ref().is_some_and(Journal::is_behind)
    }
}
