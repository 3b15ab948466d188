//! Whether the attributes of an inode may be kept, and when it is worth asking again. Pure.
//!
//! Attributes that may not be kept are looked at one-sidedly, which costs less than a call but each time. A call may have
//! them given to be kept. While another client writes to the file it does not, and while one changes the
//! inode all the time what is given goes at once; then the calls get rarer.
//!
//! With attributes that may be kept, what they are marked with is known without a look: whether there are extended attributes.

use std::time::{Duration, Instant};

use rfs_proto::Marks;

/// A look at the attributes asks the server at the latest after so many that did not.
const RARELY: u32 = 64;
/// What was kept for so long was worth asking for.
const LONG: Duration = Duration::from_millis(250);

/// One inode's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Since when they may be kept.
    kept: Option<Instant>,
    /// What they are marked with, if that is known to be so still.
    marks: Option<Marks>,
    /// Looks that did not ask, since the last that did.
    looks: u32,
    /// So many do not ask.
    pause: u32,
}

impl Lease {
    /// True if the attributes may be kept.
    pub(crate) fn is_kept(self) -> bool {
        self.kept.is_some()
    }

    /// The server gave them to be kept, or did not.
    pub(crate) fn answered(&mut self, kept: bool, now: Instant) {
        if !kept {
            self.rarer();
        }
        self.kept = if kept { self.kept.or(Some(now)) } else { None };
        self.marks = None;
        self.looks = 0;
    }

    /// What attributes are marked with that may be kept, and that nobody has changed since they were asked for.
    pub(crate) fn learn(&mut self, marks: Marks) {
        if self.is_kept() {
            self.marks = Some(marks - Marks::KEEP);
        }
    }

    /// What they are marked with, where that is known.
    pub(crate) fn marks(self) -> Option<Marks> {
        self.marks
    }

    /// This client changed the inode itself.
    pub(crate) fn changed(&mut self) {
        self.marks = None;
    }

    /// They were recalled.
    pub(crate) fn recalled(&mut self, now: Instant) {
        self.marks = None;
        if let Some(since) = self.kept.take() {
            if now.duration_since(since) >= LONG {
                self.pause = 0;
            }
            self.rarer();
            self.looks = 0;
        }
    }

    fn rarer(&mut self) {
        self.pause = (self.pause * 2).clamp(1, RARELY);
    }

    /// Somebody wants the attributes, which may not be kept: true if the server is to be asked.
    pub(crate) fn asks(&mut self) -> bool {
        if self.looks >= self.pause {
            return true;
        }
        self.looks += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(lease: &mut Lease, looks: u32, answer: bool, now: Instant) -> u32 {
        let mut calls = 0;
        for _ in 0..looks {
            if !lease.is_kept() && lease.asks() {
                calls += 1;
                lease.answered(answer, now);
            }
        }
        calls
    }

    #[test]
    fn who_is_refused_asks_rarely() {
        let (mut lease, now) = (Lease::default(), Instant::now());
        assert!(lease.asks(), "the first look asks");
        lease.answered(false, now);
        assert!((10..=25).contains(&calls(&mut lease, 1000, false, now)));
        assert_eq!(calls(&mut lease, 1000, true, now), 1, "one answer is enough");
        assert!(lease.is_kept());
    }

    #[test]
    fn marks_are_known_until_something_changes() {
        let (mut lease, now) = (Lease::default(), Instant::now());
        lease.learn(Marks::XATTRS);
        assert_eq!(lease.marks(), None, "not kept");
        type End = fn(&mut Lease, Instant);
        let ends: [End; 3] = [|l, _| l.changed(), |l, now| l.recalled(now), |l, now| l.answered(false, now)];
        for end in ends {
            lease.answered(true, now);
            assert_eq!(lease.marks(), None, "nobody has said");
            lease.learn(Marks::XATTRS | Marks::KEEP);
            assert_eq!(lease.marks(), Some(Marks::XATTRS));
            end(&mut lease, now);
            assert_eq!(lease.marks(), None);
        }
    }

    #[test]
    fn a_single_recall_is_soon_made_good() {
        let (mut lease, now) = (Lease::default(), Instant::now());
        for round in 0..10 {
            let now = now + round * LONG;
            calls(&mut lease, 2, true, now);
            assert!(lease.is_kept());
            lease.recalled(now + LONG);
            assert!(!lease.is_kept());
        }
    }

    #[test]
    fn who_is_recalled_from_all_the_time_asks_rarely() {
        let (mut lease, mut asked, now) = (Lease::default(), 0, Instant::now());
        for _ in 0..1000 {
            asked += calls(&mut lease, 1, true, now);
            lease.recalled(now);
        }
        assert!(asked < 30, "{asked}");
    }
}
