//! Descriptors of sessions, which the program does not know.
//!
//! # Concurrency
//! Any thread. Atomic words.

use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::next::DESCRIPTORS;

/// One bit for each descriptor.
static BITS: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

fn word(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((BITS.get(at / 64)?, 1 << (at % 64)))
}

/// Notes descriptors of a session.
pub(crate) fn add(fds: &[RawFd]) {
    for (word, bit) in fds.iter().filter_map(|fd| word(*fd)) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Forgets descriptors of a session that has ended.
pub(crate) fn remove(fds: &[RawFd]) {
    for (word, bit) in fds.iter().filter_map(|fd| word(*fd)) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Forgets all descriptors, and returns them.
pub(crate) fn take_all() -> Vec<RawFd> {
    let mut all = Vec::new();
    for (at, word) in BITS.iter().enumerate() {
        let bits = word.swap(0, Ordering::Relaxed);
        all.extend((0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| (at * 64 + bit) as RawFd));
    }
    all
}

/// Returns true if a descriptor belongs to a session.
#[inline]
pub(crate) fn contains(fd: RawFd) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Returns true if a range has a descriptor of a session.
pub(crate) fn any_in(first: u32, last: u32) -> bool {
    (first..=last.min(DESCRIPTORS as u32 - 1)).any(|fd| contains(fd as RawFd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_noted_and_forgotten() {
        add(&[3, 64, 65_535, 70_000, -1]);
        assert!(contains(3) && contains(64) && contains(65_535));
        assert!(!contains(4) && !contains(70_000) && !contains(-1));
        assert!(any_in(60, 64) && !any_in(65, 100) && any_in(100, u32::MAX));
        remove(&[64]);
        assert_eq!(take_all(), [3, 65_535]);
        assert!(!any_in(0, u32::MAX));
    }
}
