//! Who has which part of the arena: a pure account of every byte in `0..len`.
//!
//! A byte is in use (somebody got it from [`Arena::allocate`]), clean (free and zero), dirty (free, still to be
//! zeroed), being zeroed, or quarantined (free, but sessions may still write to it). Only clean space is handed
//! out. All ranges are multiples of the block, which is the caller's to keep.
//!
//! Threading: none; whoever owns it locks it. It touches no memory: zeroing is the zeroer's work.

mod free;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

pub(crate) use free::FreeMap;
use seeded_faults::{Fault, seeded};

/// A piece of the arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Length.
    pub len: u64,
}

impl Range {
    /// First byte after it.
    pub fn end(self) -> u64 {
        self.start + self.len
    }
}

/// One wish of an allocation: space that will be contiguous in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Bytes that there must be.
    pub need: u64,
    /// Further bytes that are welcome, if they come in one piece with the end of those needed.
    pub ahead: u64,
    /// Where the space should begin, to continue what lies before it in the file.
    pub hint: Option<u64>,
}

/// Why nothing was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// There is enough, once dirty space has been zeroed.
    Dirty,
    /// There is not enough.
    Full,
}

/// What an account holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Everything.
    pub len: u64,
    /// Free and zero.
    pub clean: u64,
    /// Free, to be zeroed or just being zeroed.
    pub dirty: u64,
    /// Free, but still in reach of sessions.
    pub quarantined: u64,
}

impl Totals {
    /// What files can still get.
    pub fn available(&self) -> u64 {
        self.clean + self.dirty
    }
}

#[derive(Debug)]
struct Quarantined {
    range: Range,
    /// The first generation of the inode's layout without it; 0 if the server before saw to that.
    generation: u64,
    holders: Vec<u64>,
}

/// The account.
#[derive(Debug)]
pub struct Arena {
    len: u64,
    clean: FreeMap,
    dirty: VecDeque<Range>,
    dirty_bytes: u64,
    zeroing: u64,
    /// By inode, and first byte.
    quarantine: HashMap<u64, BTreeMap<u64, Quarantined>>,
    quarantined: u64,
}

impl Arena {
    /// An arena of `len` clean bytes.
    pub fn new(len: u64) -> Arena {
        let mut clean = FreeMap::default();
        clean.insert(Range { start: 0, len });
        Arena {
            len,
            clean,
            dirty: VecDeque::new(),
            dirty_bytes: 0,
            zeroing: 0,
            quarantine: HashMap::new(),
            quarantined: 0,
        }
    }

    /// An arena of `len` bytes in which nothing is clean yet: what is not in use comes by [`Arena::add_clean`], [`Arena::free`] and
    /// [`Arena::quarantine`].
    pub fn taken(len: u64) -> Arena {
        Arena { clean: FreeMap::default(), ..Arena::new(len) }
    }

    /// A range is free and zero.
    pub fn add_clean(&mut self, range: Range) {
        self.clean.insert(range);
    }

    /// A session is over for all inodes.
    pub fn session_ended(&mut self, session: u64) {
        self.let_go(|entry| entry.holders.retain(|&holder| holder != session));
    }

    /// What of a range is not known to be free and zero, in order.
    pub fn not_clean(&self, range: Range) -> Vec<Range> {
        self.clean.gaps(range)
    }

    /// A holder lets go of the range that an inode has given up at `start`.
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

    /// What there is.
    pub fn totals(&self) -> Totals {
        Totals {
            len: self.len,
            clean: self.clean.total(),
            dirty: self.dirty_bytes + self.zeroing,
            quarantined: self.quarantined,
        }
    }

    /// Bytes that wait for [`Arena::take_dirty`].
    pub fn waiting_dirty(&self) -> u64 {
        self.dirty_bytes
    }

    /// Grants all wishes, or none. Each gets its space in as few pieces as there can be, in file order.
    pub fn allocate(&mut self, wants: &[Want]) -> Result<Vec<Vec<Range>>, Short> {
        let mut need: u64 = 0;
        for want in wants {
            need = need.checked_add(want.need).ok_or(Short::Full)?;
        }
        if need > self.clean.total() {
            let enough = need - self.clean.total() <= self.dirty_bytes + self.zeroing;
            return Err(if enough { Short::Dirty } else { Short::Full });
        }
        // What is ahead of need must leave enough for the wishes that follow.
        let mut spare = self.clean.total() - need;
        let mut granted = Vec::with_capacity(wants.len());
        for want in wants {
            let ahead = want.ahead.min(spare);
            let (ranges, extra) = self.grant(want.need, ahead, want.hint);
            spare -= extra;
            granted.push(ranges);
        }
        Ok(granted)
    }

    /// Takes `need` bytes, which are there, and up to `ahead` more behind them. Says how many more.
    fn grant(&mut self, need: u64, ahead: u64, hint: Option<u64>) -> (Vec<Range>, u64) {
        let mut ranges: Vec<Range> = Vec::new();
        let mut missing = need;
        let mut more = ahead;
        let mut hint = hint;
        while missing > 0 {
            let whole = missing + more;
            let Some(range) = hint
                .take()
                .and_then(|at| self.clean.take_at(at, whole))
                .or_else(|| self.clean.take_best(whole))
            else {
                break; // Not reached: the caller saw that there is enough.
            };
            let needed = range.len.min(missing);
            missing -= needed;
            more -= range.len - needed;
            match ranges.last_mut() {
                Some(last) if last.end() == range.start => last.len += range.len,
                _ => ranges.push(range),
            }
        }
        (ranges, ahead - more)
    }

    /// Takes space back that nobody can reach any more.
    pub fn free(&mut self, range: Range) {
        if range.len > 0 {
            self.dirty.push_back(range);
            self.dirty_bytes += range.len;
        }
    }

    /// Takes space of an inode back that the sessions in `holders` can still reach by layouts before `generation`. It becomes free when the
    /// last of them gave such layouts back, or its lease on the inode.
    pub fn quarantine(&mut self, (ino, generation): (u64, u64), range: Range, holders: &[u64]) {
        if holders.is_empty() || seeded(Fault::QuarantineSkipped) {
            self.free(range);
        } else if range.len > 0 {
            self.quarantined += range.len;
            let entry = Quarantined { range, generation, holders: holders.to_vec() };
            self.quarantine.entry(ino).or_default().insert(range.start, entry);
        }
    }

    /// The inodes that have given up what is quarantined.
    pub fn quarantined_of(&self) -> Vec<u64> {
        self.quarantine.keys().copied().collect()
    }

    /// The inodes of which a session can reach what is quarantined, with the first generation of their layouts without it.
    pub fn quarantined_for(&self, session: u64) -> Vec<(u64, u64)> {
        let of = |(&ino, list): (&u64, &BTreeMap<u64, Quarantined>)| {
            let held = list.values().filter(|entry| entry.holders.contains(&session));
            Some((ino, held.map(|entry| entry.generation).max()?))
        };
        self.quarantine.iter().filter_map(of).filter(|&(_, generation)| generation > 0).collect()
    }

    /// What is quarantined of an inode, as far as holders that `count` can reach it: where, in order and in as few pieces as can be, and all
    /// who can reach some of it.
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

    /// A session gave its lease on an inode back, or is dead.
    pub fn lease_ended(&mut self, ino: u64, session: u64) {
        self.layouts_returned(ino, session, u64::MAX);
    }

    /// A session uses no layouts that come from the server before.
    pub fn old_layouts_returned(&mut self, session: u64) {
        self.let_go(|entry| {
            if entry.generation == 0 {
                entry.holders.retain(|&holder| holder != session);
            }
        });
    }

    /// A session uses no layouts of an inode that are of a generation before this one.
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

    /// Changes the holders of everything that is quarantined.
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

    /// Up to `max` dirty bytes, for the caller to zero and then pass to [`Arena::zeroed`].
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
        self.zeroing += taken.len;
        Some(taken)
    }

    /// A range from [`Arena::take_dirty`] is zero now.
    pub fn zeroed(&mut self, range: Range) {
        self.zeroing -= range.len;
        self.clean.insert(range);
    }
}

/// Takes out what nobody holds any more after a change.
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
