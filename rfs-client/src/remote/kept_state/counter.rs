//! The kept counters of an inode. No I/O, no locks, no clock.

use super::layout::COUNTERS;

/// A counter of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Counter {
    /// References of the caller, and one for each open.
    References = 0,
    /// Opens here.
    Opens = 1,
    /// Opens at the server.
    AtServer = 2,
    /// 1 if it is open at the server for writing.
    ToWrite = 3,
    /// Opens through the pages of the caller.
    Cached = 4,
    /// Of these, the opens around its pages.
    Direct = 5,
}

impl Counter {
    /// All counters, in their order.
    pub(super) const ALL: [Counter; 6] = [
        Counter::References,
        Counter::Opens,
        Counter::AtServer,
        Counter::ToWrite,
        Counter::Cached,
        Counter::Direct,
    ];

    /// Returns true if a change by `amount` comes before the note about it.
    ///
    /// A process may die in between. Then the change is made twice or not at all, as the next
    /// process begins the request anew. A count of the caller is too high then: the inode stays. A
    /// count at the server is too low, so that no file is closed too often.
    pub(super) fn changes_before_note(self, amount: i64) -> bool {
        let stays_low = matches!(self, Counter::AtServer | Counter::ToWrite);
        (amount > 0) != stays_low
    }

    pub(super) fn of(number: u8) -> Option<Counter> {
        Counter::ALL.into_iter().find(|counter| *counter as u8 == number)
    }

    pub(super) fn offset(self) -> usize {
        COUNTERS + 8 * self as usize
    }
}
