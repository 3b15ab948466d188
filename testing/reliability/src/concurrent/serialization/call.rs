//! An operation that was performed, and which others it may have met.
//!
//! # Concurrency
//! No I/O, no locks, no clock.

use crate::concurrent::operation::{Op, Outcome};

/// Bytes of a page.
const BLOCK: u64 = 4096;

/// An operation that was performed.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) worker: usize,
    pub(crate) mount: usize,
    pub(crate) id: u64,
    pub(crate) op: Op,
    /// When it was begun, and when it returned, in nanoseconds.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) outcome: Outcome,
    /// The bytes read must be current, because they do not come from the kernel's page cache.
    pub(crate) checked: bool,
    /// The operation used the kernel's page cache.
    pub(crate) paged: bool,
    /// Its client was killed before it returned.
    pub(crate) killed: bool,
}

impl Call {
    /// Returns true if the kernel may have had an answer to the first of several requests only.
    ///
    /// It then tells the length of that part, although the client was killed. A part ends with a
    /// page.
    pub(super) fn is_part(&self) -> bool {
        let ends_page = |at: u64, len: u64| len > 0 && (at + len).is_multiple_of(BLOCK);
        match (&self.op, &self.outcome) {
            (Op::Write { len, .. }, Outcome::Count(count)) => self.killed && self.paged && count < len,
            (Op::Read { at, len, .. } | Op::ReadName { at, len, .. }, Outcome::Bytes(seen)) => {
                let found = seen.len() as u64;
                self.killed && self.paged && found < *len && ends_page(*at, found)
            }
            _ => false,
        }
    }

    /// Returns the time after which it has no effect. The rest of a WRITE that tells a part may
    /// come at any time.
    fn last_effect(&self) -> u64 {
        if matches!(self.op, Op::Write { .. }) && self.is_part() { u64::MAX } else { self.to }
    }
}

/// Returns true if two calls were under way, or had effects, at the same time.
pub(super) fn overlap(a: &Call, b: &Call) -> bool {
    a.from < b.last_effect() && b.from < a.last_effect()
}

/// Returns true if the kernel may answer by a size that another mount has changed since.
///
/// The kernel bounds a copy by the size that it heard last. It drops the size that comes with a
/// buffered read if another call or a recall concerns the file meanwhile.
pub(super) fn uses_an_old_size(call: &Call, calls: &[Call]) -> bool {
    let mut others = calls.iter().filter(|other| other.id != call.id);
    let resized = |other: &Call| other.mount != call.mount && other.from < call.to && other.op.changes_size();
    match call.op {
        Op::Copy { .. } => others.any(resized),
        Op::Read { .. } if call.paged => {
            others.clone().any(|other| overlap(call, other)) && others.any(resized)
        }
        _ => false,
    }
}
