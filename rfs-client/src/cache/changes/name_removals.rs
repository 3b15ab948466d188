//! Removals of names of files that have further names, for the link counts that the caller sees.
//!
//! The kernel subtracts one link when the thread that removes a name gets its reply. Another reply
//! may come first, with the count from after the removal. The kernel would then subtract the link
//! twice, and at a count of zero it refuses new links to the file. So a reply has the earlier count
//! if its request came before the removal was answered. If it came shortly after, the reply waits
//! until the kernel has probably subtracted the link.
//!
//! # Concurrency
//! Session threads. One mutex, held briefly. Replies take it only within a second of a removal.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// How long an answered removal is kept. By then the kernel has subtracted the link.
const KEPT: Duration = Duration::from_secs(1);

/// Time in which the kernel usually subtracts the link after the answer to a removal.
const SUBTRACTED: Duration = Duration::from_millis(1);

/// A time in the order of answers to removals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(crate) struct Answered(u64);

/// The removals of names of one inode.
#[derive(Debug, Default)]
struct Removal {
    under_way: u32,
    /// Largest number of links before one of them.
    links: u32,
    /// Time of the last answer.
    answered: Answered,
    ended: Option<Instant>,
}

#[derive(Debug, Default)]
struct Removals {
    by_ino: HashMap<u64, Removal>,
    /// Inodes of answered removals, the oldest first.
    ended: VecDeque<(Instant, u64)>,
}

impl Removals {
    /// Forgets removals that were answered some time before `now`.
    fn forget_old(&mut self, now: Instant) {
        while let Some(&(ended, ino)) = self.ended.front()
            && now.saturating_duration_since(ended) >= KEPT
        {
            self.ended.pop_front();
            if self.by_ino.get(&ino).is_some_and(|one| one.under_way == 0 && one.ended == Some(ended)) {
                self.by_ino.remove(&ino);
            }
        }
    }
}

/// The removals of this client.
#[derive(Debug, Default)]
pub(crate) struct NameRemovals {
    removals: Mutex<Removals>,
    answered: AtomicU64,
    /// False if there is no removal.
    any: AtomicBool,
}

impl NameRemovals {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Answered {
        Answered(self.answered.load(Ordering::SeqCst))
    }

    /// Begins the removal of a name of an inode, whose number of links is `links` for the caller.
    pub(crate) fn begin(&self, ino: u64, links: u32, now: Instant) {
        let mut removals = self.removals.lock();
        removals.forget_old(now);
        let removal = removals.by_ino.entry(ino).or_default();
        removal.under_way += 1;
        removal.links = removal.links.max(links);
        self.any.store(true, Ordering::SeqCst);
    }

    /// Ends the removal of a name. The caller is about to be told.
    pub(crate) fn end(&self, ino: u64, now: Instant) {
        let mut removals = self.removals.lock();
        let answered = Answered(self.answered.fetch_add(1, Ordering::SeqCst) + 1);
        if let Some(removal) = removals.by_ino.get_mut(&ino) {
            removal.under_way -= 1;
            removal.answered = answered;
            removal.ended = Some(now);
            removals.ended.push_back((now, ino));
        }
    }

    /// Returns the number of links before the removals that a request of `since` may not count yet.
    /// `None` if there are none.
    pub(crate) fn links_before(
        &self,
        since: Answered,
        ino: u64,
        now: impl FnOnce() -> Instant,
    ) -> Option<u32> {
        self.of(ino, now, |removal, _| {
            (removal.under_way > 0 || removal.answered > since).then_some(removal.links)
        })
    }

    /// Returns how long to wait with the reply to a request of `since`. `None` if it need not wait.
    pub(crate) fn wait(&self, since: Answered, ino: u64, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.of(ino, now, |removal, now| {
            let passed = now.saturating_duration_since(removal.ended?);
            let is_next = removal.under_way == 0 && removal.answered <= since;
            if is_next { SUBTRACTED.checked_sub(passed).filter(|left| !left.is_zero()) } else { None }
        })
    }

    /// Looks at the removals of an inode. Reads the clock only if there are removals at all.
    fn of<T>(
        &self,
        ino: u64,
        now: impl FnOnce() -> Instant,
        then: impl FnOnce(&Removal, Instant) -> Option<T>,
    ) -> Option<T> {
        if !self.any.load(Ordering::SeqCst) {
            return None;
        }
        let now = now();
        let mut removals = self.removals.lock();
        removals.forget_old(now);
        if removals.by_ino.is_empty() {
            self.any.store(false, Ordering::SeqCst);
        }
        then(removals.by_ino.get(&ino)?, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: u64 = 7;

    #[test]
    fn a_request_before_the_answer_sees_the_earlier_count() {
        let removals = NameRemovals::default();
        let now = Instant::now();
        let before = removals.now();
        assert_eq!(removals.links_before(before, INO, || now), None);
        removals.begin(INO, 2, now);
        let during = removals.now();
        assert_eq!(removals.links_before(during, INO, || now), Some(2));
        assert_eq!(removals.links_before(during, INO + 1, || now), None);
        removals.end(INO, now);
        assert_eq!(removals.links_before(before, INO, || now), Some(2));
        assert_eq!(removals.links_before(during, INO, || now), Some(2));
        assert_eq!(removals.links_before(removals.now(), INO, || now), None);
    }

    #[test]
    fn removals_that_overlap_count_from_the_first() {
        let removals = NameRemovals::default();
        let now = Instant::now();
        removals.begin(INO, 3, now);
        removals.begin(INO, 3, now);
        removals.end(INO, now);
        let between = removals.now();
        assert_eq!(removals.links_before(between, INO, || now), Some(3));
        removals.end(INO, now);
        assert_eq!(removals.links_before(between, INO, || now), Some(3));
        assert_eq!(removals.links_before(removals.now(), INO, || now), None);
    }

    #[test]
    fn a_request_shortly_after_the_answer_waits() {
        let removals = NameRemovals::default();
        let (before, start) = (removals.now(), Instant::now());
        removals.begin(INO, 2, start);
        assert_eq!(removals.wait(removals.now(), INO, || start), None);
        removals.end(INO, start);
        let half = SUBTRACTED / 2;
        assert_eq!(removals.wait(before, INO, || start + half), None);
        assert_eq!(removals.wait(removals.now(), INO, || start + half), Some(half));
        assert_eq!(removals.wait(removals.now(), INO, || start + SUBTRACTED), None);
    }

    #[test]
    fn an_old_removal_is_forgotten_unless_another_is_under_way() {
        let removals = NameRemovals::default();
        let (start, since) = (Instant::now(), removals.now());
        removals.begin(INO, 2, start);
        removals.end(INO, start);
        removals.begin(INO, 2, start);
        let late = start + KEPT;
        assert_eq!(removals.links_before(since, INO, || late), Some(2));
        removals.end(INO, late);
        assert_eq!(removals.links_before(since, INO, || late), Some(2));
        assert_eq!(removals.links_before(since, INO, || late + KEPT), None);
        assert!(removals.removals.lock().by_ino.is_empty());
        assert!(!removals.any.load(Ordering::SeqCst));
    }
}
