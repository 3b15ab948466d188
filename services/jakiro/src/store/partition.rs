//! A partition: its operations, each of which is atomic.
//!
//! The caller passes the time in milliseconds; it must not go back. An item is live until it
//! expires, is flushed, deleted or evicted. Operations skip items that are not live, and free those
//! that they find.
//!
//! # Concurrency
//! One thread at a time. No I/O, no locks, no clock.

use super::{
    change::{Change, Delta, StoreMode, StoreOutcome},
    counters::Counters,
    error::StoreError,
    key::Key,
    memory::{BlockId, Item, Items, Limits, NEVER, SizeError},
    number::parse_u64,
};

/// Maximum length of a number with padding, in bytes.
const MAX_NUMBER: usize = 24;

/// Why there is no live item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Absence {
    Missing,
    Expired,
    Flushed,
}

/// A part of a store, in memory of its own.
pub struct Partition {
    pub(super) items: Items,
    counters: Counters,
    max_value: usize,
    last_version: u64,
    /// Items with versions up to this one are from before a flush.
    flushed: u64,
    /// Time of the next flush, or [`NEVER`].
    flush_at: u64,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Partition {
    /// Makes an empty partition. Takes all of its memory, and touches each page of it.
    ///
    /// # Errors
    /// [`SizeError`] if the sizes do not fit, or if there is no such memory.
    pub fn new(limits: &Limits) -> Result<Partition, SizeError> {
        Ok(Partition {
            items: Items::new(limits)?,
            counters: Counters::default(),
            max_value: limits.max_value,
            last_version: 0,
            flushed: 0,
            flush_at: NEVER,
        })
    }

    /// Returns the live item of a key, which becomes the newest.
    pub fn get(&mut self, key: &Key<'_>, now: u64) -> Option<Item<'_>> {
        let item = self.find_counted(key, now)?;
        Some(self.items.view(item))
    }

    /// Sets the time at which an item expires, and returns the item even if that time is over.
    /// Returns `None` if there is no item.
    pub fn get_and_touch(&mut self, key: &Key<'_>, expires: u64, now: u64) -> Option<Item<'_>> {
        let Some(item) = self.find_counted(key, now) else {
            self.counters.touch_misses += 1;
            return None;
        };
        self.counters.touch_hits += 1;
        self.items.head_mut(item).expires = expires;
        Some(self.items.view(item))
    }

    /// Sets the time at which an item expires. Returns false if there is no live item. The version
    /// of the item stays.
    pub fn touch(&mut self, key: &Key<'_>, expires: u64, now: u64) -> bool {
        let found = self.find_live(key, now);
        match found {
            Ok(item) => {
                self.counters.touch_hits += 1;
                self.items.head_mut(item).expires = expires;
                self.items.refresh(item);
            }
            Err(_) => self.counters.touch_misses += 1,
        }
        found.is_ok()
    }

    /// Changes a value, if the condition of the change holds.
    ///
    /// # Errors
    /// [`StoreError::ValueTooLong`] and [`StoreError::Full`].
    pub fn store(
        &mut self,
        key: &Key<'_>,
        change: &Change,
        value: &[u8],
        now: u64,
    ) -> Result<StoreOutcome, StoreError> {
        self.counters.stores += 1;
        self.check_length(value.len())?;
        let old = self.find_live(key, now).ok();
        if let Some(refusal) = self.refusal(change.mode, old) {
            return Ok(refusal);
        }
        match (change.mode, old) {
            (StoreMode::Append, Some(old)) => self.join(key, old, &[], value, now),
            (StoreMode::Prepend, Some(old)) => self.join(key, old, value, &[], now),
            _ => {
                if let Some(old) = old {
                    self.items.unlink(old);
                }
                self.insert(key, change, value, now)
            }
        }
    }

    /// Deletes an item. Returns false if there is no live item.
    pub fn delete(&mut self, key: &Key<'_>, now: u64) -> bool {
        let found = self.find_live(key, now);
        match found {
            Ok(item) => {
                self.counters.delete_hits += 1;
                self.items.unlink(item);
            }
            Err(_) => self.counters.delete_misses += 1,
        }
        found.is_ok()
    }

    /// Changes a number, which is stored as decimal digits. Returns the new number, or `None` if
    /// there is no live item. Flags and time to live stay.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`], and [`StoreError::Full`].
    pub fn change_number(
        &mut self,
        key: &Key<'_>,
        delta: Delta,
        now: u64,
    ) -> Result<Option<u64>, StoreError> {
        let Ok(item) = self.find_live(key, now) else {
            match delta {
                Delta::Up(_) => self.counters.incr_misses += 1,
                Delta::Down(_) => self.counters.decr_misses += 1,
            }
            return Ok(None);
        };
        let number = delta.apply(self.number(item)?);
        match delta {
            Delta::Up(_) => self.counters.incr_hits += 1,
            Delta::Down(_) => self.counters.decr_hits += 1,
        }
        let head = self.items.head(item);
        let change = Change { mode: StoreMode::Set, flags: head.flags, expires: head.expires };
        self.items.unlink(item);
        self.insert(key, &change, itoa::Buffer::new().format(number).as_bytes(), now)?;
        Ok(Some(number))
    }

    /// Removes all items that were stored before time `at`. A time up to `now` removes all present
    /// items. A later time replaces the time of an earlier flush that is still to come.
    pub fn flush(&mut self, at: u64, now: u64) {
        self.counters.flushes += 1;
        self.flush_at = at;
        self.pass_time(now);
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        let ((items, bytes), (total_bytes, used_bytes)) = (self.items.linked(), self.items.memory());
        Counters { items, bytes, used_bytes, total_bytes, ..self.counters }
    }

    /// Begins a new series of counts. The contents of the store are not changed.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    pub(super) fn check_length(&self, value_len: usize) -> Result<(), StoreError> {
        if value_len > self.max_value { Err(StoreError::ValueTooLong) } else { Ok(()) }
    }

    pub(super) fn count_store(&mut self) {
        self.counters.stores += 1;
    }

    /// Returns the live item of a key and makes it the newest. Counts a get.
    fn find_counted(&mut self, key: &Key<'_>, now: u64) -> Option<BlockId> {
        let found = self.find_live(key, now);
        match found {
            Ok(item) => {
                self.counters.get_hits += 1;
                self.items.refresh(item);
            }
            Err(absence) => {
                self.counters.get_misses += 1;
                self.counters.get_expired += u64::from(absence == Absence::Expired);
                self.counters.get_flushed += u64::from(absence == Absence::Flushed);
            }
        }
        found.ok()
    }

    /// Returns the live item of a key. Frees an item that is not live.
    fn find_live(&mut self, key: &Key<'_>, now: u64) -> Result<BlockId, Absence> {
        self.pass_time(now);
        let item = self.items.find(key).ok_or(Absence::Missing)?;
        let head = self.items.head(item);
        let absence = if head.version <= self.flushed {
            Absence::Flushed
        } else if head.expires <= now {
            self.counters.expirations += 1;
            Absence::Expired
        } else {
            return Ok(item);
        };
        self.items.unlink(item);
        Err(absence)
    }

    /// Returns the live item of a key without counting.
    pub(super) fn peek(&mut self, key: &Key<'_>, now: u64) -> Option<BlockId> {
        self.find_live(key, now).ok()
    }

    /// Executes a flush whose time has come.
    fn pass_time(&mut self, now: u64) {
        if self.flush_at <= now {
            self.flush_at = NEVER;
            self.flushed = self.last_version;
        }
    }

    /// Returns the outcome of a change whose condition does not hold.
    pub(super) fn refusal(&mut self, mode: StoreMode, old: Option<BlockId>) -> Option<StoreOutcome> {
        match (mode, old) {
            (StoreMode::Set, _) | (StoreMode::Add, None) => None,
            (StoreMode::Add, Some(_)) => Some(StoreOutcome::NotStored),
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, Some(_)) => None,
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => {
                Some(StoreOutcome::NotStored)
            }
            (StoreMode::CompareVersion(_), None) => {
                self.counters.cas_misses += 1;
                Some(StoreOutcome::NotFound)
            }
            (StoreMode::CompareVersion(version), Some(old)) => {
                let is_same = self.items.head(old).version == version;
                self.counters.cas_hits += u64::from(is_same);
                self.counters.cas_mismatches += u64::from(!is_same);
                (!is_same).then_some(StoreOutcome::OtherVersion)
            }
        }
    }

    /// Stores an item whose key has no linked item.
    fn insert(
        &mut self,
        key: &Key<'_>,
        change: &Change,
        value: &[u8],
        now: u64,
    ) -> Result<StoreOutcome, StoreError> {
        let item = self.make(key, value.len(), change, now)?;
        let mut place = self.items.value(item);
        self.items.write(&mut place, value);
        Ok(self.link(item))
    }

    /// Replaces an item by one with more bytes in front of its value or behind it.
    fn join(
        &mut self,
        key: &Key<'_>,
        old: BlockId,
        front: &[u8],
        back: &[u8],
        now: u64,
    ) -> Result<StoreOutcome, StoreError> {
        let head = *self.items.head(old);
        let len = front.len() + head.value_len as usize + back.len();
        self.check_length(len)?;
        // The old item is evicted last, and its bytes stay until they are copied.
        self.items.refresh(old);
        self.items.hold(old);
        let change = Change { mode: StoreMode::Set, flags: head.flags, expires: head.expires };
        let made = self.make(key, len, &change, now);
        if let Ok(item) = made {
            let mut place = self.items.value(item);
            self.items.write(&mut place, front);
            self.items.copy_value(old, &mut place);
            self.items.write(&mut place, back);
            if self.items.head(old).is_linked == 1 {
                self.items.unlink(old);
            }
        }
        self.items.unhold(old);
        made.map(|item| self.link(item))
    }

    /// Makes an item that is not linked yet, without its value.
    pub(super) fn make(
        &mut self,
        key: &Key<'_>,
        value_len: usize,
        change: &Change,
        now: u64,
    ) -> Result<BlockId, StoreError> {
        let (counters, flushed) = (&mut self.counters, self.flushed);
        let item = self.items.make(key, value_len, |head| {
            if head.expires <= now {
                counters.expirations += 1;
            } else if head.version > flushed {
                counters.evictions += 1;
            }
        })?;
        let head = self.items.head_mut(item);
        (head.flags, head.expires) = (change.flags, change.expires);
        Ok(item)
    }

    /// Links an item as a new version.
    pub(super) fn link(&mut self, item: BlockId) -> StoreOutcome {
        self.last_version += 1;
        self.counters.total_items += 1;
        self.items.head_mut(item).version = self.last_version;
        self.items.link(item);
        StoreOutcome::Stored(self.last_version)
    }

    /// Returns the number that an item has.
    fn number(&self, item: BlockId) -> Result<u64, StoreError> {
        let len = self.items.head(item).value_len as usize;
        if len > MAX_NUMBER {
            return Err(StoreError::NotANumber);
        }
        let (mut bytes, mut at) = ([0; MAX_NUMBER], 0);
        for piece in self.items.view(item).pieces() {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        parse_u64(bytes[..at].trim_ascii_end()).ok_or(StoreError::NotANumber)
    }
}
