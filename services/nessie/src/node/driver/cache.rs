//! Copies of entries of other nodes, the least recently used dropped first.
//!
//! A copy is named by the slot and its word. Entries never change while a slot refers to them, so a
//! copy needs no message when a key changes: the word differs then. A copy is used for the time
//! that an operation may take, counted from the operation that read it. Within that time no entry
//! is used again, so not even a version that wraps makes an old copy look new.

use std::{num::NonZeroUsize, time::Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::logic::{entry::Entry, placement::Slot, word::Word};

/// A copy, and the begin of the operation that read it.
type Copies = LruCache<(Slot, Word), (Entry, Instant)>;

/// A cache of data entries.
pub(crate) struct Cache {
    entries: Option<Mutex<Copies>>,
}

impl Cache {
    /// Holds up to `capacity` entries.
    pub(crate) fn new(capacity: usize) -> Cache {
        Cache { entries: NonZeroUsize::new(capacity).map(|capacity| Mutex::new(LruCache::new(capacity))) }
    }

    /// Returns the copy if an operation that began at `oldest` or later has read it.
    pub(crate) fn get(&self, slot: Slot, word: Word, oldest: Option<Instant>) -> Option<Entry> {
        let mut entries = self.entries.as_ref()?.lock();
        let (entry, begun) = entries.get(&(slot, word))?;
        match oldest {
            Some(oldest) if *begun < oldest => {
                entries.pop(&(slot, word));
                None
            }
            _ => Some(entry.clone()),
        }
    }

    /// Keeps a copy that an operation has read which began at `begun`.
    pub(crate) fn put(&self, slot: Slot, word: Word, entry: &Entry, begun: Instant) {
        if let Some(entries) = &self.entries
            && entry.is_valid()
        {
            entries.lock().put((slot, word), (entry.clone(), begun));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::logic::entry::{Entry, head, stride, tail};

    fn valid() -> Entry {
        let entry = Entry::new(b"key", b"value");
        let mut bytes = head(1, false).to_le_bytes().to_vec();
        bytes.extend_from_slice(entry.body());
        bytes.resize(stride(3, 5) - 8, 0);
        bytes.extend_from_slice(&tail(true).to_le_bytes());
        Entry::decode(bytes.into()).expect("an entry")
    }

    #[test]
    fn the_least_recently_used_copy_goes_first() {
        let cache = Cache::new(2);
        let (now, slot) = (Instant::now(), Slot { node: 0, number: 1 });
        let word = Word::from_bits;
        cache.put(slot, word(1), &valid(), now);
        cache.put(slot, word(2), &valid(), now);
        assert!(cache.get(slot, word(1), None).is_some());
        cache.put(slot, word(3), &valid(), now);
        assert!(cache.get(slot, word(2), None).is_none());
        assert!(cache.get(slot, word(1), None).is_some());
    }

    #[test]
    fn old_copies_and_entries_that_are_not_valid_are_not_used() {
        let cache = Cache::new(2);
        let (now, slot) = (Instant::now(), Slot { node: 0, number: 1 });
        cache.put(slot, Word::from_bits(1), &valid(), now);
        assert!(cache.get(slot, Word::from_bits(1), Some(now)).is_some());
        assert!(cache.get(slot, Word::from_bits(1), Some(now + Duration::from_nanos(1))).is_none());
        cache.put(slot, Word::from_bits(2), &Entry::new(b"key", b"value"), now);
        assert!(cache.get(slot, Word::from_bits(2), None).is_none());
        assert!(Cache::new(0).get(slot, Word::from_bits(1), None).is_none());
    }
}
