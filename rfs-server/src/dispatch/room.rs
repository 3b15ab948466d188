//! Room in the log for what it says of sessions. All of it has to fit when the log is written anew, so it is shared out before:
//! whoever asks for more than there is is refused, and no log gets full of it.
//!
//! What can be asked for without end (open files, beginnings of values) a session gets as long as it has no more than is left for all
//! others afterwards. So one that takes what it can get leaves as much as it has, and is refused before anybody else is. What every session
//! needs (that it is known, the reply of each of its slots) it gets as long as there is any: that has an end.
//!
//! Threading: any thread. Nothing is reserved between asking and taking: several threads may take a little more than there is together, for which
//! the log has more.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use seeded_faults::{Fault, seeded};

/// Bytes of the log that say that a session of a mount is there: numbers, names, what is in front.
pub(super) const SESSION: u64 = 256;
/// The same of one that does not come back.
pub(super) const STRANGER: u64 = 32;
/// That a session has a file open, and that it can reach what that gives up.
pub(super) const OPEN: u64 = 48;
/// A lock.
pub(super) const LOCK: u64 = 96;
/// The reply of a slot, at its longest.
pub(super) const SLOT: u64 = 768;
/// What is in front of a beginning of a value.
pub(super) const PART: u64 = 48;

/// The part of the room that is for locks, which have a count of their own.
const LOCKS: u64 = 4;

/// What a session has of it.
#[derive(Debug)]
pub(crate) struct Told(Mutex<Option<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    /// Of that for the beginning of a value.
    part: u64,
}

impl Default for Told {
    fn default() -> Told {
        Told(Mutex::new(Some(Taken::default())))
    }
}

/// The room.
#[derive(Debug)]
pub(super) struct Room {
    len: u64,
    taken: AtomicU64,
}

impl Room {
    /// So many bytes.
    pub(super) fn new(len: u64) -> Room {
        Room { len: len - len / LOCKS, taken: AtomicU64::new(0) }
    }

    /// How many locks there is room for, in a log that has so much for sessions.
    pub(super) fn locks(len: u64) -> usize {
        usize::try_from(len / LOCKS / LOCK).unwrap_or(usize::MAX)
    }

    fn left(&self) -> u64 {
        self.len.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Whether there is so much.
    pub(super) fn is_left(&self, bytes: u64) -> bool {
        bytes <= self.left()
    }

    /// Whether a session may have so much more of what can be asked for without end.
    pub(super) fn is_due(&self, told: &Told, bytes: u64) -> bool {
        let has = told.0.lock().as_ref().map_or(0, |taken| taken.all);
        seeded(Fault::LogRoomUnlimited) || bytes.saturating_mul(2).saturating_add(has) <= self.left()
    }

    /// A session takes so much, unless it has ended.
    pub(super) fn take(&self, told: &Told, bytes: u64) {
        if let Some(taken) = &mut *told.0.lock() {
            taken.all += bytes;
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// A session gives so much back.
    pub(super) fn give_back(&self, told: &Told, bytes: u64) {
        if let Some(taken) = &mut *told.0.lock() {
            let bytes = bytes.min(taken.all);
            taken.all -= bytes;
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// A session is about to have the beginning of a value kept that is so long. False if there is no room. The longest one counts until its
    /// end.
    pub(super) fn take_part(&self, told: &Told, len: usize) -> bool {
        let part = len as u64 + PART;
        let more = told.0.lock().as_ref().map_or(0, |taken| part.saturating_sub(taken.part));
        let due = more == 0 || self.is_due(told, more);
        if due {
            self.take(told, more);
            if let Some(taken) = &mut *told.0.lock() {
                taken.part = taken.part.max(part);
            }
        }
        due
    }

    /// A session has ended: it gives everything back, and takes nothing more.
    pub(super) fn end(&self, told: &Told) {
        if let Some(taken) = told.0.lock().take() {
            self.taken.fetch_sub(taken.all, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_all_that_he_gets_leaves_as_much() {
        let room = Room::new(4096);
        let [greedy, other] = [Told::default(), Told::default()];
        let take_all = |told| {
            let mut had = 0;
            while room.is_due(told, 16) {
                room.take(told, 16);
                had += 16;
            }
            had
        };
        assert_eq!((take_all(&greedy), take_all(&other)), (1536, 768));
        assert!(!room.is_due(&greedy, 1) && room.is_left(768) && !room.is_left(769));
        assert!(room.take_part(&Told::default(), 100) && !room.take_part(&other, 100));
        room.give_back(&greedy, 1000);
        room.end(&other);
        assert_eq!(room.taken(), 536 + 148);
        // Late news of one that has ended.
        room.take(&other, 16);
        room.give_back(&other, 16);
        room.end(&other);
        assert_eq!(room.taken(), 536 + 148);
    }

    #[test]
    fn the_longest_beginning_counts() {
        let (room, told) = (Room::new(4096), Told::default());
        assert!([10, 50, 20].into_iter().all(|len| room.take_part(&told, len)));
        assert_eq!(room.taken(), 50 + PART);
        assert!(!room.take_part(&told, 4000) && !room.is_due(&told, u64::MAX));
        assert_eq!(room.taken(), 50 + PART);
    }
}
