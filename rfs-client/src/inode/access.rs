//! Access times: which reads count, and the report to the server.
//!
//! As with relatime, a read counts if the file has changed since the last access, or that access
//! is a day old. The client notes the time, shows it in attributes, and reports it with the last
//! close by a started call. If the client dies, its noted time is lost.

use rfs_proto::Attr;

/// The reads that count as an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// The first read after a change, and after a day.
    #[default]
    Relative,
    /// Every read.
    Always,
    /// No read.
    Never,
}

const DAY_NS: i64 = 24 * 60 * 60 * 1_000_000_000;

impl AccessTimes {
    /// Returns true if a read at `now` counts.
    pub(crate) fn counts(self, attr: &Attr, now: i64) -> bool {
        match self {
            AccessTimes::Relative => {
                attr.atime <= attr.mtime
                    || attr.atime <= attr.ctime
                    || now.saturating_sub(attr.atime) >= DAY_NS
            }
            AccessTimes::Always => true,
            AccessTimes::Never => false,
        }
    }
}

/// Time of the last read that counted, until the server shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastRead {
    /// There is none, or the server has shown it.
    #[default]
    Known,
    /// The client has to report it.
    Noted(i64),
    /// The client has reported it, and the report may be in flight.
    Told(i64),
}

impl LastRead {
    /// Notes a read that counts.
    pub(crate) fn note(&mut self, now: i64) {
        *self = LastRead::Noted(now);
    }

    /// Returns the access time to show, given the server's `atime`.
    pub(crate) fn latest(&mut self, atime: i64) -> i64 {
        match *self {
            LastRead::Noted(read) | LastRead::Told(read) if read > atime => read,
            LastRead::Noted(_) => atime,
            LastRead::Told(_) | LastRead::Known => {
                *self = LastRead::Known;
                atime
            }
        }
    }

    /// Returns the time to report, once.
    pub(crate) fn take_noted(&mut self) -> Option<i64> {
        let LastRead::Noted(read) = *self else { return None };
        *self = LastRead::Told(read);
        Some(read)
    }

    /// Forgets the noted time before a call sets another. Returns true if a report may be in
    /// flight.
    pub(crate) fn forget(&mut self) -> bool {
        matches!(std::mem::take(self), LastRead::Told(_))
    }
}

#[cfg(test)]
mod tests {
    use rfs_proto::{FileKind, Marks};

    use super::*;

    fn attr(atime: i64, mtime: i64, ctime: i64) -> Attr {
        Attr {
            ino: 5,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 1,
            blocks: 8,
            atime,
            mtime,
            ctime,
            layout_generation: 0,
            slot: 1,
            marks: Marks::empty(),
        }
    }

    #[test]
    fn a_read_counts_after_a_change_and_after_a_day() {
        let counts = |attr: Attr, now| AccessTimes::Relative.counts(&attr, now);
        assert!(counts(attr(10, 10, 10), 11), "it has not been read since it was made");
        assert!(counts(attr(20, 30, 10), 31) && counts(attr(20, 10, 30), 31));
        assert!(!counts(attr(20, 10, 10), 31));
        assert!(!counts(attr(20, 10, 10), 19 + DAY_NS) && counts(attr(20, 10, 10), 20 + DAY_NS));
        // Clocks at the limits of the type.
        assert!(!counts(attr(i64::MAX, 0, 0), i64::MIN) && counts(attr(1 - DAY_NS, -DAY_NS, -DAY_NS), 1));
        assert!(AccessTimes::Always.counts(&attr(20, 10, 10), 31));
        assert!(!AccessTimes::Never.counts(&attr(10, 10, 10), 11));
    }

    #[test]
    fn a_read_shows_until_the_server_knows_of_it() {
        let mut access = LastRead::default();
        assert_eq!((access.latest(5), access.take_noted(), access.forget()), (5, None, false));
        access.note(10);
        assert_eq!((access.latest(5), access.latest(20), access.latest(5)), (10, 20, 10));
        assert_eq!((access.take_noted(), access.take_noted()), (Some(10), None));
        assert_eq!((access.latest(5), access.latest(10)), (10, 10));
        assert_eq!(access.latest(5), 5, "it was set to that since");
        access.note(10);
        assert!(!access.forget(), "the server has not been told");
        access.note(10);
        access.take_noted();
        assert!(access.forget() && !access.forget());
        assert_eq!(access.latest(5), 5);
    }
}
