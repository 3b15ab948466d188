//! Removals of names of files that have further names, for the link counts that the caller sees.
//!
//! The kernel subtracts one link when the thread that removes a name gets its reply. If another
//! reply with the new count comes first, the kernel subtracts the link twice. The wrong count lasts
//! until the attributes are requested again. At a count of zero the kernel refuses new links.
//!
//! - Attributes requested before the answer to the removal are in doubt. The client waits for the
//!   answer and requests them again. Attributes with a name get one link more, because the caller
//!   requests them again before it shows them.
//! - Attributes requested shortly after the answer wait until the kernel has probably subtracted
//!   the link. The kernel may subtract late, so it may cache none within a second of the answer.
//!
//! # Concurrency
//! Session threads. One mutex, held briefly; a wait for an answer releases it. Replies take it only
//! within a second of a removal.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

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
    /// Time of the last answer.
    answered: Answered,
    ended: Option<Instant>,
}

impl Removal {
    /// Returns true if the caller had not heard of one of them at `since`.
    fn is_unheard(&self, since: Answered) -> bool {
        self.under_way > 0 || self.answered > since
    }
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
    /// Notified when a removal ends.
    ends: Condvar,
    answered: AtomicU64,
    /// False if there is no removal.
    any: AtomicBool,
}

impl NameRemovals {
    /// Returns the current time.
    pub(crate) fn now(&self) -> Answered {
        Answered(self.answered.load(Ordering::SeqCst))
    }

    /// Begins the removal of a name of an inode.
    pub(crate) fn begin(&self, ino: u64, now: Instant) {
        let mut removals = self.removals.lock();
        removals.forget_old(now);
        let removal = removals.by_ino.entry(ino).or_default();
        removal.under_way += 1;
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
        drop(removals);
        self.ends.notify_all();
    }

    /// Returns true if a name of an inode was removed whose removal the caller had not heard of at
    /// `since`.
    pub(crate) fn any_unheard(&self, since: Answered, ino: u64, now: impl FnOnce() -> Instant) -> bool {
        self.of(ino, now, |removal, _| removal.is_unheard(since).then_some(())).is_some()
    }

    /// Returns true if the caller may still have to subtract a link of an inode. The reply to a
    /// request of `since` does not count that link any more.
    pub(crate) fn any_uncounted(&self, since: Answered, ino: u64, now: impl FnOnce() -> Instant) -> bool {
        self.of(ino, now, |removal, now| {
            let passed = removal.ended.map(|ended| now.saturating_duration_since(ended));
            let is_late = passed.is_some_and(|passed| passed < SUBTRACTED);
            (removal.is_unheard(since) || is_late).then_some(())
        })
        .is_some()
    }

    /// Returns true if a name of an inode was removed, or is being removed, within [`KEPT`].
    pub(crate) fn any_recent(&self, ino: u64, now: impl FnOnce() -> Instant) -> bool {
        self.of(ino, now, |_, _| Some(())).is_some()
    }

    /// Waits, until `deadline` at the latest, until no removal of a name of an inode is under way.
    pub(crate) fn wait_for_answers(&self, ino: u64, deadline: Instant) {
        let mut removals = self.removals.lock();
        while removals.by_ino.get(&ino).is_some_and(|removal| removal.under_way > 0) {
            if self.ends.wait_until(&mut removals, deadline).timed_out() {
                return;
            }
        }
    }

    /// Returns how long to wait with the reply to a request of `since`. `None` if it need not wait.
    pub(crate) fn wait(&self, since: Answered, ino: u64, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.of(ino, now, |removal, now| {
            let passed = now.saturating_duration_since(removal.ended?);
            if !removal.is_unheard(since) {
                SUBTRACTED.checked_sub(passed).filter(|left| !left.is_zero())
            } else {
                None
            }
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
    fn a_request_before_the_answer_is_in_doubt() {
        let removals = NameRemovals::default();
        let now = Instant::now();
        let before = removals.now();
        let any_unheard = |since, ino| removals.any_unheard(since, ino, || now);
        assert!(!any_unheard(before, INO));
        removals.begin(INO, now);
        let during = removals.now();
        assert!(any_unheard(during, INO) && !any_unheard(during, INO + 1));
        assert!(removals.any_uncounted(during, INO, || now));
        removals.end(INO, now);
        assert!(any_unheard(before, INO) && any_unheard(during, INO));
        assert!(!any_unheard(removals.now(), INO));
        let uncounted_after = |time| removals.any_uncounted(removals.now(), INO, || now + time);
        assert!(uncounted_after(SUBTRACTED / 2) && !uncounted_after(SUBTRACTED));
    }

    #[test]
    fn removals_that_overlap_are_in_doubt_until_the_last_answer() {
        let removals = NameRemovals::default();
        let now = Instant::now();
        removals.begin(INO, now);
        removals.begin(INO, now);
        removals.end(INO, now);
        let between = removals.now();
        assert!(removals.any_unheard(between, INO, || now));
        removals.end(INO, now);
        assert!(removals.any_unheard(between, INO, || now));
        assert!(!removals.any_unheard(removals.now(), INO, || now));
    }

    #[test]
    fn a_wait_for_answers_ends_with_the_last_one_or_at_its_deadline() {
        let removals = NameRemovals::default();
        let now = Instant::now();
        let far = now + Duration::from_secs(60);
        removals.wait_for_answers(INO, far);
        removals.begin(INO, now);
        removals.begin(INO, now);
        removals.wait_for_answers(INO, now);
        removals.end(INO, now);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| removals.wait_for_answers(INO, far));
            std::thread::sleep(Duration::from_millis(5));
            assert!(!waits.is_finished(), "one removal is under way");
            removals.end(INO, now);
        });
        assert!(now.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_request_shortly_after_the_answer_waits() {
        let removals = NameRemovals::default();
        let (before, start) = (removals.now(), Instant::now());
        removals.begin(INO, start);
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
        removals.begin(INO, start);
        removals.end(INO, start);
        removals.begin(INO, start);
        let late = start + KEPT;
        assert!(removals.any_unheard(since, INO, || late));
        removals.end(INO, late);
        assert!(removals.any_unheard(since, INO, || late));
        assert!(removals.any_recent(INO, || late));
        assert!(!removals.any_recent(INO, || late + KEPT));
        assert!(!removals.any_unheard(since, INO, || late + KEPT));
        assert!(removals.removals.lock().by_ino.is_empty());
        assert!(!removals.any.load(Ordering::SeqCst));
    }
}
