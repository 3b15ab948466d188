//! The quota of sessions in the log.
//!
//! The log must have room for the state of all sessions when it is rewritten. So sessions take
//! room before they grow, and a request that finds none is refused. Open files and stored parts
//! of values have no natural limit. A session gets room for them only if the remaining room is at
//! least its own share afterwards. So a greedy session is refused before the others. Each session
//! needs its own entry and one reply per slot, which is bounded. It gets room for them while
//! there is any.
//!
//! # Concurrency
//! Any thread. Checking and taking are separate, so concurrent sessions may exceed the quota a
//! little. The log has a reserve for that.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use seeded_faults::seeded;

/// Bytes of a log entry of a session that reconnects.
pub(crate) const SESSION_BYTES: u64 = 256;
/// Bytes of a log entry of a session that does not reconnect.
pub(crate) const TRANSIENT_SESSION_BYTES: u64 = 32;
/// Bytes of the entries for an open file, and for space that its session can still reach.
pub(crate) const OPEN_BYTES: u64 = 48;
/// Bytes of a lock's entry.
pub(crate) const LOCK_BYTES: u64 = 96;
/// Bytes of a slot's reply, at most.
pub(crate) const SLOT_BYTES: u64 = 768;
/// Bytes of a stored part's entry, without the part.
pub(crate) const PART_BYTES: u64 = 48;

/// Locks get 1/`LOCKS_SHARE` of the room. They are counted separately.
const LOCKS_SHARE: u64 = 4;

/// The room that a session has taken; `None` after its end.
#[derive(Debug)]
pub(crate) struct SessionQuota(Mutex<Option<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    /// The share of `all` for the stored part of a value.
    part: u64,
}

impl Default for SessionQuota {
    fn default() -> SessionQuota {
        SessionQuota(Mutex::new(Some(Taken::default())))
    }
}

/// The room, in bytes.
#[derive(Debug)]
pub(crate) struct LogQuota {
    len: u64,
    taken: AtomicU64,
}

impl LogQuota {
    /// Creates the quota of `len` bytes, of which locks get their share.
    pub(crate) fn new(len: u64) -> LogQuota {
        LogQuota { len: len - len / LOCKS_SHARE, taken: AtomicU64::new(0) }
    }

    /// Returns for how many locks there is room, out of `len` bytes.
    pub(crate) fn locks(len: u64) -> usize {
        usize::try_from(len / LOCKS_SHARE / LOCK_BYTES).unwrap_or(usize::MAX)
    }

    fn left(&self) -> u64 {
        self.len.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Returns whether there is so much room.
    pub(crate) fn is_left(&self, bytes: u64) -> bool {
        bytes <= self.left()
    }

    /// Returns whether a session may take so much room for state without a natural limit.
    pub(crate) fn is_due(&self, session: &SessionQuota, bytes: u64) -> bool {
        let has = session.0.lock().as_ref().map_or(0, |taken| taken.all);
        seeded!(LogRoomUnlimited) || bytes.saturating_mul(2).saturating_add(has) <= self.left()
    }

    /// Takes room for a session, unless the session has ended.
    pub(crate) fn take(&self, session: &SessionQuota, bytes: u64) {
        if let Some(taken) = &mut *session.0.lock() {
            taken.all += bytes;
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns room that a session has taken.
    pub(crate) fn give_back(&self, session: &SessionQuota, bytes: u64) {
        if let Some(taken) = &mut *session.0.lock() {
            let bytes = bytes.min(taken.all);
            taken.all -= bytes;
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Takes room for the stored part of a value. Returns false if there is not enough. The longest
    /// part of a session counts until the session ends.
    pub(crate) fn take_part(&self, session: &SessionQuota, len: usize) -> bool {
        let part = len as u64 + PART_BYTES;
        let more = session.0.lock().as_ref().map_or(0, |taken| part.saturating_sub(taken.part));
        let due = more == 0 || self.is_due(session, more);
        if due {
            self.take(session, more);
            if let Some(taken) = &mut *session.0.lock() {
                taken.part = taken.part.max(part);
            }
        }
        due
    }

    /// Returns all room of a session that has ended. It can take no more.
    pub(crate) fn end(&self, session: &SessionQuota) {
        if let Some(taken) = session.0.lock().take() {
            self.taken.fetch_sub(taken.all, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_takes_all_it_gets_leaves_as_much() {
        let room = LogQuota::new(4096);
        let [greedy, other] = [SessionQuota::default(), SessionQuota::default()];
        let take_all = |session| {
            let mut had = 0;
            while room.is_due(session, 16) {
                room.take(session, 16);
                had += 16;
            }
            had
        };
        assert_eq!((take_all(&greedy), take_all(&other)), (1536, 768));
        assert!(!room.is_due(&greedy, 1) && room.is_left(768) && !room.is_left(769));
        assert!(room.take_part(&SessionQuota::default(), 100) && !room.take_part(&other, 100));
        room.give_back(&greedy, 1000);
        room.end(&other);
        assert_eq!(room.taken(), 536 + 148);
        // Late calls for a session that has ended.
        room.take(&other, 16);
        room.give_back(&other, 16);
        room.end(&other);
        assert_eq!(room.taken(), 536 + 148);
    }

    #[test]
    fn the_longest_part_counts() {
        let (room, session) = (LogQuota::new(4096), SessionQuota::default());
        assert!([10, 50, 20].into_iter().all(|len| room.take_part(&session, len)));
        assert_eq!(room.taken(), 50 + PART_BYTES);
        assert!(!room.take_part(&session, 4000) && !room.is_due(&session, u64::MAX));
        assert_eq!(room.taken(), 50 + PART_BYTES);
    }
}
