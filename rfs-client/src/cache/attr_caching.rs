//! Whether the attributes of an inode are cacheable, and when to ask the server again. No I/O, no
//! locks, no clock.
//!
//! Attributes that are not cacheable are read one-sidedly, each time. A call costs more, but may
//! make them cacheable. The server refuses that while another client writes to the file. If other
//! clients keep changing the inode, recalls follow at once. In both cases the calls become rarer.
//!
//! While the attributes are cacheable, their permission bits and marks are known without a read.

use std::time::{Duration, Instant};

use rfs_proto::{Attr, Marks};

/// Maximum number of reads between two calls.
const MAX_READS_BETWEEN_CALLS: u32 = 64;
/// Time as cacheable after which the next call is made at once.
const LONG_ENOUGH: Duration = Duration::from_millis(250);

/// The state of one inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttrCaching {
    /// Time since which the attributes are cacheable.
    kept: Option<Instant>,
    /// Permission bits and marks, if they are certain.
    certain: Option<(u32, Marks)>,
    /// Number of reads since the last call.
    looks: u32,
    /// Number of reads before the next call.
    pause: u32,
}

impl AttrCaching {
    /// Returns true if the attributes are cacheable.
    pub(crate) fn is_cacheable(self) -> bool {
        self.kept.is_some()
    }

    /// Notes a reply of the server, which did or did not make the attributes cacheable.
    pub(crate) fn answered(&mut self, kept: bool, now: Instant) {
        if !kept {
            self.back_off();
        }
        self.kept = if kept { self.kept.or(Some(now)) } else { None };
        self.certain = None;
        self.looks = 0;
    }

    /// Notes cacheable attributes that have not changed since the request.
    pub(crate) fn learn(&mut self, attr: &Attr) {
        if self.is_cacheable() {
            self.certain = Some((attr.perm, attr.marks - Marks::KEEP - Marks::SHARED));
        }
    }

    /// Returns the permission bits and the marks, if they are certain.
    pub(crate) fn certain(self) -> Option<(u32, Marks)> {
        self.certain
    }

    /// Notes that this client has changed the inode.
    pub(crate) fn changed(&mut self) {
        self.certain = None;
    }

    /// Notes that the attributes were recalled.
    pub(crate) fn recalled(&mut self, now: Instant) {
        self.certain = None;
        if let Some(since) = self.kept.take() {
            if now.duration_since(since) >= LONG_ENOUGH {
                self.pause = 0;
            }
            self.back_off();
            self.looks = 0;
        }
    }

    fn back_off(&mut self) {
        self.pause = (self.pause * 2).clamp(1, MAX_READS_BETWEEN_CALLS);
    }

    /// Notes a query of attributes that are not cacheable. Returns true if it should be a call.
    pub(crate) fn call_is_due(&mut self) -> bool {
        if self.looks >= self.pause {
            return true;
        }
        self.looks += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::FileKind;

    use super::*;

    const ATTR: Attr = Attr {
        ino: 5,
        kind: FileKind::Regular,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        layout_generation: 0,
        slot: 0,
        marks: Marks::empty(),
    };

    fn calls(attr_caching: &mut AttrCaching, looks: u32, answer: bool, now: Instant) -> u32 {
        let mut calls = 0;
        for _ in 0..looks {
            if !attr_caching.is_cacheable() && attr_caching.call_is_due() {
                calls += 1;
                attr_caching.answered(answer, now);
            }
        }
        calls
    }

    #[test]
    fn calls_get_rarer_if_the_server_refuses() {
        let (mut attr_caching, now) = (AttrCaching::default(), Instant::now());
        assert!(attr_caching.call_is_due(), "the first look asks");
        attr_caching.answered(false, now);
        assert!((10..=25).contains(&calls(&mut attr_caching, 1000, false, now)));
        assert_eq!(calls(&mut attr_caching, 1000, true, now), 1, "one answer is enough");
        assert!(attr_caching.is_cacheable());
    }

    #[test]
    fn bits_and_marks_are_known_until_something_changes() {
        let (mut attr_caching, now) = (AttrCaching::default(), Instant::now());
        let attr = Attr { perm: 0o4755, marks: Marks::XATTRS | Marks::KEEP, ..ATTR };
        attr_caching.learn(&attr);
        assert_eq!(attr_caching.certain(), None, "not kept");
        type End = fn(&mut AttrCaching, Instant);
        let ends: [End; 3] = [|l, _| l.changed(), |l, now| l.recalled(now), |l, now| l.answered(false, now)];
        for end in ends {
            attr_caching.answered(true, now);
            assert_eq!(attr_caching.certain(), None, "not known yet");
            attr_caching.learn(&attr);
            assert_eq!(attr_caching.certain(), Some((0o4755, Marks::XATTRS)));
            end(&mut attr_caching, now);
            assert_eq!(attr_caching.certain(), None);
        }
    }

    #[test]
    fn after_a_single_recall_the_next_query_is_a_call() {
        let (mut attr_caching, now) = (AttrCaching::default(), Instant::now());
        for round in 0..10 {
            let now = now + round * LONG_ENOUGH;
            calls(&mut attr_caching, 2, true, now);
            assert!(attr_caching.is_cacheable());
            attr_caching.recalled(now + LONG_ENOUGH);
            assert!(!attr_caching.is_cacheable());
        }
    }

    #[test]
    fn calls_get_rarer_if_recalls_are_frequent() {
        let (mut attr_caching, mut asked, now) = (AttrCaching::default(), 0, Instant::now());
        for _ in 0..1000 {
            asked += calls(&mut attr_caching, 1, true, now);
            attr_caching.recalled(now);
        }
        assert!(asked < 30, "{asked}");
    }
}
