//! The scrubs of an export: which blocks clients had compared with their checksums.
//!
//! A scrub is a series of [`Request::Verify`](rfs_proto::Request::Verify) of one session, from the
//! first place of the export on.
//!
//! # Concurrency
//! Any thread; one lock, held briefly.

use std::{collections::HashMap, time::Instant};

use parking_lot::Mutex;
use rfs_proto::Verified;

/// Scrubs that run at the same time. More are not recorded.
const MAX_RUNNING: usize = 16;

/// A scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scrub {
    /// Its start.
    pub begin: Instant,
    /// The last part so far.
    pub last: Instant,
    /// Blocks compared so far.
    pub blocks: u64,
    /// Bad blocks among them.
    pub bad: u64,
    /// The scrub has reached the end of the export.
    pub is_complete: bool,
}

/// The scrubs of an export.
#[derive(Debug, Default)]
pub struct Scrubs(Mutex<HashMap<u64, Scrub>>);

impl Scrubs {
    /// Records the reply to a session's request for the blocks from `place` on.
    pub fn record(&self, session: u64, place: (u64, u64), part: &Verified) {
        let now = Instant::now();
        let mut scrubs = self.0.lock();
        if place == (0, 0) {
            // A complete one is forgotten when another one begins.
            scrubs.retain(|other, scrub| *other != session && !scrub.is_complete);
            if scrubs.len() >= MAX_RUNNING {
                let oldest = scrubs.iter().min_by_key(|(_, scrub)| scrub.last).map(|(other, _)| *other);
                oldest.map(|oldest| scrubs.remove(&oldest));
            }
            scrubs.insert(session, Scrub { begin: now, last: now, blocks: 0, bad: 0, is_complete: false });
        }
        if let Some(scrub) = scrubs.get_mut(&session).filter(|scrub| !scrub.is_complete) {
            scrub.last = now;
            scrub.blocks += part.blocks;
            scrub.bad += part.bad.len() as u64;
            scrub.is_complete = part.next.is_none();
        }
    }

    /// Returns the scrub with the newest part.
    pub fn newest(&self) -> Option<Scrub> {
        self.0.lock().values().copied().max_by_key(|scrub| scrub.last)
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::BadBlock;

    use super::*;

    fn part(blocks: u64, bad: usize, next: Option<(u64, u64)>) -> Verified {
        let block = BadBlock { ino: 1, offset: 0, arena: 0, expected: 1, found: 2, path: Vec::new() };
        Verified { blocks, bad: vec![block; bad], next }
    }

    #[test]
    fn parts_of_a_session_make_a_scrub() {
        let scrubs = Scrubs::default();
        assert_eq!(scrubs.newest(), None);
        // Without a beginning there is no scrub.
        scrubs.record(1, (5, 0), &part(9, 9, None));
        assert_eq!(scrubs.newest(), None);
        scrubs.record(1, (0, 0), &part(256, 0, Some((3, 0))));
        scrubs.record(1, (3, 0), &part(10, 2, None));
        scrubs.record(1, (4, 0), &part(1000, 0, None));
        let scrub = scrubs.newest().unwrap();
        assert_eq!((scrub.blocks, scrub.bad, scrub.is_complete), (266, 2, true));
        scrubs.record(1, (0, 0), &part(1, 0, Some((3, 0))));
        let scrub = scrubs.newest().unwrap();
        assert_eq!((scrub.blocks, scrub.bad, scrub.is_complete), (1, 0, false));
    }

    #[test]
    fn the_number_of_scrubs_is_bounded() {
        let scrubs = Scrubs::default();
        for session in 0..100 {
            scrubs.record(session, (0, 0), &part(session, 0, Some((3, 0))));
        }
        assert_eq!(scrubs.0.lock().len(), MAX_RUNNING);
        assert_eq!(scrubs.newest().unwrap().blocks, 99);
    }
}
