//! Released space that a snapshot has still to copy.
//!
//! # Concurrency
//! One snapshot at a time; takes the lock of the account.

use super::{
    account::{Held, Space},
    alloc::range::Range,
    quarantine::SNAPSHOT,
};

impl Space {
    /// Quarantines all released space from now on, for a snapshot that copies it.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.account.lock().held = Some(Held::default());
        Hold { space: self, left_out: Vec::new() }
    }
}

/// Quarantines all released space for a snapshot. Dropping it ends that quarantine.
#[derive(Debug)]
pub(crate) struct Hold<'a> {
    space: &'a Space,
    /// Space that no file had at the moment of the snapshot, in order. It may not be zero.
    left_out: Vec<Range>,
}

impl Hold<'_> {
    /// Leaves out the space that is free now, so that the bytes of removed files are not copied.
    /// The caller calls this at the moment of the snapshot or later. Space that a file has at that
    /// moment is still in use then, or quarantined for the snapshot.
    pub(crate) fn leave_out_free(&mut self) {
        let mut free = self.space.account.lock().arena.not_zero(SNAPSHOT);
        // The lock is free while a long list is sorted.
        free.sort_unstable_by_key(|range| range.start);
        self.left_out = free;
    }

    /// Returns the parts of a range that the snapshot copies, in order.
    pub(crate) fn to_copy(&self, range: Range) -> Vec<Range> {
        let maybe_used = self.space.account.lock().arena.not_clean(range);
        maybe_used.into_iter().flat_map(|part| without(part, &self.left_out)).collect()
    }

    /// Ends the quarantine of space before `end`, which has been copied.
    pub(crate) fn copied_to(&self, end: u64) {
        self.space.change_account(|account| {
            let Some(held) = &mut account.held else { return };
            held.from = end;
            // Examines only released ranges: the snapshot calls this for each MiB while requests
            // wait for the lock.
            while let Some(first) = held.waits.first_entry().filter(|first| first.key().0 <= end) {
                let ((_, start), ino) = first.remove_entry();
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.space.tidy();
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.space.change_account(|account| {
            for ((_, start), ino) in account.held.take().unwrap_or_default().waits {
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.space.tidy();
    }
}

/// Returns the parts of a range outside of `left_out`, in order. The ranges of `left_out` are in
/// order and do not overlap.
fn without(range: Range, left_out: &[Range]) -> Vec<Range> {
    let first = left_out.partition_point(|other| other.end() <= range.start);
    let within = left_out[first..].iter().take_while(|other| other.start < range.end());
    let (mut parts, mut at) = (Vec::new(), range.start);
    for other in within {
        if other.start > at {
            parts.push(Range { start: at, len: other.start - at });
        }
        at = other.end();
    }
    if at < range.end() {
        parts.push(Range { start: at, len: range.end() - at });
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches a block that is left out although a file has it, and one that is copied twice.
        #[test]
        fn parts_are_the_range_without_what_is_left_out(
            start in 0_u64..40,
            len in 0_u64..40,
            cells in proptest::collection::vec((any::<bool>(), 1_u64..6), 0..20),
        ) {
            let (mut left_out, mut at) = (Vec::new(), 0);
            for (is_left_out, len) in cells {
                left_out.extend(is_left_out.then_some(Range { start: at, len }));
                at += len;
            }
            let is_left_out = |at: &u64| left_out.iter().any(|range| (range.start..range.end()).contains(at));
            let range = Range { start, len };
            let parts: Vec<u64> =
                without(range, &left_out).iter().flat_map(|part| part.start..part.end()).collect();
            let expected: Vec<u64> = (start..range.end()).filter(|at| !is_left_out(at)).collect();
            prop_assert_eq!(parts, expected);
        }
    }
}
