//! Free and zero space of the server's own arena and of stores, and the turns of large files.
//!
//! Invariant: a range lies in one store. The numbers of two stores are never adjacent, because a
//! store is shorter than the numbers that it has ([`DataPlace`]). So no merge crosses a store.
//!
//! A file is cut at multiples of the unit. The stores take turns piece by piece ([`stripe`]). The
//! first piece lies in the server's own arena. Without stores there is one piece, and this module
//! only passes calls on.
//!
//! # Concurrency
//! None; the caller holds a lock.

use pool::stripe;
use rfs_proto::DataPlace;

use super::{Want, free::FreeMap, range::Range};

/// Clean space of all stores.
#[derive(Debug, Default)]
pub(crate) struct CleanSpace {
    own: FreeMap,
    lent: Vec<Lent>,
    /// Length of a piece of a file. Unused without stores.
    unit: u64,
}

/// Clean space of a store.
#[derive(Debug)]
struct Lent {
    store: u16,
    /// Bytes that the store lends.
    len: u64,
    free: FreeMap,
    /// False while the store cannot be reached: its space is not handed out.
    is_open: bool,
    /// True while data moves away: its space is not handed out.
    drains: bool,
}

impl Lent {
    /// Returns true if space of the store is handed out.
    fn gives(&self) -> bool {
        self.is_open && !self.drains
    }
}

impl CleanSpace {
    /// Adds a store of `len` clean bytes from `first` on. Stores take turns in the order in which
    /// they were added.
    pub(super) fn add_store(&mut self, first: DataPlace, len: u64, unit: u64) {
        self.unit = unit;
        let mut free = FreeMap::default();
        free.insert(Range { start: first.number(), len });
        self.lent.push(Lent { store: first.store(), len, free, is_open: true, drains: false });
    }

    /// Sets whether data moves away from a store: its space is not handed out.
    pub(super) fn set_drain(&mut self, store: u16, drains: bool) {
        self.lent.iter_mut().filter(|lent| lent.store == store).for_each(|lent| lent.drains = drains);
    }

    /// Removes a store with its clean space. Returns its length; `None` if it is unknown.
    pub(super) fn remove_store(&mut self, store: u16) -> Option<u64> {
        let at = self.lent.iter().position(|lent| lent.store == store)?;
        Some(self.lent.remove(at).len)
    }

    /// Returns true if the range lies in a store that was never added, or was removed.
    pub(super) fn is_unknown(&self, range: Range) -> bool {
        match DataPlace::from_number(range.start).store() {
            0 => false,
            store => self.lent.iter().all(|lent| lent.store != store),
        }
    }

    /// Returns the number, the length and the clean bytes of each store, and whether they are
    /// handed out.
    pub(super) fn lent(&self) -> impl Iterator<Item = (u16, u64, u64, bool)> + '_ {
        self.lent.iter().map(|lent| (lent.store, lent.len, lent.free.total(), lent.gives()))
    }

    /// Sets whether space of a store is handed out.
    pub(super) fn set_open(&mut self, store: u16, is_open: bool) {
        self.lent.iter_mut().filter(|lent| lent.store == store).for_each(|lent| lent.is_open = is_open);
    }

    /// Returns the bytes that can be handed out.
    pub(super) fn total(&self) -> u64 {
        let open = self.lent.iter().filter(|lent| lent.gives());
        self.own.total() + open.map(|lent| lent.free.total()).sum::<u64>()
    }

    /// Returns true if space at this place is handed out once it is clean.
    pub(super) fn gives(&self, place: u64) -> bool {
        match DataPlace::from_number(place).store() {
            0 => true,
            store => self.lent.iter().any(|lent| lent.store == store && lent.gives()),
        }
    }

    /// Returns the clean bytes of each store, the server's own arena first, and whether they are
    /// handed out.
    pub(super) fn by_store(&self) -> impl Iterator<Item = (u16, u64, bool)> + '_ {
        let lent = self.lent.iter().map(|lent| (lent.store, lent.free.total(), lent.gives()));
        std::iter::once((0, self.own.total(), true)).chain(lent)
    }

    fn shelf(&mut self, place: u64) -> Option<&mut FreeMap> {
        match DataPlace::from_number(place).store() {
            0 => Some(&mut self.own),
            store => self.lent.iter_mut().find(|lent| lent.store == store).map(|lent| &mut lent.free),
        }
    }

    /// Adds a range. The range of an unknown store is ignored.
    pub(super) fn insert(&mut self, range: Range) {
        if let Some(shelf) = self.shelf(range.start) {
            shelf.insert(range);
        }
    }

    /// Returns the parts of a range that are not clean, in order.
    pub(super) fn gaps(&self, range: Range) -> Vec<Range> {
        match DataPlace::from_number(range.start).store() {
            0 => self.own.gaps(range),
            store => match self.lent.iter().find(|lent| lent.store == store) {
                Some(lent) => lent.free.gaps(range),
                None => vec![range],
            },
        }
    }

    /// Returns the clean bytes of the server's own arena.
    pub(super) fn own_total(&self) -> u64 {
        self.own.total()
    }

    /// Takes clean bytes of the server's own arena, the highest first.
    pub(super) fn take_highest(&mut self, bytes: u64) -> Vec<Range> {
        self.own.take_highest(bytes)
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.own.ranges().chain(self.lent.iter().flat_map(|lent| lent.free.ranges()))
    }

    /// Takes the needed bytes of `want`, which must be available, and up to `ahead` more behind
    /// them. Returns the ranges in file order, and the number of additional bytes.
    pub(super) fn grant(&mut self, want: &Want, ahead: u64) -> (Vec<Range>, u64) {
        let turns = !self.lent.is_empty();
        let mut ranges: Vec<Range> = Vec::new();
        let (mut missing, mut more, mut at) = (want.need, ahead, want.file);
        let mut hint = want.hint;
        while missing > 0 || turns && more > 0 && want.need > 0 {
            let piece = if turns { stripe::to_piece_end(at, self.unit) } else { u64::MAX };
            let whole = (missing + more).min(piece);
            let Some(range) = self.take(hint.take(), (at, want.shift), whole) else { break };
            at += range.len;
            let needed = range.len.min(missing);
            missing -= needed;
            more -= range.len - needed;
            hint = turns.then_some(range.end());
            match ranges.last_mut() {
                Some(last) if last.end() == range.start => last.len += range.len,
                _ => ranges.push(range),
            }
            // Space ahead of need is worth whole pieces only.
            if missing == 0 && range.len < whole {
                break;
            }
        }
        (ranges, ahead - more)
    }

    /// Takes up to `len` bytes for the part of a file at `at`, whose turns have a shift. They lie
    /// behind `hint` if that continues a piece. Else they are of the store whose turn it is, else
    /// of a store that has space.
    fn take(&mut self, hint: Option<u64>, (at, shift): (u64, u64), len: u64) -> Option<Range> {
        if self.lent.is_empty() {
            let continued = hint.and_then(|place| self.own.take_at(place, len));
            return continued.or_else(|| self.own.take_best(len));
        }
        if !at.is_multiple_of(self.unit)
            && let Some(range) = hint.and_then(|place| self.take_at(place, len))
        {
            return Some(range);
        }
        let stores = self.lent.len() + 1;
        let has = |index: usize, bytes: u64| match index.checked_sub(1) {
            None => self.own.total() >= bytes,
            Some(lent) => self.lent[lent].gives() && self.lent[lent].free.total() >= bytes,
        };
        let index = stripe::choose(stripe::turn(at, self.unit, stores, shift), stores, len, has)?;
        match index.checked_sub(1) {
            None => self.own.take_best(len),
            Some(lent) => self.lent[lent].free.take_best(len),
        }
    }

    fn take_at(&mut self, place: u64, len: u64) -> Option<Range> {
        match DataPlace::from_number(place).store() {
            0 => self.own.take_at(place, len),
            store => {
                let lent = self.lent.iter_mut().find(|lent| lent.store == store && lent.gives())?;
                lent.free.take_at(place, len)
            }
        }
    }
}
