//! Allocator of the arena and of stores: the state of every byte. No I/O, no locks, no clock.
//!
//! The server's own arena has the places `0..len`. A store has the places that begin with its
//! number ([`DataPlace`]).
//!
//! A byte is in use, clean (free and zero), dirty (free, to be zeroed), being zeroed, or
//! quarantined. Sessions may still write to a quarantined byte, although it is free. Only clean
//! space is allocated. Bytes of the own arena can also be withdrawn: they are zero, and no space of
//! the export ([`size`]). All ranges are multiples of the block size, which the caller guarantees.
//! The allocator touches no memory; `space` zeroes.
//!
//! # Concurrency
//! None; the caller holds a lock.

mod clean;
mod free;
pub mod range;
pub mod size;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use rfs_proto::DataPlace;
use seeded_faults::seeded;

use clean::CleanSpace;
use free::FreeMap;
pub use range::Range;
pub use usage::{StoreUsage, Totals};

/// A request for space that will be contiguous in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes that must be allocated.
    pub need: u64,
    /// Further bytes to allocate, if they follow the needed bytes in one piece.
    pub ahead: u64,
    /// Preferred first byte, which continues the file's preceding extent.
    pub hint: Option<u64>,
    /// Offset in the file of the first byte. It decides which store has the turn.
    pub file: u64,
    /// Number of the file, which shifts its turns.
    pub shift: u64,
}

/// Reason why nothing was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// There is enough space once dirty space is zeroed.
    Dirty,
    /// There is not enough space.
    Full,
}

#[derive(Debug)]
struct Quarantined {
    range: Range,
    /// First generation of the inode's layout without the range; 0 if a previous server released
    /// it.
    generation: u64,
    holders: Vec<u64>,
}

/// The allocator.
#[derive(Debug)]
pub struct Arena {
    /// Bytes of the arena that are not withdrawn, and of all stores.
    len: u64,
    clean: CleanSpace,
    /// Ranges of the own arena that are zero, and no space of the export.
    withdrawn: FreeMap,
    dirty: VecDeque<Range>,
    dirty_bytes: u64,
    /// Ranges that callers are zeroing, a few at a time.
    zeroing: Vec<Range>,
    /// By inode and first byte.
    quarantine: HashMap<u64, BTreeMap<u64, Quarantined>>,
    quarantined: u64,
}

impl Arena {
    /// Returns an allocator of `len` clean bytes.
    pub fn new(len: u64) -> Arena {
        let mut clean = CleanSpace::default();
        clean.insert(Range { start: 0, len });
        Arena {
            len,
            clean,
            withdrawn: FreeMap::default(),
            dirty: VecDeque::new(),
            dirty_bytes: 0,
            zeroing: Vec::new(),
            quarantine: HashMap::new(),
            quarantined: 0,
        }
    }

    /// Returns an allocator of `len` bytes that are in use. The caller adds free space with
    /// [`Arena::add_clean`], [`Arena::free`] and [`Arena::quarantine`].
    pub fn taken(len: u64) -> Arena {
        Arena { clean: CleanSpace::default(), ..Arena::new(len) }
    }

    /// Adds a store of `len` clean bytes. Files are cut at multiples of `unit`, and stores take
    /// turns. The unit of the last store counts for all. Returns false, without a change, if there
    /// are no such places.
    pub fn add_store(&mut self, store: u16, len: u64, unit: u64) -> bool {
        let known = self.clean.by_store().any(|(other, ..)| other == store);
        // A store that has all of its numbers would touch the next store.
        let Some(first) = DataPlace::new(store, 0).filter(|_| !known && unit > 0) else { return false };
        if len >= DataPlace::STORE_LEN {
            return false;
        }
        self.clean.add_store(first, len, unit);
        self.len += len;
        true
    }

    /// Sets whether data moves away from a store. Its free space does not count then.
    pub fn set_drain(&mut self, store: u16, drains: bool) {
        self.clean.set_drain(store, drains);
    }

    /// Removes a store all of whose space is clean. Returns false, without a change, if some is
    /// not, or if there is no such store.
    pub fn remove_store(&mut self, store: u16) -> bool {
        let is_clean = |(number, len, clean, _)| number == store && len == clean;
        self.clean.lent().any(is_clean) && self.forget_store(store)
    }

    /// Removes a store whose memory is lost. Files may still have space there, which is no space of
    /// the arena from now on. Returns false if there is no such store.
    pub fn forget_store(&mut self, store: u16) -> bool {
        let Some(len) = self.clean.remove_store(store) else { return false };
        self.len -= len;
        let clean = &self.clean;
        self.dirty.retain(|range| !clean.is_unknown(*range));
        self.dirty_bytes = self.dirty.iter().map(|range| range.len).sum();
        self.quarantine.retain(|_, list| {
            list.retain(|_, entry| !clean.is_unknown(entry.range));
            !list.is_empty()
        });
        let left = self.quarantine.values().flat_map(BTreeMap::values);
        self.quarantined = left.map(|entry| entry.range.len).sum();
        true
    }

    /// Returns the use of the server's own arena and of each store.
    pub fn usage(&self) -> Vec<StoreUsage> {
        let lent: Vec<_> = self.clean.lent().collect();
        let own_clean = self.clean.by_store().next().map_or(0, |(_, clean, _)| clean);
        let all = std::iter::once((0, self.own_len(), own_clean, true)).chain(lent);
        let of =
            |(store, len, clean, is_open)| StoreUsage { store, len, clean, is_open, ..StoreUsage::default() };
        let mut usage: Vec<StoreUsage> = all.map(of).collect();
        let mut add = |range: &Range, is_dirty: bool| {
            let store = DataPlace::from_number(range.start).store();
            let Some(usage) = usage.iter_mut().find(|usage| usage.store == store) else { return };
            match is_dirty {
                true => usage.dirty += range.len,
                false => usage.quarantined += range.len,
            }
        };
        self.dirty.iter().for_each(|range| add(range, true));
        self.quarantine.values().flat_map(BTreeMap::values).for_each(|entry| add(&entry.range, false));
        usage
    }

    /// Sets whether space of a store is handed out. Its free space counts only if it is.
    pub fn set_open(&mut self, store: u16, is_open: bool) {
        self.clean.set_open(store, is_open);
    }

    /// Returns the clean bytes of each store, the server's own arena first, and whether they are
    /// handed out.
    pub fn clean_by_store(&self) -> Vec<(u16, u64, bool)> {
        self.clean.by_store().collect()
    }

    /// Adds a range that is free and zero.
    pub fn add_clean(&mut self, range: Range) {
        self.clean.insert(range);
    }

    /// Ends the quarantine of all inodes for a session.
    pub fn session_ended(&mut self, session: u64) {
        self.let_go(|entry| entry.holders.retain(|&holder| holder != session));
    }

    /// Returns the free ranges that may not be zero, in no order. Leaves out quarantined space
    /// that `holder` can reach.
    pub fn not_zero(&self, holder: u64) -> Vec<Range> {
        let quarantined = self.quarantine.values().flat_map(BTreeMap::values);
        let others = quarantined.filter(|entry| !entry.holders.contains(&holder)).map(|entry| entry.range);
        self.dirty.iter().chain(&self.zeroing).copied().chain(others).collect()
    }

    /// Returns the parts of a range that are not known to be free and zero, in order.
    pub fn not_clean(&self, range: Range) -> Vec<Range> {
        let gaps = self.clean.gaps(range);
        if self.withdrawn.total() == 0 {
            return gaps;
        }
        gaps.into_iter().flat_map(|gap| self.withdrawn.gaps(gap)).collect()
    }

    /// Ends the quarantine for a holder of the range that an inode released at `start`.
    pub fn let_go_at(&mut self, ino: u64, start: u64, holder: u64) {
        let Some(list) = self.quarantine.get_mut(&ino) else { return };
        let Some(entry) = list.get_mut(&start) else { return };
        entry.holders.retain(|&one| one != holder);
        if entry.holders.is_empty() {
            let range = entry.range;
            list.remove(&start);
            if list.is_empty() {
                self.quarantine.remove(&ino);
            }
            self.end_quarantine(vec![range]);
        }
    }

    /// Returns the sums.
    pub fn totals(&self) -> Totals {
        Totals {
            len: self.len,
            clean: self.clean.total(),
            dirty: self.dirty_bytes + self.zeroing_bytes(),
            quarantined: self.quarantined,
        }
    }

    /// Returns the sums over the arena and the stores whose space is handed out. Space that is
    /// being zeroed counts as used if there are other stores.
    pub fn open_totals(&self) -> Totals {
        if self.clean.lent().all(|(.., is_open)| is_open) {
            return self.totals();
        }
        let open = self.usage().into_iter().filter(|usage| usage.is_open);
        open.fold(Totals::default(), |sum, usage| Totals {
            len: sum.len + usage.len,
            clean: sum.clean + usage.clean,
            dirty: sum.dirty + usage.dirty,
            quarantined: sum.quarantined + usage.quarantined,
        })
    }

    /// Returns true if space at this place is handed out once it is clean.
    pub fn gives(&self, place: u64) -> bool {
        self.clean.gives(place)
    }

    /// Returns the bytes that [`Arena::take_dirty`] would return.
    pub fn waiting_dirty(&self) -> u64 {
        self.dirty_bytes
    }

    /// Allocates all of `wants` or nothing. Each gets its space in as few pieces as possible, in
    /// file order.
    ///
    /// # Errors
    /// [`Short`] if the clean space does not suffice.
    pub fn allocate(&mut self, wants: &[Want]) -> Result<Vec<Vec<Range>>, Short> {
        let mut need: u64 = 0;
        for want in wants {
            need = need.checked_add(want.need).ok_or(Short::Full)?;
        }
        if need > self.clean.total() {
            let enough = need - self.clean.total() <= self.dirty_bytes + self.zeroing_bytes();
            return Err(if enough { Short::Dirty } else { Short::Full });
        }
        // Space ahead of need must leave enough for the needs of the other entries.
        let mut spare = self.clean.total() - need;
        let mut granted = Vec::with_capacity(wants.len());
        for want in wants {
            let ahead = want.ahead.min(spare);
            let (ranges, extra) = self.clean.grant(want, ahead);
            spare -= extra;
            granted.push(ranges);
        }
        Ok(granted)
    }

    /// Takes back space that no session can reach.
    pub fn free(&mut self, range: Range) {
        if range.len > 0 && !self.clean.is_unknown(range) {
            self.dirty.push_back(range);
            self.dirty_bytes += range.len;
        }
    }

    /// Takes back space of an inode that the sessions in `holders` can reach by layouts before
    /// `generation`. It becomes dirty when the last of them has returned these layouts or closed
    /// the inode.
    pub fn quarantine(&mut self, (ino, generation): (u64, u64), range: Range, holders: &[u64]) {
        if holders.is_empty() || seeded!(QuarantineSkipped) {
            self.free(range);
        } else if range.len > 0 && !self.clean.is_unknown(range) {
            self.quarantined += range.len;
            let entry = Quarantined { range, generation, holders: holders.to_vec() };
            self.quarantine.entry(ino).or_default().insert(range.start, entry);
        }
    }

    /// Returns the inodes with space in quarantine.
    pub fn quarantined_of(&self) -> Vec<u64> {
        self.quarantine.keys().copied().collect()
    }

    /// Returns the inodes whose quarantined space a session can reach, each with the first
    /// generation of its layout without that space.
    pub fn quarantined_for(&self, session: u64) -> Vec<(u64, u64)> {
        let of = |(&ino, list): (&u64, &BTreeMap<u64, Quarantined>)| {
            let held = list.values().filter(|entry| entry.holders.contains(&session));
            Some((ino, held.map(|entry| entry.generation).max()?))
        };
        self.quarantine.iter().filter_map(of).filter(|&(_, generation)| generation > 0).collect()
    }

    /// Returns the holders of quarantined space of a store, each with an inode and the first
    /// generation of its layout without that space.
    pub fn holders_in(&self, store: u16) -> BTreeSet<(u64, u64, u64)> {
        let all =
            self.quarantine.iter().flat_map(|(&ino, list)| list.values().map(move |entry| (ino, entry)));
        let there = all.filter(|(_, entry)| DataPlace::from_number(entry.range.start).store() == store);
        let of = |(ino, entry): (u64, &Quarantined)| {
            let generation = entry.generation;
            entry.holders.iter().map(move |&holder| (holder, ino, generation)).collect::<Vec<_>>()
        };
        there.flat_map(of).collect()
    }

    /// Adds a holder to all quarantined space of a store.
    pub fn hold_store(&mut self, store: u16, holder: u64) {
        let is_there = |entry: &&mut Quarantined| DataPlace::from_number(entry.range.start).store() == store;
        let all = self.quarantine.values_mut().flat_map(BTreeMap::values_mut);
        all.filter(is_there).for_each(|entry| entry.holders.push(holder));
    }

    /// Returns the quarantined space of an inode that holders with `count` can reach: its ranges,
    /// in order and merged, and all of these holders.
    pub fn quarantined(&self, ino: u64, count: impl Fn(u64) -> bool) -> (Vec<Range>, Vec<u64>) {
        let (mut ranges, mut all): (Vec<Range>, _) = (Vec::new(), BTreeSet::new());
        for entry in self.quarantine.get(&ino).into_iter().flat_map(BTreeMap::values) {
            let mut holders = entry.holders.iter().copied().filter(|&holder| count(holder)).peekable();
            ranges.extend(holders.peek().map(|_| entry.range));
            all.extend(holders);
        }
        let mut pieces: Vec<Range> = Vec::new();
        for range in ranges {
            match pieces.last_mut() {
                Some(last) if last.end() == range.start => last.len += range.len,
                _ => pieces.push(range),
            }
        }
        (pieces, all.into_iter().collect())
    }

    /// Ends the quarantine of an inode for a session that closed it or ended.
    pub fn note_last_close(&mut self, ino: u64, session: u64) {
        self.layouts_returned(ino, session, u64::MAX);
    }

    /// Ends the quarantine for a session that uses no layouts of a previous server any more.
    pub fn old_layouts_returned(&mut self, session: u64) {
        self.let_go(|entry| {
            if entry.generation == 0 {
                entry.holders.retain(|&holder| holder != session);
            }
        });
    }

    /// Ends the quarantine for a session that uses no layouts of the inode before `generation`.
    pub fn layouts_returned(&mut self, ino: u64, session: u64, generation: u64) {
        let Some(list) = self.quarantine.get_mut(&ino) else { return };
        let free = without_holders(list, |entry| {
            if entry.generation <= generation {
                entry.holders.retain(|&holder| holder != session);
            }
        });
        if list.is_empty() {
            self.quarantine.remove(&ino);
        }
        self.end_quarantine(free);
    }

    /// Applies `change` to all ranges in quarantine, and frees ranges without holders.
    fn let_go(&mut self, mut change: impl FnMut(&mut Quarantined)) {
        let mut free = Vec::new();
        self.quarantine.retain(|_, list| {
            free.extend(without_holders(list, &mut change));
            !list.is_empty()
        });
        self.end_quarantine(free);
    }

    fn end_quarantine(&mut self, free: Vec<Range>) {
        for range in free {
            self.quarantined -= range.len;
            self.free(range);
        }
    }

    /// Takes up to `max` dirty bytes, which the caller zeroes and passes to [`Arena::zeroed`].
    pub fn take_dirty(&mut self, max: u64) -> Option<Range> {
        let first = self.dirty.front_mut()?;
        let taken = Range { start: first.start, len: first.len.min(max) };
        if taken.len == first.len {
            self.dirty.pop_front();
        } else {
            first.start += taken.len;
            first.len -= taken.len;
        }
        self.dirty_bytes -= taken.len;
        self.zeroing.push(taken);
        Some(taken)
    }

    /// Puts aside a range from [`Arena::take_dirty`] that could not be zeroed, until
    /// [`Arena::session_ended`] of the holder.
    pub fn not_zeroed(&mut self, range: Range, holder: u64) {
        self.end_zeroing(range);
        self.quarantine((0, 0), range, &[holder]);
    }

    /// Adds a range from [`Arena::take_dirty`] that is zero now.
    pub fn zeroed(&mut self, range: Range) {
        self.end_zeroing(range);
        self.clean.insert(range);
    }

    fn end_zeroing(&mut self, range: Range) {
        let at = self.zeroing.iter().position(|one| *one == range);
        debug_assert!(at.is_some(), "not being zeroed: {range:?}");
        at.map(|at| self.zeroing.swap_remove(at));
    }

    /// Returns the bytes that callers are zeroing.
    fn zeroing_bytes(&self) -> u64 {
        self.zeroing.iter().map(|range| range.len).sum()
    }
}

/// Applies `change` to all entries; removes and returns the ranges without holders.
fn without_holders(
    list: &mut BTreeMap<u64, Quarantined>,
    mut change: impl FnMut(&mut Quarantined),
) -> Vec<Range> {
    let mut free = Vec::new();
    list.retain(|_, entry| {
        change(entry);
        if entry.holders.is_empty() {
            free.push(entry.range);
        }
        !entry.holders.is_empty()
    });
    free
}
